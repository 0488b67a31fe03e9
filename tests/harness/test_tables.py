import csv
import io
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schema import CorrectnessRow, EventRow, RequestRow, column_names
from harness.tables import (
    compress,
    format_value,
    frame_to_csv,
    read_frame,
    read_records,
    records_to_csv,
    records_to_frame,
    to_csv,
)
from tests.harness.made import MS, frames, record

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "true"), (False, "false"), (7, "7"), (10**18, str(10**18)), (1 / 3, "0.333333"),
        (123456.789, "123457"), (1234567.0, "1.23457e+06"), (math.inf, "inf"), ("a,b", "a,b"),
    ],
)  # fmt: skip
def test_values_have_one_text(value, text):
    assert format_value(value) == text


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_any_text_survives_quoting(rows):
    content = to_csv(["a", "b"], rows).decode()
    assert list(csv.reader(io.StringIO(content, newline="")))[1:] == [list(row) for row in rows]


def test_a_table_read_back_is_the_table_that_was_written():
    requests, events = frames(
        [
            record(0, 5, [(MS, 1), (2 * MS, 2)]),
            record(1, 7, [], status="reset", error='it said "no",\nthen left'),
        ]
    )
    for row, frame in ((RequestRow, requests), (EventRow, events)):
        content = frame_to_csv(row, frame)
        pd.testing.assert_frame_equal(read_frame(row, content), frame)
        assert frame_to_csv(row, read_frame(row, content)) == content


def test_an_empty_table_keeps_its_columns():
    content = records_to_csv(EventRow, [])
    assert content == (",".join(column_names(EventRow)) + "\n").encode()
    pd.testing.assert_frame_equal(read_frame(EventRow, content), records_to_frame(EventRow, []))


def test_other_columns_are_refused():
    with pytest.raises(ValueError, match="columns are 'cell,nothing'"):
        read_frame(EventRow, b"cell,nothing\nx,y\n")


def test_compressed_bytes_hold_no_time_and_no_name():
    assert compress("a.csv.gz", b"x" * 100) == compress("b.csv.gz", b"x" * 100)
    assert compress("a.csv.gz", b"x")[4:8] == b"\0\0\0\0"
    assert compress("a.csv", b"x") == b"x"


def test_columns_that_came_later_are_empty_in_an_older_table():
    old = (
        b"system,prompt,identical,first_divergence,gap_at_divergence,tokens,reference_finish,system_finish,"
        b"text_identical,reference_ids,system_ids,error\nengine,p000,true,,,2,length,length,true,1 2,1 2,\n"
    )
    frame = read_frame(CorrectnessRow, old)
    assert list(frame.columns) == column_names(CorrectnessRow)
    assert frame["forced_tokens"].isna().all() and frame["forced_tokens"].dtype == "Int64"
    (row,) = read_records(CorrectnessRow, old)
    assert row.forced_tokens is None and row.forced_agree is None
    with pytest.raises(ValueError, match="columns are"):
        read_frame(CorrectnessRow, old.replace(b",error\n", b"\n").replace(b"1 2,\n", b"1 2\n"))
