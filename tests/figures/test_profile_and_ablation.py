"""Figures of the engine's own stages, from made runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from figures import ablation, profile
from figures.style import house_style, render
from harness.store import Run
from tests.figures.made_ladder import Ladder, make_ladder
from tests.figures.test_make_figures import texts
from tests.harness.made_profile import make_profile

PRESETS = ("eager", "fused", "graph", "queued", "full")
SPEED = dict(zip(PRESETS, (100.0, 200.0, 300.0, 450.0, 900.0), strict=True))


def made_ablation(folder: Path, **more: object) -> Run:
    """Tokens/s are SPEED times the requests in flight, to the digit."""
    changes = {
        ("engine", name, f"closed-{load}", None): {"output_tokens_per_s": speed * load}
        for name, speed in SPEED.items()
        for load in (1, 8, 64)
    }
    ladder = Ladder(
        lines=tuple(("engine", name) for name in PRESETS), concurrencies=(1, 8, 64), rates=(), repetitions=2,
        requests=1, changes=changes | more.get("changes", {}),
    )  # fmt: skip
    run = make_ladder(folder, "ablation", ladder)
    return replace(run, manifest=run.manifest.model_copy(update={"stage": "ablation"}))


def drawn(module, run: Run):
    with house_style():
        return module.draw(run)


def test_each_preset_is_held_against_the_first_and_the_one_before(tmp_path: Path) -> None:
    found = drawn(ablation, made_ablation(tmp_path))
    shown = texts(found)
    assert {"1 in flight", "8 in flight", "64 in flight"} <= set(shown)
    beside = [text for text in shown if "tok/s, n = " in text]
    assert len(beside) == 15
    assert [re.search(r"×[\d.]+", text)[0] for text in beside[1:5]] == ["×2.00", "×1.50", "×1.50", "×2.00"]
    assert beside[0].startswith("100 tok/s") and "×" not in beside[0]
    assert beside[9].startswith("7,200 tok/s")
    marks = [line.get_xdata()[0] for line in found.axes[0].lines if line.get_marker() == "o"]
    assert marks == pytest.approx([2, 3, 4.5, 9])
    assert any("eager" in text and "2 rep." not in text for text in shown)


def test_presets_stay_in_their_order_when_the_first_cell_is_invalid(tmp_path: Path) -> None:
    invalid = {("engine", "eager", "closed-1", 0): {"verdict": "INVALID", "reasons": "made so"}}
    found = drawn(ablation, made_ablation(tmp_path, changes=invalid))
    for axes in found.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == list(PRESETS)
    assert "not drawn: 1 INVALID cell" in "\n".join(texts(found))


def test_a_preset_that_was_not_measured_at_a_load_is_said(tmp_path: Path) -> None:
    invalid = {("engine", "graph", "closed-8", None): {"verdict": "INVALID", "reasons": "made so"}}
    shown = texts(drawn(ablation, made_ablation(tmp_path, changes=invalid)))
    assert shown.count("not measured") == 1


def test_other_runs_have_neither_figure(tmp_path: Path) -> None:
    ladder = Ladder(
        lines=(("engine", "default"),), concurrencies=(1, 8, 64), rates=(), repetitions=1, requests=1
    )
    run = make_ladder(tmp_path, "compare", ladder)
    assert ablation.draw(run) is None
    assert profile.draw(run) is None
    assert ablation.draw(make_profile(tmp_path)) is None


def test_a_step_is_drawn_in_its_categories_beside_its_floor(tmp_path: Path) -> None:
    run = make_profile(tmp_path, concurrencies=(1, 64))
    found = drawn(profile, run)
    shown = texts(found)
    assert "480 µs" in shown and "960 µs" in shown
    assert any(text.startswith("81.3 µs, 17 %") for text in shown)
    key, first, _ = found.axes
    assert {text.get_text() for text in key.texts} == {*profile.LOOKS, "pause"}
    widths = [bar.get_width() for bar in first.patches]
    assert widths[:5] == pytest.approx([160, 50, 82, 40, 40])
    assert sum(widths[:-1]) == pytest.approx(480.5)
    assert widths[-1] == pytest.approx(81.3018)


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_profile(tmp_path)
    with house_style():
        assert render(profile.draw(run)) == render(profile.draw(run))
