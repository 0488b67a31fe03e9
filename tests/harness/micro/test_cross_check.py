"""Result files of AIPerf and GuideLLM as they wrote them, cut to a few requests; formulas on made rows."""

import json
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness.client.null_process import MODEL, Pace
from harness.client.null_server import NullServer
from harness.metrics import Window
from harness.micro.cross_check import NULL_LOADS, play_rows, read_plays, server_means, summarise
from harness.micro.cross_check_clients import (
    OURS,
    Endpoint,
    Load,
    Outcome,
    aiperf_command,
    guidellm_command,
    play_ours,
    read_aiperf,
    read_guidellm,
    run,
)
from harness.micro.cross_check_formulas import (
    FORMULAS,
    HEADLINES,
    Played,
    mean_tpot_ms,
    mean_ttft_ms,
    service_ms,
    true_values,
    turnaround_ms,
    weighted_median,
    with_turnaround,
    within,
)
from harness.micro.stamp import CHECKOUT

SERVER_TIMES = ("ttft", "tpot", "e2e")
RESULTS = CHECKOUT / "results/micro/cross_check"

AIPERF_SUMMARY = """{"aiperf_version":"0.13.0",
"output_token_throughput":{"unit":"tokens/sec","avg":598.7575214367101},
"time_to_first_token":{"unit":"ms","avg":21.147,"p50":20.597887},
"http_req_waiting":{"unit":"ms","avg":20.762,"p50":20.226644},
"inter_token_latency":{"unit":"ms","avg":5.001,"p50":5.000475984126984}}"""

AIPERF_RECORDS = """\
{"metadata":{"request_start_ns":1796046095965362799,"request_end_ns":1796046096303759945,\
"benchmark_phase":"warmup"},"metrics":{"time_to_first_token":{"value":23.394510999999998,"unit":"ms"},\
"request_latency":{"value":338.39714599999996,"unit":"ms"},\
"output_sequence_length":{"value":64,"unit":"tokens"},"http_req_sending":{"value":2.893127,"unit":"ms"}}}
{"metadata":{"request_start_ns":1796046097105704215,"request_end_ns":1796046097441570034,\
"benchmark_phase":"profiling"},"metrics":{"time_to_first_token":{"value":20.822352,"unit":"ms"},\
"request_latency":{"value":335.865819,"unit":"ms"},\
"output_sequence_length":{"value":64,"unit":"tokens"},"http_req_sending":{"value":0.204595,"unit":"ms"}}}
{"metadata":{"request_start_ns":1796046097205315001,"request_end_ns":1796046097540794834,\
"benchmark_phase":"profiling"},"metrics":{"time_to_first_token":{"value":20.501974,"unit":"ms"},\
"request_latency":{"value":335.479833,"unit":"ms"},\
"output_sequence_length":{"value":64,"unit":"tokens"},"http_req_sending":{"value":0.193819,"unit":"ms"}}}
"""

AIPERF_FAILED = """\
{"metadata":{"request_start_ns":1796046097305315001,"request_end_ns":1796046097315315001,\
"benchmark_phase":"profiling"},"metrics":{},"error":{"code":500,"message":"no"}}
"""

AIPERF_PHASES = """{"phases":[{"phase_kind":"warmup","start_ns":1796046095863901782,
"end_ns":1796046097002604083},{"phase_kind":"profiling","start_ns":1796046097004187166,
"end_ns":1796046102241699661}],"schema_version":1}"""

GUIDELLM_REPORT = """{"metadata":{"version":2,"guidellm_version":"0.8.1"},"benchmarks":[{
"start_time":1796045739.03002,"end_time":1796045742.134348,
"scheduler_metrics":{"request_start_time":1796045738.134348,"request_end_time":1796045742.134348},
"metrics":{"output_tokens_per_second":{"successful":{"mean":590.1},"total":{"mean":639.4298711377717}},
"time_to_first_token_ms":{"successful":{"median":22.14813232421875}},
"inter_token_latency_ms":{"successful":{"median":4.999796549479167}},
"time_per_output_token_ms":{"successful":{"median":5.259856581687927}}},
"requests":{"successful":[
{"output_tokens":64,"info":{"timings":{"request_start":1796045741.6349037,
"first_token_iteration":1796045741.6576765,"last_token_iteration":1796045741.9779491,
"request_end":1796045741.978276,"resolve_end":1796045741.978363}}}],
"errored":[],"incomplete":[
{"output_tokens":22,"info":{"timings":{"request_start":1796045742.0314782,
"first_token_iteration":1796045742.0525458,"last_token_iteration":1796045742.158777,
"request_end":null,"resolve_end":1796045742.159548}}},
{"output_tokens":null,"info":{"timings":{"request_start":1796045742.1314782,
"first_token_iteration":null,"last_token_iteration":null,
"request_end":null,"resolve_end":1796045742.159548}}}],
"total":null}}]}"""


