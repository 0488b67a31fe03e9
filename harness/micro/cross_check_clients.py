"""How the three clients play one load, and how their result files are read.

AIPerf and GuideLLM run from environments of their own, as their command lines are; both get the tokenizer of
the model folder, server-side token counts, greedy sampling, ignore_eos, and one worker process, as ours has.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.client.player import play
from harness.metrics import Slo, Window, cell_metrics
from harness.micro.cross_check_formulas import FORMULAS, HEADLINES, Played
from harness.rows import raw_frames
from harness.workload.build import build
from harness.workload.declared import ClosedLoad, ConstantLoad, FixedLength, TokenIdPrompts
from harness.workload.schedule import write

OURS = "llm-ladder"
PROMPT_TOKENS = 32
RAMP_S = 2
TIMES = ["sent_ns", "handed_ns", "first_ns", "last_ns", "done_ns"]
MAX_REQUESTS_PER_SLOT_S = 20
START_AND_END_S = 240
"""What the other clients may take beside playing: they import, start services and make prompts first."""


@dataclass(frozen=True)
class Load:
    """A closed loop (`concurrency`) or constant gaps (`rate_rps`), `tokens` output tokens each, `seconds`
    long."""

    concurrency: int | None
    rate_rps: float | None
    tokens: int
    seconds: int

    @property
    def name(self) -> str:
        shape = f"closed-{self.concurrency}" if self.concurrency else f"constant-{self.rate_rps:g}rps"
        return f"{shape}-n{self.tokens}"


@dataclass(frozen=True)
class Endpoint:
    """`tokenizer`: a model folder."""

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True)
class Outcome:
    """One play by one client. `reported` are the values that the client itself gives, by metric."""

    version: str
    reported: Mapping[str, float]
    played: Played

    def recomputed(self, client: str) -> dict[str, float]:
        """The same values by our reading of a client's formulas, from the rows of this play."""
        return {
            formula.metric: formula.value(self.played) for formula in FORMULAS if formula.client == client
        }


def play_ours(endpoint: Endpoint, load: Load, seed: int, folder: Path, version: str) -> Outcome:
    if load.concurrency:
        requests = load.concurrency * load.seconds * MAX_REQUESTS_PER_SLOT_S
        shape, duration_s = ClosedLoad(concurrency=load.concurrency, requests=requests), None
    else:
        shape, duration_s = ConstantLoad(rate_rps=load.rate_rps), float(load.seconds)
    prompts = TokenIdPrompts(length=FixedLength(tokens=PROMPT_TOKENS))
    schedule = build("cross-check", seed, shape, prompts, FixedLength(tokens=load.tokens), duration_s)
    write(schedule, folder / "schedule.jsonl")
    records, received, _ = play(
        folder / "schedule.jsonl",
        endpoint.url,
        endpoint.model,
        workers=1,
        seconds=float(load.seconds) if load.concurrency else None,
    )
    frames = raw_frames(OURS, records, received)
    window = Window(RAMP_S * 10**9, load.seconds * 10**9)
    requests = frames["requests.csv.gz"]
    metrics = cell_metrics(
        requests, frames["events.csv.gz"], frames["received.csv.gz"], window, Slo(None, None)
    )
    rows = requests.assign(handed_ns=requests["sent_ns"])[TIMES].astype(float)
    rows["tokens"] = requests["output_tokens"].fillna(0).astype(int)
    rows["ok"] = (requests["status"] == "ok").to_numpy(dtype=bool)
    reported = {metric: getattr(metrics, metric) for metric in HEADLINES}
    return Outcome(version, reported, Played(rows, window, Window(0, int(rows["done_ns"].max()))))


def aiperf_command(program: str, endpoint: Endpoint, load: Load, seed: int, folder: Path) -> list[str]:
    shape = (
        ["--concurrency", str(load.concurrency)]
        if load.concurrency
        else ["--request-rate", f"{load.rate_rps:g}", "--arrival-pattern", "constant"]
    )
    return [
        *(program, "profile", "--model", endpoint.model, "--url", endpoint.url, *shape),
        *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(endpoint.tokenizer)),
        *("--benchmark-duration", str(load.seconds), "--warmup-request-count", "8"),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(load.tokens), "--random-seed", str(seed)),
        *("--extra-inputs", json.dumps({"ignore_eos": True, "temperature": 0})),
        *("--use-legacy-max-tokens", "--use-server-token-count"),
        *("--workers-max", "1", "--record-processor-service-count", "1"),
        *("--no-server-metrics", "--no-gpu-telemetry", "--ui-type", "none"),
        *("--artifact-dir", str(folder)),
    ]


def guidellm_command(program: str, endpoint: Endpoint, load: Load, seed: int, folder: Path) -> list[str]:
    backend = {
        "kind": "openai_http",
        "target": endpoint.url,
        "model": endpoint.model,
        "request_format": "/v1/completions",
        "http2": False,
        "extras": {"body": {"temperature": 0}},
    }
    profile = (
        {"kind": "concurrent", "streams": [load.concurrency]}
        if load.concurrency
        else {"kind": "constant", "rate": [load.rate_rps]}
    )
    return [
        *(program, "run", "--backend", json.dumps(backend)),
        *("--profile", json.dumps(profile | {"warmup": RAMP_S})),
        *("--constraint", f"kind=max_duration,seconds={load.seconds}"),
        *("--tokenizer", f"kind=huggingface_auto,model={endpoint.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"),
        *("--seed", f"kind=static,value={seed}"),
        *("--output", f"kind=json,path={folder / 'report.json'}", "--disable-console"),
    ]


