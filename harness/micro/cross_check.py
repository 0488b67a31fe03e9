"""Do two independent clients, AIPerf and GuideLLM, measure what ours measures?

    python -m harness.micro.cross_check --tokenizer FOLDER --aiperf BIN --guidellm BIN
    python -m harness.micro.cross_check --tokenizer FOLDER --aiperf BIN --guidellm BIN --url URL --model NAME

Without a URL each play has a paced null server of its own, whose times are known; with one, the server there
is played. The clients take turns A B C C B A, one at a time. AIPerf and GuideLLM stay out of our environment:
BIN is the `aiperf` or `guidellm` of theirs, FOLDER a model folder, whose tokenizer they want.

Writes plays-TARGET.csv (each value of each play, beside the load average when the play began),
requests-TARGET.csv.gz (what each client saw of each request), and cross_check.csv, made from all plays files:
each value a client reports, its median over the repetitions, against ours and against the truth. `within`:
the ratio to ours is in the limit. `explained`: it is, or it is once our own requests are put under that
client's formula (ratio_same_formula), have its turnaround in a closed loop, too (ratio_same_turnaround), or
both are taken against the server's own clock in the same play (ratio_same_server).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.micro.cross_check_clients import (
    OURS,
    TIMES,
    Endpoint,
    Load,
    Outcome,
    play_aiperf,
    play_guidellm,
    play_ours,
)
from harness.micro.cross_check_formulas import (
    FORMULAS,
    HEADLINES,
    mean_tpot_ms,
    mean_ttft_ms,
    service_ms,
    true_values,
    turnaround_ms,
    with_turnaround,
    within,
)
from harness.micro.stamp import commit, machine
from harness.systems.counters import parse_counters

TTFT_MS, TPOT_MS = 20.0, 5.0
NULL_LOADS = (
    Load(concurrency=4, rate_rps=None, tokens=64, seconds=22),
    Load(concurrency=8, rate_rps=None, tokens=64, seconds=22),
    Load(concurrency=None, rate_rps=10, tokens=64, seconds=22),
)
ENGINE_LOADS = (Load(concurrency=2, rate_rps=None, tokens=16, seconds=40),)
REST_S = 3
NULL_SERVER, ENGINE = "null-server", "engine"

Play = Callable[[Endpoint, Load, int, Path], Outcome]


SERVER_MEANS = {
    f"server_{name}_ms": (f"ladder_{histogram}_seconds_sum", f"ladder_{histogram}_seconds_count")
    for name, histogram in (
        ("ttft", "time_to_first_token"),
        ("tpot", "time_per_output_token"),
        ("e2e", "e2e"),
    )
}
"""What our engine says of itself: a mean over a play is the growth of a sum / the growth of its count."""


def server_means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | None]:
    """Mean latencies of a play in ms by the server's own clock, from its counters before and after; None
    where it does not count them."""
    means: dict[str, float | None] = {}
    for name, (total, count) in SERVER_MEANS.items():
        requests = after.get(count, 0) - before.get(count, 0)
        means[name] = round((after[total] - before[total]) / requests * 1e3, 4) if requests else None
    return means


def counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return parse_counters(text, {sample: sample for pair in SERVER_MEANS.values() for sample in pair})


@contextlib.contextmanager
def target(options: argparse.Namespace) -> Iterator[tuple[Endpoint, Callable[[], dict[str, float | None]]]]:
    """The server of one play, and what it says of its own times once the play is over."""
    if options.url:
        before = counters(options.url)
        yield (
            Endpoint(options.url, options.model, options.tokenizer),
            lambda: server_means(before, counters(options.url)),
        )
        return
    with NullServer(pace=Pace.from_ms(TTFT_MS, TPOT_MS)) as server:

        def lateness() -> dict[str, float | None]:
            with urllib.request.urlopen(f"{server.url}/pacing", timeout=10) as answer:
                return {"server_late_us_p50": json.load(answer)["late_us_p50"]}

        yield Endpoint(server.url, MODEL, options.tokenizer), lateness


def play_rows(client: str, load: Load, outcome: Outcome) -> list[dict]:
    """A row for each value of a play: what the client reports by its own formulas and, of ours, what our
    requests give by everyone's."""
    values = [(client, metric, value) for metric, value in outcome.reported.items()]
    recomputed = {
        (formula.client, formula.metric): formula.value(outcome.played)
        for formula in FORMULAS
        if client in (OURS, formula.client)
    }
    if client == OURS:
        values += [(owner, metric, value) for (owner, metric), value in recomputed.items()]
    played = outcome.played
    empty_ms = round(turnaround_ms(played, load.concurrency), 4) if load.concurrency else None
    about = {
        "requests": len(played.requests),
        "not_ended_well": int((~played.requests["ok"]).sum()),
        "ttft_ms_mean": round(mean_ttft_ms(played), 4),
        "tpot_ms_mean": round(mean_tpot_ms(played), 4),
        "service_ms": round(service_ms(played), 4),
        "turnaround_ms": empty_ms,
    }
    return [
        {
            "formula_of": owner,
            "metric": metric,
            "value": round(value, 4),
            "recomputed": round(recomputed[owner, metric], 4) if (owner, metric) in recomputed else None,
        }
        | about
        for owner, metric, value in values
    ]


