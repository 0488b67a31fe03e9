"""Numbers as figures and tables show them."""

from __future__ import annotations

UNDEFINED = "–"


def count(value: int) -> str:
    return f"{value:,}"


def three_digits(value: float | None) -> str:
    """Three significant digits, or all digits before the point; a dash for an undefined value."""
    if value is None:
        return UNDEFINED
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
