"""What every command promises to end with: a result, or one clear line and exit code 2."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from click.testing import CliRunner, Result

from probe.errors import UserError

LONGEST = 4000  # characters of a line that a person may still read


def command(words: Sequence[str], *, codes: Sequence[int] = (0,)) -> Result:
    """Run `probe WORDS` in this process; any end but a result or one clear line is an AssertionError."""
    from probe.cli import main

    done = CliRunner().invoke(main, list(words), prog_name="probe")
    told = f"probe {' '.join(map(repr, words))[:1000]}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        last = traceback.extract_tb(done.exception.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise AssertionError(f"{done.exception!r:.300} at {where} from {told}") from done.exception
    if done.exit_code == 2:
        check_line(done.stderr, told)
    else:
        assert done.exit_code in codes, f"{told}: exit code {done.exit_code}, {done.stderr!r}"
    return done


def check_line(said: str, told: str) -> None:
    assert said.startswith("error: "), f"{told}: {said!r}"
    assert said.endswith("\n"), f"{told}: {said!r}"
    line = said[:-1]
    assert line.isprintable(), f"{told}: not one printable line: {line!r}"
    assert len(line) <= LONGEST, f"{told}: {len(line)} characters"
    assert "Traceback" not in line, f"{told}: {line!r}"


def parsed(parse: Callable[[], Any]) -> Any:
    """The value, or None where the parser refused it in plain words; any other exception passes."""
    try:
        return parse()
    except UserError:
        return None
