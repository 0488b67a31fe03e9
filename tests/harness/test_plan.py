"""In which order cells are played, and where a run may be cut."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.plan import ChosenSystem, alternating, comparable_blocks, planned_cells, timeline
from harness.stage import CeilingPlan, CellPlan, DevicePlan, SearchPlan, WarmupPlan
from harness.systems.environment import Interpreter
from harness.systems.null import NULL
from harness.verdict import Limits
from harness.workload.declared import ClosedLoad, UniformLength

PYTHON = Interpreter("project", Path("python"))


def system(name: str) -> ChosenSystem:
    return ChosenSystem(replace(NULL, name=name), "default", PYTHON)


A, B, C = (system(name) for name in "abc")
OUTPUT = UniformLength(low=8, high=8)


def cell(name: str) -> CellPlan:
    return CellPlan(
        name=name, load=ClosedLoad(concurrency=1, requests=10), output=OUTPUT, ramp_s=1, window_s=9
    )


def plan(*names: str, repetitions: int = 2, resident: bool = True, **changes) -> DevicePlan:
    fields = dict(
        systems=("a", "b", "c"),
        dtype="float32",
        client_workers=1,
        repetitions=repetitions,
        residents={"a": 0.1, "b": 0.2, "c": 0.3} if resident else None,
        limits=Limits(lag_p99_ms=10),
        warmup=WarmupPlan(requests=1, concurrency=1, output=OUTPUT),
        cells=tuple(cell(name) for name in names),
    )
    return DevicePlan(**(fields | changes))


def order(cells) -> str:
    return " ".join(f"{planned.chosen.label}/{planned.cell.name}{planned.repetition}" for planned in cells)


def test_residents_alternate_within_each_load():
    cells = planned_cells(plan("x", "y", repetitions=3), [A, B, C])
    assert order(cells) == (
        "a/x0 b/x0 c/x0 c/x1 b/x1 a/x1 c/y0 b/y0 a/y0 a/y1 b/y1 c/y1 a/x2 b/x2 c/x2 c/y2 b/y2 a/y2"
    )
    assert [planned.position for planned in cells] == list(range(18))


def test_one_server_at_a_time_plays_all_loads_and_turns_back():
    cells = planned_cells(plan("x", "y", resident=False), [A, B])
    assert order(cells) == "a/x0 a/y0 b/x0 b/y0 b/x1 b/y1 a/x1 a/y1"


def test_linear_drift_meets_all_systems_alike():
    """The mean position of each system is the same: what grows with position cancels in every comparison."""
    for resident in (True, False):
        cells = planned_cells(plan("x", "y", repetitions=4, resident=resident), [A, B, C])
        means = {
            chosen.label: sum(p.position for p in cells if p.chosen is chosen) / 8 for chosen in (A, B, C)
        }
        assert len(set(means.values())) == 1, means


@pytest.mark.parametrize("resident", [True, False])
def test_every_block_has_all_systems_alike(resident):
    cells = planned_cells(plan("x", "y", repetitions=3, resident=resident), [A, B, C])
    blocks = comparable_blocks(cells)
    assert [planned for block in blocks for planned in block] == cells
    for block in blocks:
        played = {
            chosen.label: sorted(p.schedule for p in block if p.chosen is chosen) for chosen in (A, B, C)
        }
        assert played["a"] == played["b"] == played["c"] != []
    assert len(blocks) == (6 if resident else 3)


def test_repetitions_have_schedules_of_their_own():
    cells = planned_cells(plan("x"), [A, B])
    assert [planned.schedule for planned in cells] == ["x-r0", "x-r0", "x-r1", "x-r1"]


def test_alternating_does_not_change_its_argument():
    systems = [A, B]
    assert [chosen.label for chosen in alternating(systems, 1)] == ["b", "a"]
    assert systems == [A, B]


def test_the_timeline_adds_up():
    search = SearchPlan(
        name="knee", low_rps=1, high_rps=8, ratio=2, repetitions=2, output=OUTPUT, ramp_s=1, window_s=9
    )
    steps = timeline(
        plan("x", ceiling=CeilingPlan(concurrency=1, seconds=3), searches=(search,)), "cpu", [A, B]
    )
    cell_s, start_s = 11.5, NULL.usual_startup_s
    cells = [step for step in steps if step.planned is not None]
    assert cells[-1].ends_s == pytest.approx(5 + 2 * start_s + 4 * cell_s)
    # Four rates have five answers: three halvings, twice each, by two systems.
    assert steps[-1].ends_s == pytest.approx(cells[-1].ends_s + 2 * 3 * 2 * cell_s)
    # A block fits whole or not at all.
    just_short = cells[1].ends_s - 0.1
    assert [step.fits(just_short) for step in cells] == [False] * 4
    assert [step.fits(cells[1].ends_s) for step in cells] == [True, True, False, False]
    assert all(step.fits(None) for step in steps)


def test_residents_need_a_share_each_and_no_more_than_all():
    assert plan("x", residents={"a": 0.1, "b": 0.2, "c": 0.3}).memory_share("b:tuned") == 0.2
    with pytest.raises(ValueError, match="residents has no memory share for c"):
        plan("x", residents={"a": 0.1, "b": 0.2})
    with pytest.raises(ValueError, match=r"memory shares of residents add up to 1.1, more than 1"):
        plan("x", residents={"a": 0.5, "b": 0.5, "c": 0.1})


def test_other_systems_stay_resident_only_where_their_shares_are_known():
    declared = plan("x", residents={"a": 0.1, "b": 0.2, "c": 0.3})
    assert declared.of_systems(()) is declared
    assert declared.of_systems(("a", "b:fast")).residents is not None
    assert declared.of_systems(("a", "http://there")).residents is None