def rows_of(requests, start_ms=0.0, end_ms=1000.0, whole_ms=(0.0, 1000.0)):
    """Requests as (send, handed over, first token, last token, done in ms, tokens, ok)."""
    names = ["sent_ns", "handed_ns", "first_ns", "last_ns", "done_ns", "tokens", "ok"]
    frame = pd.DataFrame(requests, columns=names)
    for name in names[:5]:
        frame[name] = frame[name].astype(float) * 1e6
    window = Window(round(start_ms * 1e6), round(end_ms * 1e6))
    return Played(frame, window, Window(*(round(edge * 1e6) for edge in whole_ms)))


def by_formula(client, played):
    return Outcome("1", {}, played).recomputed(client)


def test_aiperf_files_are_read_without_the_warm_up():
    outcome = read_aiperf(AIPERF_SUMMARY, AIPERF_RECORDS, AIPERF_PHASES)
    assert outcome.version == "0.13.0"
    assert outcome.reported == {
        "output_tokens_per_s": 598.7575214367101,
        "ttft_ms_p50": 20.597887,
        "ttft_from_handed_ms_p50": 20.226644,
        "tpot_ms_p50": 5.000475984126984,
    }
    requests = outcome.played.requests
    assert requests["sent_ns"].tolist() == [0, 99_610_786]
    assert requests["handed_ns"].tolist() == [204_595, 99_610_786 + 193_819]
    assert requests["first_ns"].tolist() == [20_822_352, 99_610_786 + 20_501_974]
    assert requests["last_ns"].tolist() == [335_865_819, 99_610_786 + 335_479_833]
    assert requests["tokens"].tolist() == [64, 64]
    assert outcome.played.whole.seconds == pytest.approx(5.237512495)
    found = outcome.recomputed("aiperf")
    assert found["output_tokens_per_s"] == pytest.approx(128 / 5.237512495)
    assert found["ttft_ms_p50"] == pytest.approx((20.822352 + 20.501974) / 2)
    assert found["tpot_ms_p50"] == pytest.approx((315.043467 + 314.977859) / 2 / 63)


def test_a_failed_request_of_aiperf_is_kept_and_in_no_value():
    whole = read_aiperf(AIPERF_SUMMARY, AIPERF_RECORDS + AIPERF_FAILED, AIPERF_PHASES)
    good = read_aiperf(AIPERF_SUMMARY, AIPERF_RECORDS, AIPERF_PHASES)
    assert whole.played.requests["ok"].tolist() == [True, True, False]
    assert whole.recomputed("aiperf") == good.recomputed("aiperf")


def test_guidellm_report_is_read_with_what_was_cut_off():
    outcome = read_guidellm(GUIDELLM_REPORT)
    assert outcome.version == "0.8.1"
    assert outcome.reported == {
        "output_tokens_per_s": 639.4298711377717,
        "ttft_ms_p50": 22.14813232421875,
        "tpot_ms_p50": 4.999796549479167,
        "tpot_with_first_ms_p50": 5.259856581687927,
    }
    requests = outcome.played.requests
    assert requests["ok"].tolist() == [True, False, False]
    assert requests["tokens"].tolist() == [64, 22, 0]
    assert math.isnan(requests["first_ns"].iloc[2])
    assert requests["done_ns"].iloc[1] == pytest.approx(4.0252e9, abs=1e3)
    assert outcome.played.window.start_ns == pytest.approx(0.895672e9, abs=1e3)
    assert outcome.played.window.end_ns == pytest.approx(4e9, abs=1e3)
    found = outcome.recomputed("guidellm")
    assert found["ttft_ms_p50"] == pytest.approx(22.7728, abs=1e-3)
    assert found["tpot_ms_p50"] == pytest.approx(320.2726 / 63, abs=1e-3)
    assert found["tpot_with_first_ms_p50"] == pytest.approx(343.0454 / 64, abs=1e-3)
    # 64 tokens, and of the 22, from 918.2 to 1024.4 ms before the end at 1000, those up to the end
    before_the_end = 1 + math.floor((1796045742.134348 - 1796045742.0525458) / (0.1062312 / 21))
    assert before_the_end == 17
    assert found["output_tokens_per_s"] == pytest.approx((64 + 17) / outcome.played.window.seconds)


