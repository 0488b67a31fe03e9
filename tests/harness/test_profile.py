"""The stage `profile`: its sums by hand, the whole of it on a tiny model, and what `verify` sees."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.serving.request import SamplingParams, Update
from engine.serving.runner import Runner
from engine.serving.step_times import PARTS, StepTimes
from figures import profile as figure
from figures.style import house_style
from harness import profile_summary
from harness.__main__ import main
from harness.errors import BadInput
from harness.plan import build_cell
from harness.profile_summary import category, kernel_group, profile_rows, steps_row
from harness.profile_trace import load, measured
from harness.roofline import PEAKS, layer_parameters
from harness.schema import KernelRow, StepTimeRow
from harness.stage import ProfilePlan, load_stage
from harness.store import Run, load_run
from harness.tables import records_to_frame
from harness.verify import verify
from tests.engine.oracle import tiny_config, write_folder
from tests.engine.serving.test_engine import make_engine
from tests.figures.test_make_figures import texts
from tests.harness.made_profile import (
    H200,
    KERNELS,
    LLAMA_190M,
    TRACED,
    kernel_rows,
    make_profile,
    profile_plan,
    profiled,
    step_rows,
)

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
STAGE = """
description = "a tiny model, step by step"
model = "{model}"
max_model_len = 64
seed = 1
[cpu]
systems = ["engine"]
dtype = "float32"
[cpu.profile]
concurrencies = [1, 3]
prompts = {{ kind = "token_ids", length = [8, 16], ids = [0, {ids}] }}
output = [4, 8]
warm_steps = 4
timed_steps = 20
traced_steps = 6
"""


@pytest.mark.parametrize(
    ("name", "group", "kind"),
    [
        ("nvjet_tst_64x8_64x16_1x4_h_bz_coopB_TNT", "nvjet_tst_64x8_64x16_1x4_h_bz_coopB_TNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>(cutlass::Params)", "Kernel2", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", "splitKreduce_kernel", "gemm"),
        ("_few_rows_kernel", "_few_rows_kernel", "gemm"),
        ("_attention_kernel", "_attention_kernel", "attention"),
        ("_decode_kernel", "_decode_kernel", "attention"),
        ("_combine_kernel", "_combine_kernel", "attention"),
        ("_rms_norm_kernel", "_rms_norm_kernel", "norm"),
        ("_rope_and_write_kernel", "_rope_and_write_kernel", "rope"),
        ("_silu_mul_kernel", "_silu_mul_kernel", "activation"),
        ("_append_kernel", "_append_kernel", "sampling"),
        (
            "void at::native::reduce_kernel<512, 1, ReduceOp<float, at::native::MaxOps<float>>>(R)",
            "reduce_kernel",
            "sampling",
        ),
        ("void at::native::reduce_kernel<512, 1, func_wrapper_t<int>>(R)", "reduce_kernel", "other"),
        ("void at::native::index_copy_kernel_impl<OpaqueType<8>>(T)", "index_copy_kernel_impl", "other"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD", "copy"),
        ("Memset (Device)", "Memset", "copy"),
        ("_row_inputs_kernel", "_row_inputs_kernel", "other"),
        ("aten::mm", "aten::mm", "gemm"),
    ],
)  # fmt: skip
def test_kernels_are_grouped_by_name_and_sorted_by_what_they_do(name: str, group: str, kind: str) -> None:
    assert (kernel_group(name), category(name)) == (group, kind)


def schedule_of(concurrency: int):
    return build_cell(profile_plan((concurrency,)).cell_at(concurrency), 0, 1)


def test_shares_and_times_of_kernels_by_hand() -> None:
    schedule = schedule_of(64)
    kernels = records_to_frame(KernelRow, kernel_rows(schedule.name, 3))
    rows = profile_rows(profiled(schedule), kernels)
    launches = sum(KERNELS.values())
    assert {row.kernel: row.launches_per_step for row in rows} == {
        kernel_group(name): number for name, number in KERNELS.items()
    }
    for row in rows:
        assert row.step_us == pytest.approx(row.launches_per_step * 6)
        assert row.share == pytest.approx(row.launches_per_step / launches)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.step_us for row in rows] == sorted((row.step_us for row in rows), reverse=True)


def test_kernels_that_overlap_are_busy_once() -> None:
    schedule = schedule_of(1)
    spans = [(0, 10_000), (2_000, 3_000), (8_000, 4_000), (20_000, 5_000), (25_500, 4_500)]
    kernels = [
        KernelRow(load=schedule.name, kernel="k", start_ns=start, duration_ns=length, own_ns=length)
        for start, length in reversed(spans)
    ]
    steps = records_to_frame(StepTimeRow, step_rows(schedule.name, 1, 10))
    row = steps_row(profiled(schedule), steps, records_to_frame(KernelRow, kernels))
    assert row.busy_us == pytest.approx((12 + 5 + 4.5) / TRACED)
    assert row.traced_us == pytest.approx(30 / TRACED)
    assert row.pauses_per_step == pytest.approx(1 / TRACED)


def test_parts_of_a_step_add_up_to_its_wall_time() -> None:
    schedule = schedule_of(64)
    steps = records_to_frame(StepTimeRow, step_rows(schedule.name, 60, 480))
    row = steps_row(profiled(schedule), steps, records_to_frame(KernelRow, kernel_rows(schedule.name, 1)))
    assert (row.wall_us, row.wall_us_p50, row.tokens_per_step) == (480.5, 480.5, 60)
    assert (row.schedule_us, row.send_us, row.launch_us, row.collect_us, row.process_us) == (
        8,
        30,
        20,
        300,
        10,
    )
    assert row.other_us == pytest.approx(480.5 - 368)
    assert row.busy_us + row.gap_us == pytest.approx(row.wall_us)
    assert row.busy_share == pytest.approx(2 * sum(KERNELS.values()) / 480.5)


def test_the_floor_of_a_step_holds_its_weights_keys_and_prompts() -> None:
    """At C=1, where bytes bound it, from the formula's parts; its prompts ride along."""
    schedule = schedule_of(1)
    requests, mib = schedule.requests, 2 / PEAKS[H200.name].bytes_per_s
    tokens = sum(request.max_tokens for request in requests)
    weights = layer_parameters(LLAMA_190M) + 768 * 32_000
    contexts = sum(
        sum(len(request.prompt) + place for place in range(1, request.max_tokens)) for request in requests
    )
    rows = sum(len(request.prompt) + request.max_tokens - 1 for request in requests)
    numbers = weights + (768 * rows + 2 * 20 * 768 * contexts) / tokens
    assert profile_summary.floor_us(profiled(schedule)) == pytest.approx(1e6 * mib * numbers)


