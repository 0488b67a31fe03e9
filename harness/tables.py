"""Rows to CSV bytes and back: RFC 4180 quoting with '\\n' line ends, the same bytes for the same rows.

Floats keep six significant digits, integers all of them; None is an empty cell, infinity is `inf`, booleans
are `true` and `false`. A name ending in .gz is compressed with no name and time stamp 0 inside.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_args

import pandas as pd
from pydantic.fields import FieldInfo

from harness.schema import Record, column_names

SIGNIFICANT_DIGITS = 6
R = TypeVar("R", bound=Record)


def format_value(value: Any) -> str:
    """One cell's text."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(value, f".{SIGNIFICANT_DIGITS}g")
    return str(value)


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([format_value(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def records_to_csv(row: type[Record], records: Iterable[Record]) -> bytes:
    """Declared records as CSV, columns in declared order."""
    columns = column_names(row)
    return to_csv(columns, ([getattr(record, name) for name in columns] for record in records))


def frame_to_csv(row: type[Record], frame: pd.DataFrame) -> bytes:
    """A frame with a declared table's columns as CSV."""
    columns = column_names(row)
    lists = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in columns]
    return to_csv(columns, zip(*lists, strict=True))


def compress(name: str, content: bytes) -> bytes:
    """`content` as a file called `name` holds it."""
    return gzip.compress(content, compresslevel=9, mtime=0) if name.endswith(".gz") else content


def decompress(name: str, content: bytes) -> bytes:
    return gzip.decompress(content) if name.endswith(".gz") else content


def _dtype(field: FieldInfo) -> str:
    kinds = set(get_args(field.annotation)) or {field.annotation}
    if bool in kinds:
        return "boolean"
    if float in kinds:
        return "float64"
    return "Int64" if int in kinds else "object"


def dtypes(row: type[Record]) -> dict[str, str]:
    """pandas type of each column: nullable integers and booleans, floats, and text with None for empty."""
    return {name: _dtype(field) for name, field in row.model_fields.items()}


def records_to_frame(row: type[Record], records: Sequence[Record]) -> pd.DataFrame:
    """Declared records as the frame that reading their CSV back would give."""
    return pd.DataFrame(
        {
            name: pd.Series([getattr(record, name) for record in records], dtype=dtype)
            for name, dtype in dtypes(row).items()
        }
    )


def read_frame(row: type[Record], content: bytes) -> pd.DataFrame:
    """A declared table from its CSV bytes; columns that an older file ends without get their defaults.

    Raises ValueError when the columns are not those declared.
    """
    header = content.partition(b"\n")[0].decode()
    declared = column_names(row)
    written = header.split(",")[: len(declared)]
    absent = {name: row.model_fields[name] for name in declared[len(written) :]}
    if written != declared[: len(written)] or any(field.is_required() for field in absent.values()):
        raise ValueError(f"columns are {header!r}, declared are {','.join(declared)!r}")
    every_type = dtypes(row)
    types = {name: every_type[name] for name in written}
    texts = [name for name, dtype in types.items() if dtype == "object"]
    frame = pd.read_csv(
        io.BytesIO(content),
        dtype={name: dtype if dtype != "object" else "str" for name, dtype in types.items()},
        keep_default_na=False,
        na_values={name: [""] for name in types},
        true_values=["true"],
        false_values=["false"],
    )
    for name in texts:
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    for name, field in absent.items():
        frame[name] = pd.Series([field.default] * len(frame), dtype=every_type[name])
    return frame


def read_records(row: type[R], content: bytes) -> list[R]:
    """Declared records from their CSV bytes. Raises pydantic's ValidationError for other values."""
    optional = {name for name, field in row.model_fields.items() if type(None) in get_args(field.annotation)}
    return [
        row.model_validate(
            {name: None if text == "" and name in optional else text for name, text in line.items()}
        )
        for line in read_text_rows(content)
    ]


def read_text_rows(content: bytes) -> list[dict[str, str]]:
    """Rows as they are written, for comparing text with text."""
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))
