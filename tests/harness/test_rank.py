"""Choosing the tuned configuration, and whether the pinned ones are the measured winners."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import BadInput
from harness.plan import present_systems
from harness.rank import ranking, winner, winners
from harness.rows import serving_row
from harness.schema import ServingRow
from harness.stage import load_stage
from harness.store import list_runs, load_run
from harness.systems import SYSTEMS
from harness.systems.environment import Interpreter
from tests.harness.made import cell_record, identity, steady, tables

RESULTS = Path(__file__).parents[2] / "results" / "v1"


def row(system: str, config: str, load: str, tokens_per_s: float, **changes) -> ServingRow:
    declared = cell_record(system=system, config=config, name=load)
    made = serving_row(identity(), declared, tables(steady(140)))
    return made.model_copy(update={"output_tokens_per_s": tokens_per_s, **changes})


def test_the_highest_geometric_mean_wins():
    rows = [
        row("vllm", "even", "c64", 100), row("vllm", "even", "c256", 400),
        row("vllm", "lopsided", "c64", 10), row("vllm", "lopsided", "c256", 1000),
        row("sglang", "default", "c64", 1), row("sglang", "default", "c256", 1),
    ]  # fmt: skip
    ranked = ranking(rows)
    assert [(each.system, each.config) for each in ranked] == [
        ("vllm", "even"), ("vllm", "lopsided"), ("sglang", "default"),
    ]  # fmt: skip
    assert ranked[0].tokens_per_s == pytest.approx(200)
    assert ranked[1].tokens_per_s == pytest.approx(100)
    assert ranked[0].loads == {"c64 r0": 100, "c256 r0": 400}
    assert winner(rows, "vllm") == "even"


def test_a_configuration_with_an_invalid_cell_is_no_choice():
    rows = [row("vllm", "fast", "c64", 900, verdict="INVALID"), row("vllm", "slow", "c64", 1)]
    assert winner(rows, "vllm") == "slow"
    assert winner(rows[:1], "vllm") is None
    assert winner(rows, "sglang") is None


def test_winners_of_a_run_stand_for_the_pinned_configuration(tmp_path, monkeypatch):
    rows = [row("vllm", "default", "c64", 1), row("vllm", "tune-stream-interval", "c64", 2)]
    monkeypatch.setattr("harness.rank.load_run", lambda _: SimpleNamespace(records=lambda _: rows))
    found = winners(tmp_path, ["tune-here"])
    assert found["vllm"].flags == ("--stream-interval", "10")
    assert found["vllm"].reason == "tune-stream-interval, the fastest of run tune-here"
    plan = load_stage("compare").on("cuda")
    here = {name: Interpreter(name, Path("python")) for name in ("project", "vllm", "sglang")}
    chosen, _ = present_systems(plan, "cuda", here, found)
    assert [(each.label, each.configuration.flags) for each in chosen] == [
        ("engine", ()),
        ("vllm:tuned", ("--stream-interval", "10")),
        ("sglang:tuned", SYSTEMS["sglang"].configurations["tuned"].flags),
    ]
    rows[:] = [row("vllm", "default", "c64", 1, verdict="INVALID")]
    with pytest.raises(BadInput, match="run tune-here has no system with a configuration"):
        winners(tmp_path, ["tune-here"])


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_pinned_configuration_is_the_measured_winner(name):
    """The tuned flags are those that the newest committed run of the stage `tune` found fastest."""
    runs = [state for state in list_runs(RESULTS) if state.stage == "tune" and state.state == "complete"]
    for state in sorted(runs, key=lambda state: state.created_at, reverse=True):
        best = winner(load_run(state.path).records(ServingRow), name)
        if best is not None:
            configurations = SYSTEMS[name].configurations
            assert configurations["tuned"].settings == configurations[best].settings
            return
    pytest.skip(f"no committed run of the stage tune has {name}")
