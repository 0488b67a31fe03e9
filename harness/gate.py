"""What a comparison must not show: limits on its intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import BadInput
from harness.ratios import Better, Comparison
from harness.stats import MIN_PAIRS, Interval


@dataclass(frozen=True)
class Gate:
    """max-loss: B is not shown to be worse by more than `limit`; within: B is shown to be that close to A.

    `limit` is a share, 0.05 for 5 %. Each interval covers by itself in 95 % of comparisons. For `within` that
    is the test of equivalence by two one-sided tests at 2.5 % each.
    """

    kind: Literal["max-loss", "within"]
    limit: float

    def rule(self, better: Better) -> str:
        """The rule in words."""
        low, high = f"{1 - self.limit:g}", f"{1 + self.limit:g}"
        if self.kind == "max-loss":
            beyond = f"below {low}" if better == "higher" else f"above {high}"
            text = f"no interval, of a load or pooled, lies wholly {beyond}"
        else:
            text = (
                f"every interval lies inside [{low}, {high}]; where a load has fewer than {MIN_PAIRS} pairs "
                "the pooled one does, and its own does not lie wholly outside"
            )
        return f"--{self.kind} {self.limit:g} asks that {text}; and that B has each load it tried and A has"

    def breaches(self, comparison: Comparison) -> list[str]:
        """What breaks the gate, a line each.

        Raises BadInput when nothing does, but there is no interval to judge either.
        """
        lost = [f"{load.load}: no usable repetition" for load in comparison.loads if load.lost]
        pooled = comparison.pooled
        broken = {
            name: interval
            for name, interval in comparison.intervals.items()
            if self._broken_by(interval, comparison.better, pooled is not None and interval.pairs < MIN_PAIRS)
        }
        if pooled is not None and self._broken_by(pooled, comparison.better, stood_in_for=False):
            broken[comparison.pooled_name] = pooled
        if not lost and not comparison.intervals and pooled is None:
            raise BadInput(
                f"{comparison.a} and {comparison.b} have too few pairs for an interval, which a gate "
                "needs: measure more repetitions"
            )
        return lost + [f"{name}: {interval}" for name, interval in broken.items()]

    def doubts(self, comparison: Comparison) -> list[str]:
        """Intervals that do not break max-loss and do not exclude such a loss either, a line each."""
        if self.kind == "within":
            return []
        low, high = 1 - self.limit, 1 + self.limit
        every = {**comparison.intervals, comparison.pooled_name: comparison.pooled}
        return [
            f"{name}: {interval}"
            for name, interval in every.items()
            if interval is not None
            and (
                interval.low < low <= interval.high
                if comparison.better == "higher"
                else interval.low <= high < interval.high
            )
        ]

    def _broken_by(self, interval: Interval, better: Better, stood_in_for: bool) -> bool:
        """`stood_in_for`: another is judged in the place of this one, save when it lies wholly outside."""
        low, high = 1 - self.limit, 1 + self.limit
        if self.kind == "max-loss":
            return interval.high < low if better == "higher" else interval.low > high
        if stood_in_for:
            return interval.high < low or interval.low > high
        return interval.low < low or interval.high > high