def test_the_host_time_of_a_step_is_told_by_part() -> None:
    engine = make_engine()
    process = engine.scheduler.process
    engine.scheduler.process = lambda rows: time.sleep(0.05) or process(rows)
    times = StepTimes(engine)
    engine.add(0, [5, 6, 7], PARAMS)
    engine.step()
    spent = times.take()
    assert set(spent) == set(PARTS) == set(profile_summary.PARTS)
    assert spent["process"] >= 50_000_000
    assert all(spent[part] > 0 for part in ("schedule", "launch", "collect"))
    assert times.take() == dict.fromkeys(PARTS, 0)


def test_packing_and_sending_is_no_part_of_the_launch() -> None:
    engine = make_engine()
    engine.runner = runner = Runner(engine.config, engine.runner.model, paged=True)
    send = runner._paged.send
    runner._paged.send = lambda *inputs: time.sleep(0.2) or send(*inputs)
    times = StepTimes(engine)
    engine.add(0, [5, 6, 7], PARAMS)
    engine.step()
    spent = times.take()
    assert spent["send"] >= 200_000_000 > spent["launch"] > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tiny_config(vocab_size=256), tmp_path_factory.mktemp("tiny"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])).save(
        str(folder / "tokenizer.json")
    )
    return folder


@pytest.fixture(scope="module")
def place(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    (folder / "tiny.toml").write_text(STAGE.format(model=model, ids=256))
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    """The whole stage on the CPU, through the command line."""
    command = ["run", str(place / "tiny.toml"), "--device", "cpu", "--run", "p", "--results"]
    assert main([*command, str(place / "results")]) == 0
    return load_run(place / "results/p")


def test_a_run_times_and_traces_every_load(run: Run) -> None:
    steps, kernels = run.table("step_times.csv.gz"), run.table("kernels.csv.gz")
    summary, profile = run.table("steps.csv"), run.table("profile.csv")
    assert summary["concurrency"].tolist() == [1, 3]
    assert steps.groupby("load").size().tolist() == [20, 20]
    # Without steps queued ahead a successor is admitted in the next step: each in flight gives a token.
    assert steps.groupby("load")["tokens"].agg(["min", "max"]).to_numpy().tolist() == [[1, 1], [3, 3]]
    assert (summary["wall_us"] > summary["launch_us"]).all()
    assert set(kernels["load"]) == set(profile["load"]) == set(summary["load"])
    assert profile.groupby("load")["share"].sum().tolist() == pytest.approx([1, 1], abs=1e-4)
    assert (profile[profile["category"] == "gemm"].groupby("load")["launches_per_step"].sum() > 6).all()
    assert verify(run.path) == []
    assert run.serving.empty
    assert [info.file for info in run.manifest.schedules] == [
        "schedules/closed-c1-r0.jsonl.gz", "schedules/closed-c3-r0.jsonl.gz",
    ]  # fmt: skip


def test_its_figure_says_that_no_floor_is_known_of_a_cpu(run: Run) -> None:
    with house_style():
        shown = texts(figure.draw(run))
    assert "Floor: not known for this machine." in "\n".join(shown)
    assert {"1 in flight", "3 in flight"} <= set(shown)


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("profile.csv", b"0.412371", b"0.422371", "profile.csv is not what the raw rows give"),
        ("steps.csv", b"0.807492", b"0.907492", "steps.csv is not what the raw rows give"),
        ("kernels.csv.gz", b",2000\n", b",2001\n", "profile.csv is not what the raw rows give"),
        ("step_times.csv.gz", b",10000\n", b",10001\n", "steps.csv is not what the raw rows give"),
    ],
)
def test_verify_sees_a_changed_number(tmp_path: Path, file: str, old: bytes, new: bytes, said: str) -> None:
    run = make_profile(tmp_path)
    assert verify(run.path) == []
    path = run.path / file
    packed = file.endswith(".gz")
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    assert old in content
    changed = content.replace(old, new)
    path.write_bytes(gzip.compress(changed, mtime=0) if packed else changed)
    assert said in verify(run.path)


