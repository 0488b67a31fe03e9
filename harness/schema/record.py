"""How a column of a table or a field of the manifest is declared: its type, unit and meaning."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


def described(description: str, unit: str = "", **options: Any) -> Any:
    """A field with its meaning and unit (units are empty for names, counts without dimension, and flags)."""
    return Field(description=description, json_schema_extra={"unit": unit}, **options)


class Record(BaseModel):
    """Base of every declared row and manifest part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


def column_names(row: type[Record]) -> list[str]:
    """Columns of a table in their order."""
    return list(row.model_fields)


def unit_of(field: FieldInfo) -> str:
    """Unit a field was declared with, or ''."""
    extra = field.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""
