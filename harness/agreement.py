"""How far systems agree with the reference, over the rows of correctness.csv, against what is declared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.schema import CorrectnessRow


@dataclass(frozen=True)
class Agreement:
    """Sums over prompts.

    failed: prompts without an answer. forced_tokens and forced_agree cover the `forced` prompts that were
    teacher-forced. gaps: the reference's top-2 logit gaps at first divergences, ascending, where it has one.
    """

    prompts: int
    identical: int
    failed: int
    forced: int
    forced_tokens: int
    forced_agree: int
    gaps: tuple[float, ...]

    @property
    def identical_share(self) -> float | None:
        """None without prompts."""
        return self.identical / self.prompts if self.prompts else None

    @property
    def forced_share(self) -> float | None:
        """Teacher-forced agreement; None when no token was scored."""
        return self.forced_agree / self.forced_tokens if self.forced_tokens else None


def agreement(rows: Sequence[CorrectnessRow]) -> Agreement:
    return Agreement(
        prompts=len(rows),
        identical=sum(row.identical for row in rows),
        failed=sum(row.error is not None for row in rows),
        forced=sum(row.forced_tokens is not None for row in rows),
        forced_tokens=sum(row.forced_tokens or 0 for row in rows),
        forced_agree=sum(row.forced_agree or 0 for row in rows),
        gaps=tuple(sorted(row.gap_at_divergence for row in rows if row.gap_at_divergence is not None)),
    )


def by_system(rows: Sequence[CorrectnessRow]) -> dict[str, Agreement]:
    """Systems in the order of their first rows."""
    systems = dict.fromkeys(row.system for row in rows)
    return {system: agreement([row for row in rows if row.system == system]) for system in systems}


def shortfalls(found: Agreement, min_identical: float, min_forced_agreement: float | None) -> list[str]:
    """What is less than declared, a line each. A prompt without an answer always is, whatever the shares."""
    lines = []
    if found.failed:
        lines.append(f"{found.failed} of {found.prompts} prompts have no answer")
    if found.identical < min_identical * found.prompts:
        lines.append(
            f"{found.identical} of {found.prompts} prompts identical, "
            f"declared is a share of {min_identical:g}"
        )
    if min_forced_agreement is None:
        return lines
    if found.forced < found.prompts:
        lines.append(f"{found.prompts - found.forced} of {found.prompts} prompts are not teacher-forced")
    if found.forced_agree < min_forced_agreement * found.forced_tokens:
        lines.append(
            f"teacher-forced agreement {found.forced_agree} of {found.forced_tokens}, "
            f"declared is a share of {min_forced_agreement:g}"
        )
    return lines