def test_throughput_by_each_formula():
    played = rows_of(
        [
            (0, 0, 20, 120, 121, 11, True),
            (500, 500, 520, 1020, 1021, 6, True),
            (900, 900, 950, 960, 961, 2, False),
        ],
        start_ms=100,
        end_ms=1000,
        whole_ms=(-50, 1050),
    )
    assert by_formula("aiperf", played)["output_tokens_per_s"] == pytest.approx(17 / 1.1)
    # of the first, tokens at 100, 110, 120; of the second, those at 520, 620 … 920; both of the failed one
    assert by_formula("guidellm", played)["output_tokens_per_s"] == pytest.approx((3 + 5 + 2) / 0.9)


def test_a_first_token_that_guidellm_counts_as_output_time():
    paced = [(at, at, at + 20, at + 335, at + 336, 64, True) for at in (0, 336, 672)]
    found = by_formula("guidellm", rows_of(paced, end_ms=1100))
    assert found["tpot_ms_p50"] == pytest.approx(5)
    assert found["tpot_with_first_ms_p50"] == pytest.approx(335 / 64)
    truth = true_values(20, 5, 64, concurrency=4, rate_rps=None)
    assert found["tpot_with_first_ms_p50"] == pytest.approx(truth["tpot_with_first_ms_p50"])


def test_time_before_the_request_is_written_is_in_one_ttft_only():
    found = by_formula("aiperf", rows_of([(0, 2, 22, 337, 338, 64, True)]))
    assert (found["ttft_ms_p50"], found["ttft_from_handed_ms_p50"]) == pytest.approx((22, 20))


def test_means_of_the_window():
    played = rows_of([(0, 0, 20, 120, 121, 11, True), (200, 200, 240, 260, 261, 2, True)])
    assert (mean_ttft_ms(played), mean_tpot_ms(played)) == pytest.approx((30, 15))


def test_guidellm_leaves_out_what_lies_outside_its_window():
    played = rows_of(
        [(0, 0, 10, 90, 95, 9, True), (200, 200, 230, 430, 435, 11, True)], start_ms=100, end_ms=500
    )
    found = by_formula("guidellm", played)
    assert (found["ttft_ms_p50"], found["tpot_ms_p50"]) == pytest.approx((30, 20))
    assert by_formula("aiperf", played)["ttft_ms_p50"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("values", "weights", "median"),
    [([3, 1, 2], [1, 1, 1], 2), ([1, 2], [1, 1], 1), ([1, 2, 9], [1, 1, 3], 9), ([5], [64], 5)],
)
def test_weighted_median(values, weights, median):
    frame = pd.DataFrame({"value": values, "weight": weights}, dtype=float)
    assert weighted_median(frame["value"].to_numpy(), frame["weight"].to_numpy()) == median


def test_a_median_of_nothing_is_refused():
    empty = pd.Series(dtype=float).to_numpy()
    with pytest.raises(ValueError, match="at least one value"):
        weighted_median(empty, empty)


def test_turnaround_is_the_time_a_slot_stands_empty():
    slot = [(at, at, at + 20, at + 335, at + 336, 64, True) for at in (0, 345, 690)]
    assert turnaround_ms(rows_of(slot, end_ms=690), 1) == pytest.approx(10)
    assert turnaround_ms(rows_of(slot * 2, end_ms=690), 2) == pytest.approx(10)
    assert service_ms(rows_of(slot)) == pytest.approx(335)
    assert with_turnaround(700, 335, 0, 10) == pytest.approx(700 * 335 / 345)
    assert with_turnaround(700, 335, 10, 10) == 700


