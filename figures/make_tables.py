"""Writes the result tables of README.md from committed CSVs: `python -m figures.make_tables`.

A table stands between `<!-- results:begin RUN -->` and `<!-- results:end -->`; RUN is a folder of results/v1.
So does the sentence on the GPU tests, with `gpu-tests:begin FILE`; FILE is their receipt in results/.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from figures import gpu_tests
from figures.attention_table import attention_table
from figures.compare_table import compare_tables, compares
from figures.format import UNDEFINED, count, three_digits
from figures.runs import RESULTS, ROOT, describe_machine, describe_model, describe_origin, load_in_words
from figures.style import SYSTEMS
from harness.agreement import Agreement, by_system
from harness.schema import AttentionRow, CorrectnessRow, ServingRow
from harness.store import Run, StoreError, load_run

README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- results:begin (\S+) -->\n)(.*?)(<!-- results:end -->)", re.DOTALL)
GPU_TESTS = re.compile(r"(<!-- gpu-tests:begin (\S+) -->\n)(.*?)(<!-- gpu-tests:end -->)", re.DOTALL)
HEADINGS = (
    "system", "load", "requests", "tokens/s", "TTFT p50 (ms)", "TTFT p99 (ms)", "TPOT p50 (ms)",
    "TPOT p99 (ms)", "verdict",
)  # fmt: skip
AGREEMENT_HEADINGS = (
    "system", "prompts", "identical", "teacher-forced", "smallest gap at a first divergence", "largest",
)  # fmt: skip
WORDS = ("system", "load", "verdict")


def result_table(run: Run) -> str:
    """A line a cell, in markdown; numbers of VALID cells only; columns without any are left out.

    A run without cells has a line a system, with its agreement with transformers. One that compares systems
    at several concurrencies has a line a system in a configuration.
    """
    if run.records(AttentionRow):
        return attention_table(run)
    described = (
        describe_model(run.serving, run.manifest),
        describe_machine(run.manifest),
        describe_origin(run),
    )
    if compares(run):
        return f"{'; '.join(described)}.\n\n{compare_tables(run)}"
    headings, rows = HEADINGS, [_cells(row) for row in run.records(ServingRow)]
    if not rows:
        systems = by_system(run.records(CorrectnessRow))
        headings, rows = AGREEMENT_HEADINGS, [_agreement(*system) for system in systems.items()]
    filled = [number for number in range(len(headings)) if any(row[number] != UNDEFINED for row in rows)]
    lines = [" | ".join(row[number] for number in filled) for row in [headings, *rows]]
    rule = " | ".join("---" if headings[number] in WORDS else "---:" for number in filled)
    return (
        "\n".join([f"{'; '.join(described)}.", "", *(f"| {line} |" for line in [lines[0], rule, *lines[1:]])])
        + "\n"
    )


def _cells(row: ServingRow) -> list[str]:
    configuration = "" if row.config == "default" else f", {row.config}"
    version = "" if row.system == "engine" else f" {row.system_version}"
    named = [
        f"{SYSTEMS[row.system].name}{version}{configuration}",
        load_in_words(row.load, row.concurrency, row.rate_rps, row.load_label),
    ]
    if row.verdict != "VALID":
        return [*named, *[UNDEFINED] * 6, f"INVALID: {row.reasons.replace('|', '/')}"]
    latencies = (row.ttft_ms_p50, row.ttft_ms_p99, row.tpot_ms_p50, row.tpot_ms_p99)
    return [
        *named,
        count(row.requests),
        three_digits(row.output_tokens_per_s),
        *map(three_digits, latencies),
        "VALID",
    ]


def _agreement(system: str, found: Agreement) -> list[str]:
    forced = UNDEFINED if found.forced_share is None else f"{found.forced_share:.2%}"
    ends = (found.gaps[0], found.gaps[-1]) if found.gaps else (None, None)
    return [
        SYSTEMS[system].name,
        count(found.prompts),
        count(found.identical),
        forced,
        *map(three_digits, ends),
    ]


def with_tables(text: str, results: Path) -> str:
    """The text with every result table written anew. Raises StoreError for a run that is not complete."""
    text = BLOCK.sub(lambda block: block[1] + result_table(load_run(results / block[2])) + block[4], text)
    return GPU_TESTS.sub(
        lambda block: block[1] + gpu_tests.sentence(results.parent / block[2]) + block[4], text
    )


def main(arguments: list[str] | None = None) -> int:
    """0: written, or equal with --check; 1: --check found a difference; 2: a run is missing or incomplete."""
    parser = argparse.ArgumentParser(
        prog="python -m figures.make_tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a table is not its data's"
    )
    options = parser.parse_args(arguments)
    text = README.read_text()
    try:
        made = with_tables(text, RESULTS)
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.check:
        if made != text:
            print(
                f"{README.name}: a result table is out of date; run python -m figures.make_tables",
                file=sys.stderr,
            )
        return int(made != text)
    README.write_text(made)
    print(f"{README.name}: {len(BLOCK.findall(text))} table(s) written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
