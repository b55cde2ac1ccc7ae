"""Sentences on a terminal."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from probe.report.text.paragraph import Paragraph

SAID = "+0.4 points on hard classes (95 %: −0.2 to +1.1), 44 % of well-lit images, and 9 % of one-way-streets"


@pytest.mark.parametrize("width", range(16, 101))
def test_a_number_keeps_its_percent_sign_at_any_width_and_no_word_is_lost(width):
    said = shown(Paragraph(SAID), width)
    assert not any(line.lstrip().startswith("%") for line in said)
    assert " ".join(line.strip() for line in said) == SAID


def test_a_column_of_a_table_is_as_careful():
    table = Table("class", "reason", box=None)
    table.add_row("american pit bull terrier", Paragraph(SAID))
    said = shown(table, 48)
    assert len(said) > 4
    assert not any(line.strip().startswith("%") for line in said)
    assert max(map(len, said)) <= 48


def shown(part, width):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(part)
    return out.getvalue().splitlines()
