"""Faults that other engines had in public, and the test that shows ours does not.

Where a fault cannot occur here the reason stands instead of a test; a test of this file checks that every
test named exists.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ENGINE, SCHEDULER, POOL, FUZZ = (
    f"serving/test_{name}.py" for name in ("engine", "scheduler", "kv_cache", "fuzz")
)
CLIENT, DETOKENIZER, GPU = (f"serving/test_{name}.py" for name in ("client", "detokenizer", "engine_gpu"))
HTTP = "serving/http/test_completions.py"

FAULTS: dict[int, tuple[str, list[tuple[str, str]] | str]] = {
    1: ("text lost after a preemption", [(ENGINE, "test_preemption_changes_nothing")]),
    2: (
        "queued steps and chunks truncate a preempted request",
        [(FUZZ, "test_random_schedules_equal_the_oracle")],
    ),
    3: (
        "the result of a step in flight is applied to a preempted request",
        [(SCHEDULER, "test_preemption_waits_for_queued_results_and_takes_the_last_arrival")],
    ),
    4: ("a device-side count survives a recompute", [(ENGINE, "test_preemption_changes_nothing")]),
    5: (
        "counts are taken before a prefix hit",
        [(ENGINE, "test_prefix_hits_change_nothing_and_are_counted")],
    ),
    6: ("colliding hashes share KV", [(POOL, "test_tokens_with_equal_python_hashes_do_not_share")]),
    7: (
        "two kinds of cache key coincide",
        [("serving/test_cache_salt.py", "test_equal_prompts_share_only_under_equal_salts")],
    ),
    8: (
        "a prefix is published before its KV is written",
        [(SCHEDULER, "test_a_prefix_is_found_only_after_the_results_of_its_step_were_read")],
    ),
    9: ("nothing left to compute", [(ENGINE, "test_a_prompt_known_in_full_still_computes_one_token")]),
    10: (
        "a reused block is still found under its old content",
        [(POOL, "test_a_released_prefix_is_found_until_its_blocks_are_reused")],
    ),
    11: ("a duplicate block is used after its release", [(POOL, "test_equal_content_is_published_once")]),
    12: ("blocks in use are handed out", [(POOL, "test_check_notices_a_lost_hold_and_a_double_use")]),
    13: ("blocks leak", [(SCHEDULER, "test_random_loads_finish_and_every_token_arrives_once")]),
    14: ("a disconnect is ignored", [(HTTP, "test_a_peer_that_leaves_cancels_its_requests")]),
    15: (
        "a cancelled request goes on decoding",
        [
            (CLIENT, "test_a_cancelled_request_ends_once_and_frees_its_blocks"),
            (ENGINE, "test_cancel_at_every_moment_frees_everything_and_spares_the_others"),
        ],
    ),
    16: (
        "the disconnect of a plain request goes unnoticed",
        [(HTTP, "test_a_peer_that_leaves_cancels_its_requests")],
    ),
    17: (
        "half a stop string leaks",
        [(DETOKENIZER, "test_stop_strings_never_leak_and_hold_back_no_more_than_needed")],
    ),
    18: (
        "held-back text shifts against log probabilities",
        [("serving/http/test_logprobs.py", "test_completions_tell_of_each_token_with_its_text")],
    ),
    19: ("odd ids raise", [(DETOKENIZER, "test_ids_beyond_the_vocabulary_and_special_tokens_have_no_text")]),
    20: ("characters are split", [(DETOKENIZER, "test_characters_come_whole")]),
    21: (
        "an empty prompt ends the server",
        [(HTTP, "test_each_bad_request_is_refused_by_name_and_the_server_goes_on")],
    ),
    22: (
        "lengths beyond the limits end the engine",
        [(ENGINE, "test_requests_that_can_never_run_are_refused")],
    ),
    23: (
        "a prompt that is too long gets no answer",
        [(CLIENT, "test_a_request_that_cannot_run_is_refused_and_the_next_one_runs")],
    ),
    24: (
        "an invalid grammar ends the engine",
        [
            (
                "serving/http/test_choices.py",
                "test_unsupported_are_those_that_an_endpoint_lacks_and_all_of_them_are_refused",
            )
        ],
    ),
    25: ("a captured batch size yields other tokens", [(GPU, "test_ids_equal_the_oracle")]),
    26: (
        "NaN logits spoil the sampler",
        [(ENGINE, "test_logits_that_are_not_finite_end_that_request_alone")],
    ),
    27: (
        "a seed depends on batch mates",
        [(ENGINE, "test_seeded_sampling_ignores_batch_mates_and_arrival_order")],
    ),
    28: (
        "penalties miss tokens in flight",
        [(ENGINE, "test_penalties_bias_and_min_tokens_follow_their_formulas")],
    ),
    29: ("a staging buffer is rewritten before its copy ran", [(GPU, "test_ids_equal_the_oracle")]),
    30: ("ranks decide by their own clocks", "one process decides and computes; there are no ranks"),
    31: ("ranks sample different tokens", "one process decides and computes; there are no ranks"),
    32: ("a dead rank hangs its clients", [(CLIENT, "test_a_killed_engine_ends_every_request_and_says_so")]),
    33: ("speculation changes greedy output", "a step emits at most one token of each sequence"),
    34: ("the draft's KV is stale", "there is no draft model"),
    35: (
        "a preempted request makes everything slow",
        "nothing adapts to a preemption: its order, budget and admission are those of any waiting request",
    ),
    36: (
        "preempting and resuming without progress",
        [(SCHEDULER, "test_random_loads_finish_and_every_token_arrives_once")],
    ),
    37: ("tokens come twice", [(SCHEDULER, "test_random_loads_finish_and_every_token_arrives_once")]),
    38: (
        "decoding text on one thread sets the pace",
        "text is made outside the engine process by table look-ups; docs/lab_log.md has its cost per event",
    ),
}


def test_every_fault_has_its_number() -> None:
    assert list(FAULTS) == list(range(1, 39))


@pytest.mark.parametrize("number", FAULTS)
def test_the_tests_named_exist(number: int) -> None:
    _, shown = FAULTS[number]
    for file, name in [] if isinstance(shown, str) else shown:
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (
            f"{file}::{name}"
        )
