"""Faults that remote runners and result stores had in public, each with the tests that fail where this has
it, or the reason why it cannot occur here. A test of this file checks that each test named is there.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

JOB, RSYNC, SSH, DEADMAN = (f"remote/box/test_{part}.py" for part in ("job", "rsync", "ssh", "deadman"))
VAST, REST = "remote/providers/test_vast.py", "remote/providers/test_rest.py"
RENT, REAP, KILLED, MATRIX = (f"remote/test_{part}.py" for part in ("rent", "reap", "killed", "matrix"))
CAMPAIGN, FETCH, FABFILE = (f"remote/test_{part}.py" for part in ("campaign", "fetch", "fabfile"))
SETUP, STAGE, TAKEOVER = (f"remote/test_{part}.py" for part in ("setup_gpu_box", "run_stage", "takeover"))
STORE, TABLES = "harness/test_store.py", "figures/test_make_tables.py"

FAULTS: dict[str, str | tuple[tuple[str, str], ...]] = {
    "skypilot#10517": ((VAST, "test_a_deprecated_list_is_not_an_empty_one"),),
    "skypilot#9117": ((RENT, "test_one_offer_sold_twice"), (RENT, "test_two_controllers_at_once")),
    "skypilot#10730": ((CAMPAIGN, "test_a_box_that_forgets_the_key_for_a_while"),),
    "skypilot#6514": ((RENT, "test_a_box_that_runs_but_does_not_answer"),),
    "skypilot#6449": ((RENT, "test_a_key_that_does_not_arrive"),),
    "skypilot#10209": (
        (REST, "test_the_key_travels_in_the_header_only"),
        (CAMPAIGN, "test_the_account_key_is_nowhere"),
    ),
    "vast-cli#470": ((REST, "test_the_key_travels_in_the_header_only"),),
    "skypilot#5946": ((DEADMAN, "test_a_restart_does_not_give_more_time"),),
    "skypilot#2768": ((DEADMAN, "test_it_is_armed_at_the_start_of_a_box_that_nobody_connects_to"),),
    "skypilot#6051": ((RENT, "test_a_provider_that_is_away_for_a_while"),),
    "skypilot#4392": (
        (RENT, "test_a_lost_answer"),
        (TAKEOVER, "test_what_cannot_be_seen_is_not_called_gone"),
    ),
    "transformerlab#1897": ((CAMPAIGN, "test_a_stage_that_fails"), (MATRIX, "test_the_user_ends_it")),
    "usajobs_historical#609": ((FABFILE, "test_step_by_step"),),
    "libreyolo#505": ((VAST, "test_a_failed_list_is_not_read_as_gone"),),
    "dstack#2809": ((RENT, "test_a_slow_box_that_makes_progress_is_waited_for"),),
    "dstack#4037": ((CAMPAIGN, "test_a_box_that_is_outbid"), (VAST, "test_outbid_before_it_ran")),
    "dstack#973": ((VAST, "test_price_and_cap_are_those_with_the_disk"),),
    "gpuhunt#60": ((VAST, "test_price_and_cap_are_those_with_the_disk"),),
    "dstack#2566": ((VAST, "test_that_lack_something"),),
    "dstack#3299": ((VAST, "test_that_lack_something"),),
    "skypilot#8408": ((CAMPAIGN, "test_a_machine_that_does_not_pass_its_set_up_is_left_for_another"),),
    "skypilot#9406": ((SETUP, "test_an_environment_without_a_gpu_fails"),),
    "gpuhunt#93": ((VAST, "test_names_are_exact"),),
    "Soup#831": ((VAST, "test_names_are_exact"),),
    "skypilot#6634": ((CAMPAIGN, "test_a_box_that_restarts_at_another_port_with_another_key"),),
    "skypilot#8096": ((RSYNC, "test_a_push_makes_equal_and_deletes_what_is_stale"),),
    "burst#167": ((RSYNC, "test_a_fetch_from_a_fresh_box_leaves_all_at_home"),),
    "AutoSci#65": ((RSYNC, "test_a_push_keeps_results_environments_and_what_git_ignores"),),
    "fabric#1804": (
        (SSH, "test_an_unknown_host_key_is_refused"),
        (SSH, "test_a_key_of_another_kind_than_the_pinned_one_is_refused"),
    ),
    "fabric#2071": ((SSH, "test_a_changed_host_key_is_refused_until_it_is_pinned_anew"),),
    "fabric#2138": ((CAMPAIGN, "test_a_changed_host_key_that_nobody_vouches_for"),),
    "fabric#1384": ((SSH, "test_a_peer_that_froze_between_calls_times_out"),),
    "fabric#1807": ((SSH, "test_a_peer_that_freezes_in_mid_run_times_out"),),
    "fabric#2146": "a busy wait of Fabric's `run`, which is not used",
    "invoke#1079": ((JOB, "test_much_output_comes_once_and_is_not_kept"),),
    "paramiko#1390": "one key is offered, no agent: Ssh.command_line and Ssh._new_connection say so",
    "vast-cli#75": "the provider's own command line is not used",
    "vast-cli#39": "the provider's own command line is not used",
    "vast-ai/docs#143": ((VAST, "test_requests_are_shaped_like_its_own"),),
    "asv#658": ((STORE, "test_a_broken_manifest_is_damage"),),
    "asv#1410": "results name their commit, and nothing leaves out what it does not find in git",
    "ann-benchmarks#399": ((SETUP, "test_it_makes_one_environment_a_system_and_can_be_called_again"),),
    "turbovec#312": ((CAMPAIGN, "test_the_box_gets_the_source_its_record_and_no_more"),),
    "samyama-graph#476": ((TABLES, "test_tables_of_the_readme_are_what_the_committed_runs_give"),),
    "LSKV#103": (
        (FETCH, "test_what_is_not_whole_stays_away"),
        (FETCH, "test_a_full_disk_leaves_no_part_of_a_run"),
    ),
    "bernstein#5919": ((FETCH, "test_a_run_that_grew_when_it_was_copied_is_that_run"),),
    "tlaps-bench#60": (
        (FETCH, "test_a_whole_run_is_laid_down_once"),
        (STORE, "test_a_partial_run_that_cannot_be_read_is_not_gone_on_with"),
    ),
    "InferenceX#1966": ((FETCH, "test_another_run_of_the_name_is_left_alone"),),
    "InferenceX#1580": "results are files of the repository and do not expire",
    "uv#17645": ((SETUP, "test_it_makes_one_environment_a_system_and_can_be_called_again"),),
    "uv#19625": "a box without a registry gets a wheelhouse; no mirror is asked for",
}


def test_every_test_that_is_named_is_there() -> None:
    named = {test for answer in FAULTS.values() if not isinstance(answer, str) for test in answer}
    assert len(named) > 35
    assert sorted(test for test in named if test[1] not in _tests_of(TESTS / test[0])) == []


def _tests_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