def test_true_values_follow_from_the_pace():
    closed = true_values(20, 5, 64, concurrency=4, rate_rps=None)
    assert closed["output_tokens_per_s"] == pytest.approx(4 * 64 / 0.335)
    assert true_values(20, 5, 64, concurrency=None, rate_rps=10)["output_tokens_per_s"] == 640


@pytest.mark.parametrize(
    ("ratio", "limit", "agree"),
    [
        (1, 0.03, True),
        (1.029, 0.03, True),
        (0.971, 0.03, True),
        (1.031, 0.03, False),
        (0.969, 0.03, False),
        (0.96, 0.05, True),
        (math.nan, 0.05, False),
    ],
)
def test_within(ratio, limit, agree):
    assert within(ratio, limit) is agree


def made_plays(throughput, turnaround, ttft=20.2):
    """One repetition of a closed loop: ours at 762 tokens/s and no turnaround, AIPerf as given."""
    same = {
        "load": "closed-4-n64",
        "target": "null-server",
        "repetition": 0,
        "ttft_ms_mean": 20.2,
        "tpot_ms_mean": 5.0,
        "service_ms": 335.8,
        "server_ttft_ms": None,
        "server_tpot_ms": None,
        "server_e2e_ms": None,
        "recomputed": 1.0,
        "load_average": 0.5,
        "machine": "m",
        "git_commit": "c",
        "started_at": "2026-11-30T00:00:00+00:00",
        "client_version": "1",
    }
    ours = {"output_tokens_per_s": 762.0, "ttft_ms_p50": 20.2, "tpot_ms_p50": 5.0}
    theirs = {"output_tokens_per_s": throughput, "ttft_ms_p50": ttft, "tpot_ms_p50": 5.0}
    return pd.DataFrame(
        [
            same
            | {
                "client": client,
                "formula_of": owner,
                "metric": metric,
                "value": value,
                "turnaround_ms": empty,
            }
            for client, owner, values, empty in (
                (OURS, OURS, ours, 0.1),
                (OURS, "aiperf", ours | {"output_tokens_per_s": 755.0}, 0.1),
                ("aiperf", "aiperf", theirs, turnaround),
            )
            for metric, value in values.items()
        ]
    )


@pytest.mark.parametrize(
    ("throughput", "turnaround", "agree", "explained"),
    [
        (755.0, 0.2, True, True),
        (735.0, 0.2, False, True),  # 735 / 762 is not, 735 / 755 is within 3 %
        (680.0, 33.0, False, True),  # slots that stand empty for 33 ms give 688
        (680.0, 0.2, False, False),
    ],
)
def test_a_difference_is_explained_by_numbers_only(throughput, turnaround, agree, explained):
    summary = summarise(made_plays(throughput, turnaround)).set_index(["client", "metric"])
    row = summary.loc["aiperf", "output_tokens_per_s"]
    assert (row["within"], row["explained"]) == (agree, explained)
    assert row["ratio_to_true"] == pytest.approx(throughput / (4 * 64 / 0.335), abs=1e-4)
    assert summary.loc[(OURS, "ttft_ms_p50"), "within"]


def test_turnaround_explains_no_latency():
    summary = summarise(made_plays(680.0, 33.0, ttft=22.0)).set_index(["client", "metric"])
    row = summary.loc["aiperf", "ttft_ms_p50"]
    assert (row["within"], row["explained"]) == (False, False)


def test_a_server_that_was_slower_for_one_client_is_told_from_a_client_that_measures_more():
    plays = made_plays(680.0, 0.2, ttft=30.0).astype({f"server_{name}_ms": float for name in SERVER_TIMES})
    slower = plays["client"] == "aiperf"
    plays["server_ttft_ms"] = slower.map({True: 29.7, False: 20.0})
    plays["ttft_ms_mean"] = slower.map({True: 30.0, False: 20.2})
    plays["server_e2e_ms"] = slower.map({True: 375.0, False: 335.0})
    row = summarise(plays).set_index(["client", "metric"]).loc["aiperf"]
    assert row.loc["ttft_ms_p50", "ratio_same_server"] == pytest.approx((30 / 29.7) / (20.2 / 20), abs=1e-4)
    assert row.loc["output_tokens_per_s", "ratio_same_server"] == pytest.approx(
        680 * 375.2 / 755 / 335.1, abs=1e-4
    )
    assert row["explained"].all()
    plays["server_ttft_ms"] = 20.0
    assert not summarise(plays).set_index(["client", "metric"]).loc[("aiperf", "ttft_ms_p50"), "explained"]


