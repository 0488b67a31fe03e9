"""Faults that other load generators had in public, each with the tests that fail where this one has it.

1 to 51 are faults that their users reported, 52 to 59 ones that were found by reading their source. Where a
fault cannot occur here by construction, a test holds the construction. A test of this file checks that each
test named is collected.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent.relative_to(ROOT)

CLIENT, LOAD, ROWS, RUN = (f"test_fault_{part}.py" for part in ("client", "load", "metrics", "whole_run"))
METRICS, VERDICT = "test_metrics.py", "test_verdict.py"
ADVERSARY, PLAYER, STATISTICS, SSE, TOKENS, WIRE, COMPLETION = (
    f"client/test_{part}.py"
    for part in ("adversary", "player", "statistics", "sse", "tokens", "wire", "completion")
)
ARRIVALS, BUILD, DECLARED, STREAMS, TOKEN_IDS = (
    f"workload/test_{part}.py" for part in ("arrivals", "build", "declared", "streams", "token_ids")
)
SYSTEMS = "systems/test_systems.py"

Test = tuple[str, str]


def truth(behaviour: str) -> Test:
    """What the client makes of a server that behaves so."""
    return ADVERSARY, f"test_record_tells_the_truth[{behaviour}]"


NEVER_OK = (CLIENT, "test_an_answer_without_all_its_tokens_is_never_ok")
FIRST_TEXT = (CLIENT, "test_without_running_usage_the_first_token_is_that_of_the_first_text")
ABSOLUTE_TIMES = (CLIENT, "test_an_open_loop_asks_for_absolute_times_whatever_the_clock_says")
IN_FLIGHT = (CLIENT, "test_more_than_a_hundred_are_in_flight_at_once")
STAMPS = (CLIENT, "test_stamps_are_taken_before_anything_is_parsed")
STATED = (LOAD, "test_every_timed_request_states_what_it_asks")
OWN_SEED = (LOAD, "test_a_schedule_depends_on_its_own_seed_alone")
UNSEEN = (LOAD, "test_no_stage_measures_a_prompt_that_its_servers_have_seen")
ASKED = (RUN, "test_what_a_server_is_asked_in_a_run")
WARM_UP = (RUN, "test_warm_up_keeps_to_its_slots_and_is_over_before_the_first_cell")
BROKEN = (RUN, "test_a_server_that_does_not_work_is_never_a_result")
CUT_INTO_EVENTS = (ROWS, "test_throughput_counts_tokens_however_they_are_cut_into_events")
LATE_END = (ROWS, "test_a_late_end_of_the_play_changes_no_throughput")
FROM_INTENDED = (METRICS, "test_latency_counts_from_the_intended_send_not_from_the_late_one")
FIRST_EVENT = (METRICS, "test_tokens_of_the_first_event_do_not_count_as_speed")
FAILED_IS_LATE = (METRICS, "test_a_failed_request_is_infinitely_late_and_not_good")
WHERE_RECEIVED = (METRICS, "test_tokens_count_where_they_were_received_not_where_their_request_began")
CLOSED_STALL = (CLIENT, "test_a_stall_of_the_client_in_a_closed_loop_is_seen")
REASONS = (VERDICT, "test_each_reason_alone_makes_a_cell_invalid")
SERVER_STALLS = (STATISTICS, "test_stall_of_the_server_is_seen_by_every_request_due_in_it")
CLIENT_STALLS = (STATISTICS, "test_stall_of_the_client_counts_against_it_and_not_for_the_server")
ALL_SENT = (PLAYER, "test_open_loop_sends_everything_and_nothing_early")
DIFFERENCES = (TOKENS, "test_running_usage_gives_differences")
LONG_LINE = (SSE, "test_very_long_line_in_small_reads")
CONSTANT = (ARRIVALS, "test_constant_arrivals_are_exact_and_absolute")
EXACT_IDS = (TOKEN_IDS, "test_lengths_are_exact_and_ids_in_range")
AS_BYTES = (WIRE, "test_bytes_of_a_request")

FAULTS: dict[int, tuple[str, list[Test]]] = {
    1: ("a chunk with a role alone is the first token", [truth("role_chunk"), NEVER_OK, FIRST_TEXT]),
    2: (
        "an empty text is the first token, and the wait for it moves into the gaps",
        [truth("empty_first_chunk"), NEVER_OK, FIRST_TEXT],
    ),
    3: (
        "TTFT is in the list of gaps",
        [(METRICS, "test_gaps_between_events_leave_out_the_first_and_other_requests")],
    ),
    4: (
        "a request without a token is a success with TTFT 0",
        [NEVER_OK, truth("usage_missing"), FAILED_IS_LATE],
    ),
    5: ("latency per token is taken per chunk", [FIRST_EVENT, DIFFERENCES]),
    6: ("chunks are counted as tokens/s", [CUT_INTO_EVENTS, WHERE_RECEIVED]),
    7: ("a first chunk of many tokens looks like speed", [FIRST_EVENT, truth("many_tokens_in_first_chunk")]),
    8: (
        "TPOT is taken from chunks",
        [FIRST_EVENT, truth("many_tokens_in_first_chunk"), DIFFERENCES],
    ),
    9: (
        "chunks are tokenized again, each with a token for the beginning",
        [DIFFERENCES, (CLIENT, "test_what_measures_has_no_tokenizer")],
    ),
    10: ("random ids become text and other ids on their way", [AS_BYTES, EXACT_IDS, STATED]),
    11: (
        "the client counts prompts itself, without the chat template",
        [truth("good"), (CLIENT, "test_what_measures_has_no_tokenizer")],
    ),
    12: (
        "white space is lost when answers are tokenized again",
        [(CLIENT, "test_white_space_is_kept_and_tokens_are_the_servers")],
    ),
    13: ("relative sleeps add up", [ABSOLUTE_TIMES, CONSTANT, REASONS]),
    14: ("the loop sends less than the rate", [ABSOLUTE_TIMES, ALL_SENT, REASONS]),
    15: (
        "slots that come free send above the rate",
        [IN_FLIGHT, ABSOLUTE_TIMES, ("test_stage.py", "test_a_wrong_stage_file_is_named_with_the_field")],
    ),
    16: (
        "the wait behind a cap is left out",
        [(CLIENT, "test_a_slot_counts_from_when_it_became_free"), ALL_SENT, SERVER_STALLS, FROM_INTENDED],
    ),
    17: ("latency starts at the actual send", [CLIENT_STALLS, FROM_INTENDED]),
    18: (
        "long prompts and long lines meet a small buffer",
        [(CLIENT, "test_very_long_prompts_arrive_whole"), truth("very_long_line"), LONG_LINE],
    ),
    19: (
        "handshakes are inside TTFT",
        [(CLIENT, "test_connections_are_opened_once_and_kept"), (WIRE, "test_other_urls_are_refused")],
    ),
    20: (
        "the client adds tens of ms to TTFT",
        [
            (CLIENT, "test_a_request_leaves_in_one_piece_at_once"),
            STAMPS,
            (ADVERSARY, "test_stamps_are_those_of_the_servers_writes"),
        ],
    ),
    21: ("a hundred connections are all there are", [IN_FLIGHT]),
    22: (
        "the client is slower the more streams it has",
        [
            (LOAD, "test_every_client_has_a_ceiling_at_the_streams_it_keeps_open"),
            (VERDICT, "test_headroom_is_invalid_noted_or_fine"),
            ("test_run.py", "test_the_manifest_says_what_ran"),
        ],
    ),
    23: ("delays of the event loop look like the server's", [CLIENT_STALLS, STAMPS, REASONS, CLOSED_STALL]),
    24: ("stamps are taken after parsing", [STAMPS]),
    25: (
        "a seed meets the prefix cache of its last run",
        [
            ("test_plan.py", "test_repetitions_have_schedules_of_their_own"),
            UNSEEN,
            (VERDICT, "test_a_warm_prefix_cache_is_a_reason_where_prompts_share_nothing"),
        ],
    ),
    26: (
        "the state of the cache is neither controlled nor recorded",
        [
            (ROWS, "test_what_the_cache_answered_is_recorded_and_judged"),
            (SYSTEMS, "test_a_configuration_without_the_prefix_cache_says_so"),
            (VERDICT, "test_a_cache_that_the_server_says_nothing_of_is_noted"),
        ],
    ),
    27: ("warm-up uses what is then measured, or overlaps with it", [WARM_UP, UNSEEN]),
    28: ("warm-up ignores the cap", [WARM_UP]),
    29: (
        "the length asked for stands in for that of the answer",
        [truth("too_few_tokens"), truth("stopped_early"), truth("too_many_tokens")],
    ),
    30: ("ignore_eos is not passed, or in a trial request only", [STATED, ASKED]),
    31: (
        "real lengths are below the declared ones",
        [
            EXACT_IDS,
            (BUILD, "test_lengths_follow_their_laws"),
            truth("too_few_tokens"),
            (CLIENT, "test_a_server_that_cuts_a_prompt_of_token_ids_is_a_mismatch"),
        ],
    ),
    32: (
        "a range of lengths means another thing in each tool",
        [
            (DECLARED, "test_two_numbers_are_a_uniform_law"),
            (STREAMS, "test_uniform_int_reaches_both_ends_and_nothing_else"),
            (BUILD, "test_workloads_in_words"),
        ],
    ),
    33: (
        "the context length is tuned to the workload",
        [
            (LOAD, "test_the_context_length_of_a_stage_is_one_for_all"),
            (LOAD, "test_no_configuration_has_a_context_length_of_its_own"),
            (SYSTEMS, "test_every_system_serves_the_same_target"),
        ],
    ),
    34: ("the default temperature is not stated, and changes", [STATED, ASKED, AS_BYTES]),
    35: ("TTFT 0 and no gaps, and yet a success", [NEVER_OK, FAILED_IS_LATE]),
    36: (
        "an error object in a 200 stream is a success",
        [
            truth("error_object_in_the_stream"),
            truth("error_object_before_done"),
            truth("error_event_by_name"),
            (COMPLETION, "test_what_is_no_completion_is_an_error"),
        ],
    ),
    37: (
        "a dead engine passes with no tokens",
        [
            BROKEN,
            REASONS,
            ("test_run.py", "test_a_server_that_does_not_start_makes_rows_that_say_so"),
        ],
    ),
    38: (
        "retries hide a 503",
        [BROKEN, (ADVERSARY, "test_failed_slots_rest_and_are_not_retried"), truth("too_many_requests")],
    ),
    39: (
        "the number of failures is not shown",
        [(ROWS, "test_the_number_of_failures_is_in_the_row_and_said")],
    ),
    40: (
        "failures are left out of percentiles, or mixed into them",
        [(ROWS, "test_failures_move_percentiles_up_and_never_down"), FAILED_IS_LATE],
    ),
    41: (
        "tokens of requests that were given up are lost",
        [
            (ROWS, "test_tokens_of_an_answer_that_was_given_up_were_received"),
            (ADVERSARY, "test_verdict_and_metrics_of_the_cell[reset_in_the_stream]"),
            (ADVERSARY, "test_stalls_end_at_the_time_limit"),
        ],
    ),
    42: (
        "the end cuts off what is to be sent, and the drain is part of the throughput",
        [ALL_SENT, REASONS, LATE_END, WHERE_RECEIVED],
    ),
    43: (
        "TTFT is negative, and tokens without text are no first token",
        [
            (ADVERSARY, "test_times_are_in_order"),
            (TOKENS, "test_tokens_without_text_count_and_empty_events_do_not"),
            NEVER_OK,
        ],
    ),
    44: (
        "the seed misses a generator",
        [OWN_SEED, (BUILD, "test_golden_hash")],
    ),
    45: ("prompts are seeded with hash()", [OWN_SEED]),
    46: ("constant gaps are exponential", [CONSTANT]),
    47: (
        "a character over two reads fails the request",
        [truth("utf8_split_over_reads"), (SSE, "test_character_cut_in_two_is_whole_again")],
    ),
    48: ("a long line fails the request", [truth("very_long_line"), LONG_LINE]),
    49: (
        "a time limit of hours holds up the run, and nothing is written",
        [
            BROKEN,
            (ADVERSARY, "test_stalls_end_at_the_time_limit"),
            (ADVERSARY, "test_drain_is_limited"),
        ],
    ),
    50: (
        "all tokens in one chunk are an absurd speed",
        [
            CUT_INTO_EVENTS,
            (METRICS, "test_tpot_of_an_answer_in_one_event_is_undefined_not_zero"),
            (METRICS, "test_an_undefined_tpot_keeps_the_limit_only_for_a_single_token"),
        ],
    ),
    51: (
        "a limit of one latency is held against another",
        [(ROWS, "test_each_limit_is_that_of_its_own_latency")],
    ),
    52: ("what the client does after the last answer counts as time served", [LATE_END]),
    53: (
        "the times of a trace are read and then not used",
        [(BUILD, "test_rows_of_a_trace_are_asked_when_and_as_recorded"), ALL_SENT],
    ),
    54: (
        "an event with usage alone fails the request",
        [truth("good"), (COMPLETION, "test_usage_alone"), NEVER_OK],
    ),
    55: (
        "every client process draws the same gaps",
        [
            ALL_SENT,
            (ARRIVALS, "test_eight_clients_that_take_turns_are_one_poisson_process_together"),
            (WIRE, "test_shares_of_an_open_loop_are_a_partition"),
        ],
    ),
    56: ("a stall moves the schedule to now, and its load is forgotten", [ABSOLUTE_TIMES, CLIENT_STALLS]),
    57: (
        "arrivals are drawn by the second",
        [CONSTANT, (LOAD, "test_poisson_arrivals_lie_anywhere_within_a_second")],
    ),
    58: ("one system is sent a temperature, another its default", [STATED, ASKED]),
    59: ("EOS is ignored for some prompts, or for some systems", [STATED, ASKED]),
}


def test_every_fault_has_its_number() -> None:
    assert list(FAULTS) == list(range(1, 60))
    assert all(description and tests for description, tests in FAULTS.values())


def test_every_test_named_is_collected() -> None:
    named = {f"{TESTS / file}::{test}" for _, tests in FAULTS.values() for file, test in tests}
    files = sorted({test.partition("::")[0] for test in named})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert named - {*listed, *(line.partition("[")[0] for line in listed)} == set()
