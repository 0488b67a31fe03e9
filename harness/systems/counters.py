"""What a server has counted so far, by its own account: GET /metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from harness.systems.base import System
from harness.systems.fetch import UNREACHABLE, fetch

TIMEOUT_S = 5.0


def read_counters(url: str, system: System) -> dict[str, float] | None:
    """The system's counters by our names (see System.counters); None when they cannot be read."""
    if not system.counters:
        return None
    try:
        status, body = fetch(url, "/metrics", TIMEOUT_S)
        return parse_counters(body.decode(), system.counters) if status == 200 else None
    except (*UNREACHABLE, ValueError):
        return None


def parse_counters(text: str, samples: Mapping[str, str]) -> dict[str, float]:
    """Sum over all labels of each sample in `samples` (our name to its name). One that the text lacks is left
    out: a counter with labels appears at its first count. Raises ValueError for other text.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return {name: sums[sample] for name, sample in samples.items() if sample in sums}
