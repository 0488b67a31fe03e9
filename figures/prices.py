"""Prices of GPU hours from prices.toml."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from pathlib import Path

PRICES = Path(__file__).with_name("prices.toml")
SECONDS_PER_HOUR = 3600
TOKENS_PER_MILLION = 1e6


@dataclass(frozen=True)
class Price:
    """What an hour of one GPU costs, where and when."""

    usd_per_gpu_hour: float
    date: datetime.date
    kind: str
    seller: str
    source: str

    def usd_per_million(self, tokens_per_s: float, gpus: int) -> float:
        """US dollars for a million output tokens at this throughput: price x GPUs / tokens an hour x 10^6."""
        return self.usd_per_gpu_hour * gpus / (tokens_per_s * SECONDS_PER_HOUR) * TOKENS_PER_MILLION


def price_of(gpu: str | None) -> Price | None:
    """The price of a GPU by the driver's name of it; None when there is none."""
    with PRICES.open("rb") as file:
        found = tomllib.load(file).get(gpu or "")
    return Price(**found) if found else None
