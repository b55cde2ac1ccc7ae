"""The base of every section of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """One section; a bare word stands for its name (`method: mr2`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _word_is_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) and "name" in cls.model_fields else value
