"""The quick version of `make torture`: a few tries of every fault and every kind of bad input."""

import pytest

from tests.torture.rows import rows
from tests.torture.runner import run

SEED = 1


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows() if row.quick])
def test_every_promise_survives_its_torture(row):
    count = run(row, SEED, numbers=range(row.quick))
    assert [f"number {lost.number}: {lost.why}" for lost in count.lost] == []
    assert count.tried >= row.quick
