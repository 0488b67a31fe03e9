"""Choosing the tuned configuration, and whether the pinned ones are the measured winners."""

from pathlib import Path

import pytest

from harness.rank import ranking, winner
from harness.rows import serving_row
from harness.schema import ServingRow
from harness.store import list_runs, load_run
from harness.systems import SYSTEMS
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
