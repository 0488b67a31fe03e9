"""Every preset gives the oracle's ids, and takes one step more than the one before it."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from engine.__main__ import main
from engine.config import PRESETS, ConfigError, Preset
from engine.model.llama import Llama
from engine.serving.engine import Engine
from engine.serving.plan import Plan
from engine.serving.request import Finish, SamplingParams
from engine.serving.runner import Runner
from engine.serving.startup import QUEUED_STEPS, EngineOptions, load_engine
from tests.engine.oracle import tiny_config, write_folder
from tests.engine.serving.test_engine import CONFIG, WEIGHTS, expected, make_engine, prompts, run

every_preset = pytest.mark.parametrize("preset", list(PRESETS.values()), ids=list(PRESETS))


def cpu_engine(preset: Preset, **changes: object) -> Engine:
    """As the preset is on a GPU, but for the capture."""
    engine = make_engine(preset=preset, queue_depth=QUEUED_STEPS if preset.queued else 1, **changes)
    engine.runner = Runner(engine.config, engine.runner.model, paged=preset.paged)
    return engine


def keep_plans(engine: Engine) -> list[Plan]:
    """The Plans that are launched from now on."""
    plans: list[Plan] = []
    launch = engine.runner.launch
    engine.runner.launch = lambda plan: plans.append(plan) or launch(plan)
    return plans


def assert_ids_are_the_oracles(engine: Engine, params: SamplingParams, longest: int = 40) -> None:
    texts = prompts(12, seed=1, longest=longest)
    for i, prompt in enumerate(texts):
        engine.add(i, prompt, params)
    results = run(engine)
    assert [results[i][0] for i in range(12)] == [expected(prompt, params) for prompt in texts]
    assert {finish for _, finish in results.values()} <= {Finish.STOP, Finish.LENGTH}


@every_preset
def test_ids_equal_the_oracle(preset: Preset) -> None:
    engine = cpu_engine(preset)
    plans = keep_plans(engine)
    assert_ids_are_the_oracles(engine, SamplingParams(max_tokens=20))
    assert any(len(plan.decodes) and plan.chunks for plan in plans) == preset.mixed


@every_preset
def test_preemption_changes_nothing(preset: Preset) -> None:
    engine = cpu_engine(preset, num_blocks=16, prefix_cache=False)
    assert_ids_are_the_oracles(engine, SamplingParams(max_tokens=30, ignore_eos=True), longest=12)
    assert engine.scheduler.preemptions > 0


@every_preset
def test_a_prompt_whose_last_chunk_is_one_token_is_a_prompt(preset: Preset) -> None:
    """Seventeen tokens under a budget of sixteen, while another request decodes."""
    engine = cpu_engine(preset)
    plans = keep_plans(engine)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    texts = [[5, 6, 7], list(range(20, 37)), list(range(40, 57))]
    engine.add(0, texts[0], params)
    engine.step()
    for i in (1, 2):
        engine.add(i, texts[i], params)
    results = run(engine)
    assert [results[i][0] for i in (1, 2)] == [expected(texts[i], params) for i in (1, 2)]
    assert any(len(plan.decodes) and plan.chunks for plan in plans) == preset.mixed


def test_prompts_that_keep_coming_do_not_stop_those_that_decode_for_good() -> None:
    """Slots are few: once all are taken, no prompt is left to come first."""
    engine = cpu_engine(PRESETS["queued"], max_num_seqs=2)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    for i in range(40):
        engine.add(i, [7, 8, i], params)
    assert list(run(engine)) == sorted(range(40))


def test_each_preset_takes_one_step_more() -> None:
    rungs = [dataclasses.astuple(preset) for preset in PRESETS.values()]
    for before, after in itertools.pairwise(rungs):
        assert sum(before) + 1 == sum(after)
        assert all(now >= then for then, now in zip(before, after, strict=True))
    assert all(rungs[-1]) and list(PRESETS)[-1] == "full"


def test_a_preset_reaches_the_engine_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tiny_config(), tmp_path)
    small = {"model": folder, "device": "cpu", "kv_cache_bytes": 1 << 20}
    assert load_engine(EngineOptions(**small)).config.preset == PRESETS["full"]
    assert load_engine(EngineOptions(**small, preset="fused")).config.preset == PRESETS["fused"]
    with pytest.raises(ConfigError, match="preset is 'fast'; known: eager, fused, graph, queued, full"):
        load_engine(EngineOptions(**small, preset="fast"))
    with pytest.raises(SystemExit):
        main(["serve", "--preset", "fast"])
    assert "invalid choice: 'fast'" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_preset
def test_ids_equal_the_oracle_on_a_gpu(preset: Preset) -> None:
    engine = make_engine(preset=preset, dtype="float32")
    config = dataclasses.replace(
        engine.config, device="cuda", queue_depth=QUEUED_STEPS if preset.queued else 1
    )
    engine = Engine(config, Llama(CONFIG, WEIGHTS, "cuda", torch.float32, config.max_model_len))
    assert (engine.runner._paged is not None) == preset.paged
    assert bool(engine.runner._padded and engine.runner._padded._captured) == preset.graphs
    assert_ids_are_the_oracles(engine, SamplingParams(max_tokens=20))
