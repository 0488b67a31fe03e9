import http.server
import json
import threading
from contextlib import contextmanager

import pytest

from harness.correctness import (
    Answer,
    Forced,
    ask,
    compare,
    compared,
    count_agreement,
    end_token_ids,
    first_difference,
    force,
    not_answered,
)
from harness.workload.prompts import load_prompts
from harness.workload.schedule import correctness

EOS = 2
REFERENCE = {
    "prompt_tokens": 5,
    "ids": [7, 8, 9],
    "text": "a b c",
    "finish": "length",
    "gaps": [3.0, 0.001, 2.0],
}
ENDED = REFERENCE | {"finish": "stop", "gaps": [3.0, 0.001, 2.0, 1.5]}


def row(reference=REFERENCE, **changes):
    answer = dict(text="a b c", ids=[7, 8, 9], finish="length", prompt_tokens=5) | changes
    return compare("engine", "p1", reference, Answer(**answer), {EOS})


def test_equal_ids_text_end_and_prompt_length_are_identical():
    found = row()
    assert found.identical and found.text_identical
    assert found.first_divergence is None
    assert (found.reference_ids, found.system_ids, found.tokens) == ("7 8 9", "7 8 9", 3)


@pytest.mark.parametrize(
    "changes",
    [{"ids": [7, 8, 4]}, {"text": "a b"}, {"finish": "stop"}, {"prompt_tokens": 6}, {"error": "HTTP 500"}],
)
def test_any_difference_is_not_identical(changes):
    assert not row(**changes).identical


@pytest.mark.parametrize("ids", [[7, 8, 9], [7, 8, 9, EOS]])
def test_the_end_token_may_be_returned_or_not(ids):
    assert row(ENDED, ids=ids, finish="stop").identical


def test_the_end_token_inside_the_output_counts():
    assert not row(ids=[7, 8, EOS]).identical


def test_a_divergence_is_placed_with_the_references_gap_there():
    found = row(ids=[7, 4, 9], text="a x c")
    assert (found.first_divergence, found.gap_at_divergence) == (1, 0.001)
    found = row(ids=[7, 8, 9, 9], text="a b c c")
    assert (found.first_divergence, found.gap_at_divergence) == (3, None)


def test_a_system_without_ids_is_compared_by_its_text():
    assert row(ids=None).identical
    assert not row(ids=None, text="other").identical
    assert row(ids=None).system_ids == ""


def test_first_difference():
    assert first_difference([], []) is None
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
    assert first_difference([1], [1, 2]) == 1


def test_a_server_that_did_not_come_up_answered_no_prompt():
    reference = {"answers": [REFERENCE, REFERENCE]}
    rows = compared("engine", reference, not_answered(reference, "ended with status 1"), {EOS})
    assert [found.prompt for found in rows] == [prompt.id for prompt in load_prompts()[:2]]
    assert all(not found.identical and found.error == "ended with status 1" for found in rows)


def test_end_tokens_come_from_the_generation_config_first(tmp_path):
    assert end_token_ids(tmp_path) == set()
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    assert end_token_ids(tmp_path) == {1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert end_token_ids(tmp_path) == {2, 3}


class Completions(http.server.BaseHTTPRequestHandler):
    """Answers the prompt's length as token id; refuses the prompt "bad", breaks off at "cut"."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("echo"):
            return self.score(body)
        assert body["return_token_ids"] is True and body["temperature"] == 0 and "stream" not in body
        prompt = body["prompt"]
        if prompt == "cut":
            return
        choice = {"text": prompt.upper(), "token_ids": [len(prompt)], "finish_reason": "length"}
        answer = {"choices": [choice], "usage": {"prompt_tokens": 1}}
        content = json.dumps({"error": {"message": "no"}} if prompt == "bad" else answer).encode()
        self.send_response(400 if prompt == "bad" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def score(self, body):
        """Even tokens are the most likely ones; a prompt with 13 is refused, one with 15 gets no scores."""
        assert (body["max_tokens"], body["logprobs"], body["temperature"]) == (0, 1, 0)
        ids = body["prompt"]
        given = [None, *(-1.0 - id % 2 for id in ids[1:])]
        best = [None, *({"best": -1.0, "given": logprob} for logprob in given[1:])]
        logprobs = {"token_logprobs": given, "top_logprobs": best if 15 not in ids else None}
        content = json.dumps({"choices": [{"logprobs": logprobs}]}).encode()
        self.send_response(400 if 13 in ids else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def completions_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Completions) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_prompt_has_an_answer_in_its_place():
    schedule = correctness(["one", "bad", "three", "cut", "fifth"], count=5, max_tokens=3)
    counts = []
    with completions_server() as url:
        answers = ask(url, "m", schedule, counts.append)
    assert answers[0] == Answer("ONE", [3], "length", 1)
    assert (answers[2].ids, answers[4].ids) == ([5], [5])
    assert "HTTP Error 400" in answers[1].error and '"no"' in answers[1].error
    assert answers[3].error
    assert counts == [1, 2, 3, 4, 5]


def test_every_reference_is_teacher_forced_in_its_place():
    continuations = [[2, 4, 6], [2, 3, 5, 8], [], [13], [15]]
    reference = {"answers": [{"prompt_ids": [1, 3], "ids": ids} for ids in continuations]}
    schedule = correctness(list("abcde"), count=5, max_tokens=4)
    with completions_server() as url:
        found = force(url, "m", schedule, reference, lambda _: None)
    assert found[:3] == [Forced(3, 3), Forced(4, 2), Forced(0, 0)]
    assert all(score.tokens is None and score.error.startswith("teacher forcing: ") for score in found[3:])
    assert "HTTP Error 400" in found[3].error


def logprobs(given, best):
    return {"token_logprobs": [None, *given], "top_logprobs": [None, *({"a": value} for value in best)]}


def test_a_position_agrees_where_the_given_token_is_as_likely_as_the_best():
    scored = logprobs([-9.0, -0.5, -0.7, -2.0], [-0.1, -0.5, -0.7, -1.9])
    assert count_agreement(scored, 2, 3) == Forced(3, 2), "a tie agrees, the prompt does not count"
    assert count_agreement(scored, 1, 4) == Forced(4, 2)


def test_scores_that_are_not_one_a_position_are_refused():
    with pytest.raises(ValueError, match=r"4 and 4 log probabilities for 2 \+ 3 tokens"):
        count_agreement(logprobs([-1.0] * 3, [-1.0] * 3), 2, 3)


def test_scores_and_their_errors_stand_in_the_rows():
    reference = {"answers": [REFERENCE, REFERENCE]}
    answers = [Answer("a b c", [7, 8, 9], "length", 5)] * 2
    forced = [Forced(3, 2), Forced(None, None, "teacher forcing: no")]
    first, second = compared("engine", reference, answers, {EOS}, forced)
    assert (first.forced_tokens, first.forced_agree, first.error) == (3, 2, None)
    assert (second.forced_tokens, second.forced_agree, second.error) == (None, None, "teacher forcing: no")
