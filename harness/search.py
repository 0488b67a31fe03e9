"""Which rates a system keeps up with, from the cells of a search."""

from __future__ import annotations

from collections.abc import Sequence

from harness.knee import grid, interval, next_probe
from harness.schema import KneeRow, KneeSearch, ServingRow
from harness.stage import SearchPlan

OF_THE_SERVER = ("failed_requests:", "nothing_measured:")
"""Reasons of an INVALID cell that an overloaded server gives. Any other says that the measurement failed."""
WENT_AWAY = "while it was used"
"""How the reason of a cell ends whose server died in it."""


def declared(search: SearchPlan) -> KneeSearch:
    """A search as the manifest records it."""
    return KneeSearch(**{name: getattr(search, name) for name in KneeSearch.model_fields})


def kept_up(row: ServingRow, target_attainment: float) -> bool | None:
    """Whether a system kept up in a cell; None when the cell says nothing about the system."""
    if row.verdict == "VALID":
        return row.attainment is not None and row.attainment >= target_attainment
    reasons = row.reasons.split("; ")
    to_blame = [reason.startswith(OF_THE_SERVER) or reason.endswith(WENT_AWAY) for reason in reasons]
    return False if all(to_blame) else None


def outcomes(search: KneeSearch, rows: Sequence[ServingRow]) -> dict[float, list[bool]]:
    """What one system did at each rate that was tried, by repetition; cells that say nothing are left out."""
    rates = {cell_name(search, rate): rate for rate in grid(search.low_rps, search.high_rps, search.ratio)}
    found: dict[float, list[bool]] = {}
    for row in sorted(rows, key=lambda row: row.repetition):
        kept = kept_up(row, search.target_attainment)
        if row.load_name in rates and kept is not None:
            found.setdefault(rates[row.load_name], []).append(kept)
    return found


def cell_name(search: KneeSearch | SearchPlan, rate_rps: float) -> str:
    """Name of the load that tries a rate."""
    return f"{search.name}-{rate_rps:g}rps"


def knees(searches: Sequence[KneeSearch], rows: Sequence[ServingRow]) -> list[KneeRow]:
    """The interval of each system that a search tried, in the order of their first cells."""
    found = []
    for search in searches:
        rates = grid(search.low_rps, search.high_rps, search.ratio)
        names = {cell_name(search, rate) for rate in rates}
        tried = [row for row in rows if row.load_name in names]
        for system, config in dict.fromkeys((row.system, row.config) for row in tried):
            own = [row for row in tried if (row.system, row.config) == (system, config)]
            found_so_far = outcomes(search, own)
            low, high = interval(rates, found_so_far, search.repetitions)
            found.append(
                KneeRow(
                    system=system,
                    config=config,
                    search=search.name,
                    target_attainment=search.target_attainment,
                    slo_ttft_ms=own[0].slo_ttft_ms,
                    slo_tpot_ms=own[0].slo_tpot_ms,
                    low_rps=low,
                    high_rps=high,
                    cells=len(own),
                    complete=next_probe(rates, found_so_far, search.repetitions) is None,
                )
            )
    return found