def measure(options: argparse.Namespace, loads: tuple[Load, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Plays all loads with all clients; the plays and the requests."""
    version = commit()
    clients: dict[str, Play] = {
        OURS: lambda endpoint, load, seed, folder: play_ours(endpoint, load, seed, folder, version),
        "aiperf": lambda *play: play_aiperf(options.aiperf, *play),
        "guidellm": lambda *play: play_guidellm(options.guidellm, *play),
    }
    stamp = {"machine": machine(), "git_commit": version}
    plays, requests = [], []
    order = [
        (repetition, load, client)
        for repetition in range(options.repetitions)
        for load in loads
        for client in (list(clients) if repetition % 2 == 0 else reversed(clients))
    ]
    for position, (repetition, load, client) in enumerate(order):
        time.sleep(REST_S)
        place = {
            "target": ENGINE if options.url else NULL_SERVER,
            "load": load.name,
            "client": client,
            "repetition": repetition,
        }
        began = {
            "position": position,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average": round(os.getloadavg()[0], 2),
        }
        with tempfile.TemporaryDirectory() as folder, target(options) as (endpoint, own_times):
            outcome = clients[client](endpoint, load, repetition + 1, Path(folder))
            server = own_times()
        rows = play_rows(client, load, outcome)
        plays += [place | {"client_version": outcome.version} | row | server | began | stamp for row in rows]
        requests.append(outcome.played.requests.assign(**place))
        reported = {metric: round(value, 3) for metric, value in outcome.reported.items()}
        print(*place.values(), began["load_average"], reported, server, flush=True)
    return pd.DataFrame(plays), pd.concat(requests, ignore_index=True)


def summarise(plays: pd.DataFrame) -> pd.DataFrame:
    """A row for each value that a client reports of a load: medians over the repetitions, beside ours."""
    rows = []
    for (name, load), group in plays.groupby(["target", "load"], sort=False):
        ours, truth = group[group["client"] == OURS], _truth(name, load)
        for (client, metric), own in group[group["client"] == group["formula_of"]].groupby(
            ["client", "metric"], sort=False
        ):
            headline, text = _described(client, metric)
            unit, limit, _ = HEADLINES[headline]
            value = own["value"].median()
            our_value = _median(ours, OURS, headline)
            same = _median(ours, client, metric)
            paced = None
            if headline == "output_tokens_per_s" and own["turnaround_ms"].notna().all():
                paced = with_turnaround(
                    same,
                    ours["service_ms"].median(),
                    ours["turnaround_ms"].median(),
                    own["turnaround_ms"].median(),
                )
            ratios = {
                "ratio_to_ours": value / our_value,
                "ratio_same_formula": value / same,
                "ratio_same_turnaround": value / paced if paced else None,
                "ratio_same_server": _over_server(own, metric)
                / _over_server(_rows(ours, client, metric), metric),
            }
            true = truth.get(metric)
            rows.append(
                {
                    "client": client,
                    "client_version": own["client_version"].iloc[0],
                    "target": name,
                    "load": load,
                    "metric": metric,
                    "unit": unit,
                    "repetitions": len(own),
                    "value": value,
                    "low": own["value"].min(),
                    "high": own["value"].max(),
                    "recomputed": own["recomputed"].median(),
                    "true_value": true,
                    "ratio_to_true": value / true if true else None,
                    "ours": our_value,
                    "ours_same_formula": same,
                    "ours_same_turnaround": paced,
                    **ratios,
                    "limit": limit,
                    "within": within(ratios["ratio_to_ours"], limit),
                    "explained": any(within(ratio, limit) for ratio in ratios.values() if ratio is not None),
                    "formula": text,
                    "turnaround_ms": own["turnaround_ms"].median(),
                    "load_average_max": own["load_average"].max(),
                    "machine": own["machine"].iloc[0],
                    "git_commit": own["git_commit"].iloc[0],
                    "date": own["started_at"].max()[:10],
                }
            )
    return pd.DataFrame(rows).round(4)


def _rows(plays: pd.DataFrame, formula_of: str, metric: str) -> pd.DataFrame:
    return plays[(plays["formula_of"] == formula_of) & (plays["metric"] == metric)]


def _median(plays: pd.DataFrame, formula_of: str, metric: str) -> float:
    return float(_rows(plays, formula_of, metric)["value"].median())


def _over_server(plays: pd.DataFrame, metric: str) -> float:
    """What a client found against what the server itself found in the same play, median over the plays: a
    server that is slower in one play than in another stands out of it. Of a closed loop, tokens/s x the cycle
    of a slot, which is the server's e2e and the client's turnaround. nan when the server says nothing."""
    if metric == "output_tokens_per_s":
        found = plays["value"] * (plays["server_e2e_ms"] + plays["turnaround_ms"].fillna(0))
    elif metric == "tpot_with_first_ms_p50":
        found = plays["service_ms"] / plays["server_e2e_ms"]
    elif metric == "tpot_ms_p50":
        found = plays["tpot_ms_mean"] / plays["server_tpot_ms"]
    else:
        found = plays["ttft_ms_mean"] / plays["server_ttft_ms"]
    return float(found.median())


def _described(client: str, metric: str) -> tuple[str, str]:
    """Our metric beside a client's value, and the client's formula."""
    if client == OURS:
        return metric, HEADLINES[metric][2]
    formula = next(each for each in FORMULAS if (each.client, each.metric) == (client, metric))
    return formula.headline, formula.text


def _truth(name: str, load_name: str) -> dict[str, float]:
    for load in NULL_LOADS:
        if name == NULL_SERVER and load.name == load_name:
            return dict(
                true_values(
                    TTFT_MS, TPOT_MS, load.tokens, concurrency=load.concurrency, rate_rps=load.rate_rps
                )
            )
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--aiperf", required=True, help="the aiperf program")
    parser.add_argument("--guidellm", required=True, help="the guidellm program")
    parser.add_argument("--tokenizer", required=True, type=Path, help="model folder with the tokenizer")
    parser.add_argument("--url", help="a server that runs; without it a paced null server")
    parser.add_argument("--model", help="name of its model")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/micro/cross_check"))
    options = parser.parse_args()
    if (options.url is None) != (options.model is None):
        parser.error("--url and --model belong together")

    plays, requests = measure(options, ENGINE_LOADS if options.url else NULL_LOADS)
    name = plays["target"].iloc[0]
    options.out.mkdir(parents=True, exist_ok=True)
    plays.to_csv(options.out / f"plays-{name}.csv", index=False, lineterminator="\n")
    requests[TIMES] = requests[TIMES].round().astype("Int64")
    packed = {"method": "gzip", "mtime": 0}
    requests.to_csv(options.out / f"requests-{name}.csv.gz", index=False, compression=packed)
    write_summary(options.out)


def read_plays(folder: Path) -> pd.DataFrame:
    """All plays of a folder, in the columns of any of them."""
    plays = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("plays-*.csv"))], ignore_index=True)
    return plays.reindex(columns=list(dict.fromkeys([*plays.columns, *SERVER_MEANS])))


def write_summary(folder: Path) -> None:
    """Makes cross_check.csv from the plays files of a folder."""
    summarise(read_plays(folder)).to_csv(folder / "cross_check.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
