"""Second stages in the catalogue: they act on a finished head; `probe.probing.second_stage` solves them."""

from __future__ import annotations

from typing import Any

from probe.errors import UserError
from probe.losses.base import Loss
from probe.methods.base import Method
from probe.methods.second_stage_rows import NOT_TRAINED


class SecondStage(Method):
    """A method that no gradient step belongs to: it has a row and a loss, and refuses to be trained."""

    def __init__(self, loss: Loss, **own: Any) -> None:
        super().__init__(loss)

    def stages(self, epochs: int) -> tuple[int, ...]:
        raise UserError(NOT_TRAINED)
