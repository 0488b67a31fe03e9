"""How far systems agree with the reference and with each other, and what is less than declared.

Over the rows of correctness.csv, and over the outputs of timed cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from harness.schema import CorrectnessRow

DIGEST_DIGITS = 16
"""Hex digits of output_sha256 that every run has."""


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


@dataclass(frozen=True)
class Divergence:
    """Where two systems part on a prompt. `position`: first token that differs; None where ids are missing.

    `gap`: the reference's top-2 logit gap there; None unless one of the two leaves the reference there too.
    """

    prompt: str
    position: int | None
    gap: float | None


@dataclass(frozen=True)
class PairAgreement:
    """Two systems on the prompts that both answered.

    `identical` + the divergences + `unknown` = `prompts`. unknown: prompts where neither gave what the
    reference does and not both returned ids, so that they cannot be compared.
    """

    a: str
    b: str
    prompts: int
    identical: int
    unknown: int
    divergences: tuple[Divergence, ...]


def between(rows: Sequence[CorrectnessRow]) -> list[PairAgreement]:
    """Every two systems with each other, in the order of their first rows.

    By token ids where both returned them; else by text, of which a row says only whether it is the
    reference's.
    """
    systems: dict[str, dict[str, CorrectnessRow]] = {}
    for row in rows:
        systems.setdefault(row.system, {})[row.prompt] = row
    return [_pair_agreement(a, b, systems[a], systems[b]) for a, b in combinations(systems, 2)]


def _pair_agreement(
    a: str, b: str, rows_a: dict[str, CorrectnessRow], rows_b: dict[str, CorrectnessRow]
) -> PairAgreement:
    both = [
        (rows_a[prompt], rows_b[prompt])
        for prompt in rows_a
        if prompt in rows_b and rows_a[prompt].error is None and rows_b[prompt].error is None
    ]
    same = [_same(*pair) for pair in both]
    return PairAgreement(
        a=a,
        b=b,
        prompts=len(both),
        identical=same.count(True),
        unknown=same.count(None),
        divergences=tuple(
            _divergence(*pair) for pair, equal in zip(both, same, strict=True) if equal is False
        ),
    )


def _same(row_a: CorrectnessRow, row_b: CorrectnessRow) -> bool | None:
    """Whether two answers are the same; None when the rows do not say."""
    if row_a.system_ids and row_b.system_ids:
        return row_a.system_ids == row_b.system_ids
    if row_a.text_identical or row_b.text_identical:
        return row_a.text_identical and row_b.text_identical
    return None


def _divergence(row_a: CorrectnessRow, row_b: CorrectnessRow) -> Divergence:
    if not (row_a.system_ids and row_b.system_ids):
        return Divergence(row_a.prompt, None, None)
    ids_a, ids_b = row_a.system_ids.split(), row_b.system_ids.split()
    shorter = min(len(ids_a), len(ids_b))
    position = next((at for at in range(shorter) if ids_a[at] != ids_b[at]), shorter)
    gaps = [row.gap_at_divergence for row in (row_a, row_b) if row.first_divergence == position]
    return Divergence(row_a.prompt, position, gaps[0] if gaps else None)


def same_outputs(requests_a: pd.DataFrame, requests_b: pd.DataFrame) -> tuple[int, int]:
    """How many requests of two timed cells of one schedule had the same text, of how many that both answered.

    Columns as in schema.RequestRow; outputs are compared by the first DIGEST_DIGITS of output_sha256.
    """
    digests = [
        requests.loc[requests["status"] == "ok"].set_index("request")["output_sha256"].str[:DIGEST_DIGITS]
        for requests in (requests_a, requests_b)
    ]
    both = pd.concat(digests, axis=1, join="inner", keys=["a", "b"])
    return int((both["a"] == both["b"]).sum()), len(both)