def play_aiperf(program: str, endpoint: Endpoint, load: Load, seed: int, folder: Path) -> Outcome:
    run(aiperf_command(program, endpoint, load, seed, folder), load)
    names = ("profile_export_aiperf.json", "profile_export.jsonl", "phase_manifest.json")
    return read_aiperf(*((folder / name).read_text() for name in names))


def play_guidellm(program: str, endpoint: Endpoint, load: Load, seed: int, folder: Path) -> Outcome:
    run(guidellm_command(program, endpoint, load, seed, folder), load)
    return read_guidellm((folder / "report.json").read_text())


def run(command: list[str], load: Load) -> None:
    """Raises RuntimeError with the end of its output when the other client fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        command,
        env=environment | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * load.seconds + START_AND_END_S,
    )
    if finished.returncode:
        said = finished.stdout[-3000:]
        raise RuntimeError(f"{' '.join(command[:2])} ended with {finished.returncode}: {said}")


def read_aiperf(summary: str, records: str, phases: str) -> Outcome:
    """From profile_export_aiperf.json, profile_export.jsonl and phase_manifest.json; requests of its warm-up
    are left out."""
    whole = json.loads(summary)
    lines = [json.loads(line) for line in records.splitlines()]
    phase = next(phase for phase in json.loads(phases)["phases"] if phase["phase_kind"] == "profiling")
    rows = [_aiperf_row(line) for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]
    origin_ns = min(row["sent_ns"] for row in rows)
    frame = _frame(rows, origin_ns)
    reported = {
        "output_tokens_per_s": whole["output_token_throughput"]["avg"],
        "ttft_ms_p50": whole["time_to_first_token"]["p50"],
        "ttft_from_handed_ms_p50": whole["http_req_waiting"]["p50"],
        "tpot_ms_p50": whole["inter_token_latency"]["p50"],
    }
    played = Played(
        frame,
        Window(0, int(frame["last_ns"].max())),
        Window(phase["start_ns"] - origin_ns, phase["end_ns"] - origin_ns),
    )
    return Outcome(whole["aiperf_version"], reported, played)


def _aiperf_row(line: dict[str, Any]) -> dict[str, Any]:
    start, metrics = line["metadata"]["request_start_ns"], line["metrics"]
    ok = not line.get("error") and "request_latency" in metrics

    def after_ms(metric: str) -> int | None:
        return start + round(metrics[metric]["value"] * 1e6) if ok else None

    return {
        "sent_ns": start,
        "handed_ns": after_ms("http_req_sending"),
        "first_ns": after_ms("time_to_first_token"),
        "last_ns": after_ms("request_latency"),
        "done_ns": line["metadata"]["request_end_ns"],
        "tokens": metrics["output_sequence_length"]["value"] if ok else 0,
        "ok": ok,
    }


def read_guidellm(report: str) -> Outcome:
    """From its JSON report. Requests it cut off at the end of the play are no good requests, but their tokens
    were received."""
    whole = json.loads(report)
    benchmark = whole["benchmarks"][0]
    metrics, times = benchmark["metrics"], benchmark["scheduler_metrics"]
    origin_ns = _ns(times["request_start_time"])
    frame = _frame(
        [
            _guidellm_row(request, status == "successful")
            for status, requests in benchmark["requests"].items()
            if status != "total"
            for request in requests or []
        ],
        origin_ns,
    )
    reported = {
        "output_tokens_per_s": metrics["output_tokens_per_second"]["total"]["mean"],
        "ttft_ms_p50": metrics["time_to_first_token_ms"]["successful"]["median"],
        "tpot_ms_p50": metrics["inter_token_latency_ms"]["successful"]["median"],
        "tpot_with_first_ms_p50": metrics["time_per_output_token_ms"]["successful"]["median"],
    }
    measured = Window(_ns(benchmark["start_time"]) - origin_ns, _ns(benchmark["end_time"]) - origin_ns)
    played = Played(frame, measured, Window(0, _ns(times["request_end_time"]) - origin_ns))
    return Outcome(whole["metadata"]["guidellm_version"], reported, played)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _guidellm_row(request: dict[str, Any], ok: bool) -> dict[str, Any]:
    times = request["info"]["timings"]

    def ns(name: str) -> int | None:
        return None if times[name] is None else _ns(times[name])

    return {
        "sent_ns": ns("request_start"),
        "handed_ns": ns("request_start"),
        "first_ns": ns("first_token_iteration"),
        "last_ns": ns("last_token_iteration"),
        "done_ns": ns("resolve_end") if times["request_end"] is None else ns("request_end"),
        "tokens": request["output_tokens"] or 0,
        "ok": ok,
    }


def _frame(rows: list[dict[str, Any]], origin_ns: int) -> pd.DataFrame:
    """Times as differences from the origin before they become floats, which hold no whole epoch in ns."""
    frame = pd.DataFrame(
        {
            name: [float("nan") if row[name] is None else float(row[name] - origin_ns) for row in rows]
            for name in TIMES
        }
    )
    frame["tokens"] = [int(row["tokens"]) for row in rows]
    frame["ok"] = [bool(row["ok"]) for row in rows]
    return frame.sort_values("sent_ns", ignore_index=True)
