from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.errors import RemoteError
from remote.journal import Entry
from remote.money import HOUR_S, WAY_OUT_S, Caps, Rent, deadline, exceeded, hours, price_so_far, rents_of

NOW = 1_800_000_000.0


def line(at_h: float, step: str, box: str = "", label: str = "1", price: float = 2.0) -> Entry:
    label = f"llm-ladder/night/180000000{label}"
    return Entry(
        at=NOW + at_h * HOUR_S, run="night", step=step, provider="vast", label=label, deadline=1, box=box,
        dollars_per_hour=price,
    )  # fmt: skip


def test_price_so_far() -> None:
    rents = [Rent("1", 2.0, NOW - 1.5 * HOUR_S, None), Rent("2", 0.5, NOW - 9 * HOUR_S, NOW - 5 * HOUR_S)]
    assert price_so_far(rents, NOW) == pytest.approx(3.0 + 2.0)
    assert price_so_far([], NOW) == 0


def test_a_clock_that_was_set_back_makes_nothing_cheaper_than_free() -> None:
    assert hours(Rent("1", 2.0, NOW + 100, None), NOW) == 0


@pytest.mark.parametrize(
    ("hours", "dollars"), [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("inf"))]
)
def test_caps_are_positive_and_finite(hours: float, dollars: float) -> None:
    with pytest.raises(RemoteError, match="cap of"):
        Caps(hours, dollars)


def test_deadline_by_hours() -> None:
    assert deadline(Caps(2, 100), 1.0, NOW) == int(NOW + 2 * HOUR_S)


def test_deadline_by_dollars() -> None:
    assert deadline(Caps(24, 6.0), 2.0, NOW) == int(NOW + 3 * HOUR_S - WAY_OUT_S)
    assert deadline(Caps(24, 6.0), 2.0, NOW, spent=2.0) == int(NOW + 2 * HOUR_S - WAY_OUT_S)
    assert deadline(Caps(24, 6.0), 1.0, NOW, spent=2.0, boxes=2) == int(NOW + 2 * HOUR_S - WAY_OUT_S)


def test_deadline_of_a_box_that_costs_nothing() -> None:
    assert deadline(Caps(2, 0.01), 0.0, NOW) == int(NOW + 2 * HOUR_S)


@pytest.mark.parametrize(("caps", "spent"), [(Caps(0.1, 100), 0.0), (Caps(24, 0.8), 0.0), (Caps(24, 6), 6.5)])
def test_caps_that_allow_too_little(caps: Caps, spent: float) -> None:
    with pytest.raises(RemoteError, match="the least is 10 min"):
        deadline(caps, 2.0, NOW, spent)


@given(
    cap_hours=st.floats(0.5, 100),
    dollars=st.floats(1, 1000),
    price=st.floats(0.01, 30),
    spent=st.floats(0, 1000),
    boxes=st.integers(1, 8),
)
def test_boxes_that_end_a_way_out_late_keep_the_cap(
    cap_hours: float, dollars: float, price: float, spent: float, boxes: int
) -> None:
    caps = Caps(cap_hours, dollars)
    try:
        end = deadline(caps, price, NOW, spent, boxes)
    except RemoteError:
        return
    assert end <= NOW + cap_hours * HOUR_S
    late = [Rent(str(n), price, NOW, end + WAY_OUT_S) for n in range(boxes)]
    assert spent + price_so_far(late, end) <= dollars * (1 + 1e-9)


def test_exceeded() -> None:
    caps = Caps(3, 10)
    assert exceeded(caps, [Rent("7", 2.0, NOW - 2.9 * HOUR_S, None)], NOW) is None
    assert (
        exceeded(caps, [Rent("7", 2.0, NOW - 3.0 * HOUR_S, None)], NOW)
        == "box 7 is paid for 3.00 h, the cap is 3 h"
    )
    assert exceeded(caps, [Rent("7", 2.0, NOW - 9 * HOUR_S, NOW - 5 * HOUR_S)], NOW) is None
    two = [Rent("7", 2.0, NOW - 2.5 * HOUR_S, None), Rent("8", 2.0, NOW - 2.5 * HOUR_S, None)]
    assert exceeded(caps, two, NOW) == "$10.00 is spent, the cap is $10.00"


def test_rents_of_a_box_that_was_given_back() -> None:
    steps = [
        line(0, "intent"),
        line(0.1, "created", "7"),
        line(0.2, "running", "7"),
        line(2, "destroying", "7"),
    ]
    assert rents_of(steps) == [Rent("7", 2.0, NOW, None)]
    assert rents_of([*steps, line(2.1, "destroyed", "7")]) == [Rent("7", 2.0, NOW, NOW + 2.1 * HOUR_S)]


def test_rents_of_two_boxes() -> None:
    entries = [line(0, "intent"), line(0.1, "created", "7"), line(0.2, "intent", label="2", price=3.0)]
    entries += [line(0.3, "created", "8", label="2", price=3.0), line(1, "destroyed", "7")]
    assert rents_of(entries) == [Rent("7", 2.0, NOW, NOW + HOUR_S), Rent("8", 3.0, NOW + 0.2 * HOUR_S, None)]


def test_the_price_is_that_of_the_running_box() -> None:
    entries = [line(0, "intent"), line(0.1, "created", "7"), line(0.2, "running", "7", price=2.1)]
    assert rents_of(entries) == [Rent("7", 2.1, NOW, None)]


def test_rents_of_requests_without_a_box() -> None:
    assert rents_of([line(0, "intent")]) == [Rent("", 2.0, NOW, None)]
    assert rents_of([line(0, "intent"), line(1, "refused")]) == []
    assert rents_of([line(0, "intent"), line(1, "unclear")]) == [Rent("", 2.0, NOW, None)]
    assert rents_of([line(0, "intent"), line(1, "unclear"), line(2, "cleared")]) == []
    cleared = [line(0, "intent"), line(1, "unclear"), line(2, "cleared", "7")]
    assert rents_of(cleared) == [Rent("7", 2.0, NOW, NOW + 2 * HOUR_S)]
    assert rents_of([line(0, "intent"), line(1, "unclear", "7")]) == [Rent("7", 2.0, NOW, None)]


def test_rents_of_a_box_that_only_reap_found() -> None:
    assert rents_of([line(0, "intent"), line(1, "destroying", "7"), line(1.1, "destroyed", "7")]) == [
        Rent("7", 2.0, NOW, NOW + 1.1 * HOUR_S)
    ]


def test_rents_of_a_box_of_another_machine_are_not_known() -> None:
    assert rents_of([line(1, "destroying", "7"), line(1.1, "destroyed", "7")]) == []
