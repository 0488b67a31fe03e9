"""The limits of schedules, and the error of a value beyond them."""

from __future__ import annotations

from typing import Any

MAX_CONCURRENCY = 65_536
MAX_REQUESTS = 10_000_000
MAX_RATE_RPS = 1_000_000
MAX_DURATION_S = 86_400
MAX_TOKENS = 1_000_000
MAX_TOKEN_ID = 2**31 - 1
MAX_TEMPERATURE = 100


class ScheduleError(ValueError):
    """A schedule cannot be built, written or read; the message names the value and the limit."""


def check_int(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ScheduleError(f"{name} {value!r} must be an integer from {low} to {high}")


def check_real(name: str, value: Any, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= high:
        raise ScheduleError(f"{name} {value!r} must be a number above 0, at most {high}")


def check_float(name: str, value: Any, low: float, high: float) -> None:
    """A float and not an int: 2 and 2.0 would be different bytes of equal schedules."""
    if not isinstance(value, float) or not low <= value <= high:
        raise ScheduleError(f"{name} {value!r} must be a float from {low} to {high}")
