from types import SimpleNamespace

import pytest

from engine.serving.http.metrics import Metrics
from harness.systems import SYSTEMS
from harness.systems.counters import parse_counters, read_counters
from harness.systems.process import free_port
from tests.harness.systems.served import answering

ENGINE = """\
# HELP ladder_sequences_total Sequences that ended, by how
# TYPE ladder_sequences_total counter
ladder_sequences_total{finish="stop"} 3.0
ladder_sequences_total{finish="length"} 61.0
# HELP ladder_prefix_cache_hit_tokens_total Prompt tokens whose KV was found in the cache
# TYPE ladder_prefix_cache_hit_tokens_total counter
ladder_prefix_cache_hit_tokens_total 4096.0
# HELP ladder_prefix_cache_hit_tokens_created Prompt tokens whose KV was found in the cache
# TYPE ladder_prefix_cache_hit_tokens_created gauge
ladder_prefix_cache_hit_tokens_created 1.79e+09
# HELP ladder_preemptions_total Times a sequence gave its KV blocks back
# TYPE ladder_preemptions_total counter
ladder_preemptions_total 0.0
"""
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 8192.0
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1536.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 512.0
# HELP vllm:external_prefix_cache_hits_total External prefix cache hits from KV connector.
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 7.0
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
# HELP vllm:num_preemptions_created Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="m"} 1.796e+09
"""
SGLANG = """\
# HELP sglang:num_retracted_reqs The number of retracted requests.
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{engine_type="unified",model_name="m",tp_rank="0"} 9.0
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 8192.0
# HELP sglang:cached_tokens_total Number of cached prompt tokens by source (device/host/storage).
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{cache_source="device",model_name="m"} 1000.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 24.0
"""


@pytest.mark.parametrize(
    ("name", "text", "counters"),
    [
        ("engine", ENGINE, {"cached_tokens": 4096.0, "preemptions": 0.0}),
        ("vllm", VLLM, {"cached_tokens": 2048.0, "preemptions": 2.0}),
        ("sglang", SGLANG, {"cached_tokens": 1024.0}),  # nothing was preempted yet: no such line
    ],
)
def test_counters_are_read_from_each_systems_metrics(name, text, counters):
    assert parse_counters(text, SYSTEMS[name].counters) == counters
    with answering({"/metrics": (200, text.encode())}) as url:
        assert read_counters(url, SYSTEMS[name]) == counters


def test_the_engine_has_the_counters_it_is_read_for():
    client = SimpleNamespace(stats={"preemptions": 5}, in_flight=0)
    text = Metrics(client).render().decode()
    assert parse_counters(text, SYSTEMS["engine"].counters) == {"cached_tokens": 0.0, "preemptions": 5.0}


@pytest.mark.parametrize(
    "answer",
    [(404, ENGINE.encode()), (503, b""), (200, b"<html>no metrics</html>"), (200, b"\xff\xfe")],
    ids=["not found", "unavailable", "a page", "no text"],
)
def test_without_readable_metrics_there_are_no_counters(answer):
    with answering({"/metrics": answer}) as url:
        assert read_counters(url, SYSTEMS["engine"]) is None


def test_a_server_that_is_gone_has_no_counters():
    assert read_counters(f"http://127.0.0.1:{free_port()}", SYSTEMS["engine"]) is None


def test_a_system_without_counters_is_not_asked():
    asked = []

    class Answers(dict):
        def get(self, path, default):
            asked.append(path)
            return default

    with answering(Answers()) as url:
        assert read_counters(url, SYSTEMS["null"]) is None
        assert read_counters(url, SYSTEMS["engine"]) is None
    assert asked == ["/metrics"]