def test_a_model_that_lacks_the_token_ids_is_told(model: Path) -> None:
    plan = profile_plan((1,))
    with pytest.raises(BadInput, match=r"engine: token id .* is outside the vocabulary of 256"):
        measured(load(model, "cpu", "float32", 256), plan, [build_cell(plan.cell_at(1), 0, 1)])


def test_no_prompt_is_found_in_the_cache_that_a_pass_before_has_filled(model: Path) -> None:
    plan = ProfilePlan(
        concurrencies=(2,), prompts={"kind": "token_ids", "length": [40, 60], "ids": [0, 256]},
        output=[4, 8], warm_steps=4, timed_steps=10, traced_steps=4,
    )  # fmt: skip
    engine = load(model, "cpu", "float32", 128)
    step, cached = engine.step, []

    def counted() -> list[Update]:
        updates = step()
        cached.extend(update.cached_tokens for update in updates)
        return updates

    engine.step = counted
    measured(engine, plan, [build_cell(plan.cell_at(2), 0, 1)])
    assert len(cached) > 2 * (4 + 10 + 4 + 4) - 4
    assert set(cached) == {0}


def test_a_context_that_the_model_lacks_is_told(model: Path) -> None:
    with pytest.raises(BadInput, match="engine: max_model_len is 512; the model allows 2 … 256"):
        load(model, "cpu", "float32", 512)


def test_another_system_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(place / "tiny.toml"), "--device", "cpu", "--system", "engine:eager", "--results"]
    assert main([*command, str(place / "results")]) == 2
    assert "looks into the engine of this process, nothing else" in capsys.readouterr().err


def test_a_profile_has_a_stage_of_its_own(place: Path, model: Path) -> None:
    text = STAGE.format(model=model, ids=256).replace(
        "[cpu.profile]",
        '[cpu.correctness]\nprompts = 1\nmax_tokens = 1\nsystems = ["engine"]\n[cpu.profile]',
    )
    (place / "both.toml").write_text(text)
    with pytest.raises(BadInput, match="a profile has a stage of its own"):
        load_stage(str(place / "both.toml"))


def test_the_schedules_of_the_stage_outlast_its_steps() -> None:
    """Every request might be of the shortest length, and each gives a token a step."""
    plan = load_stage("profile").on("cuda").profile
    for concurrency in plan.concurrencies:
        requests = build_cell(plan.cell_at(concurrency), 0, 1).requests
        steps = plan.warm_steps + max(plan.timed_steps, plan.traced_steps)
        assert len(requests) * 32 >= concurrency * (steps + 32)
