"""What a name from outside looks like to people: everything can be seen, and nothing acts."""

import pytest

from probe.system.safe_text import LONGEST, one_line, printable, visible


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Café 猫 \N{PILE OF POO}", "Café 猫 \N{PILE OF POO}"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("a\nb\tc\0", "a\\nb\\tc\\x00"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_written_out(name, shown):
    assert printable(name) == shown
    shown.encode()  # any file can hold it


def test_a_message_is_one_line_that_keeps_its_end():
    assert one_line("first\n\n  second\r\n") == "first   second"
    message = one_line("no class is called " + "x" * 10**6 + "; check the name")
    assert len(message) < LONGEST + 10
    assert message.endswith("; check the name")
    assert message.isprintable()


def test_every_string_of_a_result_is_made_visible_and_numbers_stay():
    result = {"na\x1bme": ["a\nb", 1, None, {"x": "\u202e"}], "accuracy": 0.5}
    assert visible(result) == {"na\\x1bme": ["a\\nb", 1, None, {"x": "\\u202e"}], "accuracy": 0.5}