def test_means_of_a_play_by_the_servers_clock():
    total, count = "ladder_e2e_seconds_sum", "ladder_e2e_seconds_count"
    found = server_means({total: 10.0, count: 20}, {total: 12.0, count: 24})
    assert found == {"server_ttft_ms": None, "server_tpot_ms": None, "server_e2e_ms": 500.0}


def test_our_rows_have_every_formula_and_those_of_others_their_own():
    played = rows_of([(at, at, at + 20, at + 335, at + 336, 64, True) for at in (0, 336)])
    ours = play_rows(OURS, NULL_LOADS[0], Outcome("1", dict.fromkeys(HEADLINES, 1.0), played))
    assert [(row["formula_of"], row["metric"]) for row in ours] == [
        *((OURS, metric) for metric in HEADLINES),
        *((formula.client, formula.metric) for formula in FORMULAS),
    ]
    theirs = play_rows("aiperf", NULL_LOADS[2], Outcome("1", {"ttft_ms_p50": 20.5}, played))
    assert [(row["metric"], row["value"], row["recomputed"]) for row in theirs] == [
        ("ttft_ms_p50", 20.5, 20.0)
    ]
    assert theirs[0]["turnaround_ms"] is None


def test_command_lines_ask_for_the_same_load(tmp_path):
    endpoint = Endpoint("http://127.0.0.1:1", "null", Path("folder"))
    closed, constant = Load(4, None, 64, 22), Load(None, 10, 64, 22)
    assert "--concurrency 4" in " ".join(aiperf_command("aiperf", endpoint, closed, 1, tmp_path))
    assert "--request-rate 10 --arrival-pattern constant" in " ".join(
        aiperf_command("aiperf", endpoint, constant, 1, tmp_path)
    )

    def profile(load):
        command = guidellm_command("guidellm", endpoint, load, 1, tmp_path)
        return json.loads(command[command.index("--profile") + 1])

    assert profile(closed) == {"kind": "concurrent", "streams": [4], "warmup": 2}
    assert profile(constant) == {"kind": "constant", "rate": [10], "warmup": 2}


def test_a_client_that_fails_shows_what_it_said():
    with pytest.raises(RuntimeError, match="ended with 3: no such tokenizer"):
        run([sys.executable, "-c", "print('no such tokenizer'); exit(3)"], Load(1, None, 2, 1))


def test_our_client_against_a_paced_server(tmp_path):
    with NullServer(pace=Pace.from_ms(20, 5)) as server:
        endpoint = Endpoint(server.url, MODEL, tmp_path)
        outcome = play_ours(endpoint, Load(2, None, 8, 3), 1, tmp_path, "v")
    requests = outcome.played.requests
    assert requests["ok"].all()
    assert set(requests["tokens"]) == {8}
    assert outcome.reported["ttft_ms_p50"] >= 20
    assert all(math.isfinite(value) for value in outcome.recomputed("guidellm").values())


@pytest.mark.skipif(not (RESULTS / "cross_check.csv").is_file(), reason="no cross-check is stored")
def test_the_stored_summary_follows_from_the_stored_plays():
    summary = summarise(read_plays(RESULTS)).to_csv(index=False, lineterminator="\n")
    assert summary == (RESULTS / "cross_check.csv").read_text()


@pytest.mark.skipif(not (RESULTS / "cross_check.csv").is_file(), reason="no cross-check is stored")
def test_each_stored_value_is_what_our_reading_of_its_formula_gives():
    summary = pd.read_csv(RESULTS / "cross_check.csv")
    theirs = summary[summary["client"] != OURS]
    assert ((theirs["recomputed"] / theirs["value"] - 1).abs() < 0.01).all()
