"""GET /metrics: what Prometheus scrapes.

Gauges are read from the engine's last news when they are asked for; everything else is counted once per
sequence, at its end, so that a token costs nothing. A sequence is one choice of one prompt: one request of
the engine.
"""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.serving.http.choice import Choice
from engine.serving.http.engine_client import Client

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SECONDS_PER_TOKEN = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0)
_GAUGES = {
    "running": ("ladder_sequences_running", "Sequences in the running batch"),
    "kv_blocks_used": ("ladder_kv_blocks_used", "KV blocks held by sequences"),
    "kv_blocks": ("ladder_kv_blocks", "KV blocks there are"),
}


class Metrics:
    """The counters of one server."""

    def __init__(self, client: Client) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineStats(client))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=self._registry)

        self._ended = counter("ladder_sequences", "Sequences that ended, by how", "finish")
        self._refused = counter("ladder_queue_refusals", "Requests refused because the queue was full")
        self._prompt = counter("ladder_prompt_tokens", "Prompt tokens of ended sequences")
        self._cached = counter(
            "ladder_prefix_cache_hit_tokens", "Prompt tokens whose KV was found in the cache"
        )
        self._generated = counter("ladder_generation_tokens", "Generated tokens of ended sequences")
        self._ttft = histogram(
            "ladder_time_to_first_token_seconds", "From submission to the first token", _SECONDS
        )
        self._tpot = histogram(
            "ladder_time_per_output_token_seconds",
            "Time per token after those that came first, of sequences that completed",
            _SECONDS_PER_TOKEN,
        )
        self._e2e = histogram(
            "ladder_e2e_seconds", "From submission to the end, of sequences that completed", _SECONDS
        )
        self._finishes = {
            finish: self._ended.labels(finish)
            for finish in ("stop", "length", "cancelled", "refused", "error")
        }

    def ended(self, choice: Choice, finish: str) -> None:
        """One sequence has ended: stop, length, cancelled (a peer that left included) or error."""
        self._finishes[finish].inc()
        self._prompt.inc(len(choice.prompt_ids))
        self._cached.inc(choice.cached_tokens)
        self._generated.inc(choice.tokens)
        if choice.first_at is not None:
            self._ttft.observe(choice.first_at - choice.submitted_at)
        if finish in ("stop", "length"):
            now = time.monotonic()
            self._e2e.observe(now - choice.submitted_at)
            if choice.first_at is not None and (later := choice.tokens - choice.first_tokens) > 0:
                self._tpot.observe((now - choice.first_at) / later)

    def refused(self) -> None:
        """A full queue has turned a request away."""
        self._refused.inc()

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)


class _EngineStats(Collector):
    def __init__(self, client: Client) -> None:
        self._client = client

    def collect(self) -> Iterable[Metric]:
        stats = self._client.stats
        for name, (metric, text) in _GAUGES.items():
            yield GaugeMetricFamily(metric, text, value=stats.get(name, 0))
        waiting = self._client.in_flight - stats.get("running", 0)
        yield GaugeMetricFamily(
            "ladder_sequences_waiting", "Sequences not running yet", value=max(0, waiting)
        )
        preemptions = stats.get("preemptions", 0)
        yield CounterMetricFamily(
            "ladder_preemptions", "Times a sequence gave its KV blocks back", value=preemptions
        )
