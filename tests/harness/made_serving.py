"""Rows of serving.csv made by hand, as sides of a comparison with known truth."""

from __future__ import annotations

import math
import random

from harness.ratios import Side, compare
from harness.schema import ServingRow
from harness.stats import MIN_PAIRS
from harness.tables import records_to_frame

COMPARISONS = 50
PLAIN = {int: 0, float: 1.0, str: "", bool: False}


def row(**changes) -> ServingRow:
    """A VALID cell; what is not given is empty."""
    required = {
        name: field.annotation for name, field in ServingRow.model_fields.items() if field.is_required()
    }
    plain = {name: PLAIN.get(kind) for name, kind in required.items()}
    plain |= dict(
        run="r1", system="engine", config="default", model="m", weights="real", load="closed", load_name="c8",
        concurrency=8, verdict="VALID", schedule_sha256="a" * 64, output_tokens_per_s=1000.0,
    )  # fmt: skip
    return ServingRow(**(plain | changes))


def side(*rows: ServingRow, system=None, run="r1") -> Side:
    return Side(run, system, records_to_frame(ServingRow, rows))


def repetitions(values, *, metric="output_tokens_per_s", **changes):
    """A row a value, each repetition with a schedule of its own."""
    return [
        row(
            **dict(
                {metric: value}, repetition=number, position=number,
                schedule_sha256=f"{changes.get('load_name', 'c8')}-{number}",
            )
            | changes
        )
        for number, value in enumerate(values)
    ]  # fmt: skip


def against(values_a, values_b, metric="output_tokens_per_s", **changes):
    """The comparison of two runs of one load."""
    a = side(*repetitions(values_a, metric=metric), run="r1")
    b = side(*repetitions(values_b, metric=metric, run="r2", **changes), run="r2")
    return compare(a, b, metric)[0]


def interleaved(stream, ratio, noise=0.01, over_run=0.03, prompts=0.05, pairs=MIN_PAIRS):
    """Two systems of one run in the order A B B A A B …, with noise, a drift, and prompts of their own in
    each repetition that change the speed of both."""
    step = math.log(1 + over_run) / (2 * pairs - 1)
    rows = []
    for repetition in range(pairs):
        shared = stream.gauss(0, prompts)
        order = ("a", "b") if repetition % 2 == 0 else ("b", "a")
        for place, name in enumerate(order, 2 * repetition):
            speed = 5000 * (ratio if name == "b" else 1)
            value = speed * math.exp(shared + step * place + stream.gauss(0, noise))
            rows.append(
                row(
                    system="null", config=name, repetition=repetition, position=place,
                    schedule_sha256=f"s{repetition}", output_tokens_per_s=value,
                )
            )  # fmt: skip
    return [side(*rows, system=f"null:{name}") for name in ("a", "b")]


def simulated(seed, ratio, **changes):
    stream = random.Random(seed)
    return [compare(*interleaved(stream, ratio, **changes))[0] for _ in range(COMPARISONS)]


SPREAD = [0.99, 1.01, 1.0, 0.995, 1.005, 1.0]


def scaled(ratio, count=MIN_PAIRS):
    """B's values against 100 of A: an interval of about +-0.7 % around the ratio at six pairs."""
    return [100 * ratio * each for each in SPREAD[:count]]
