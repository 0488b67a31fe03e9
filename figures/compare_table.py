"""The table of a run that compares: a row a system in a configuration, a column a concurrency, and below them
ours against the better peer."""

from __future__ import annotations

from collections.abc import Iterator

from figures.charts import OURS, Chart, Compared, Line, against_best, closed_charts, left_out_note
from figures.format import UNDEFINED, count, three_digits
from figures.spread import Spread, described_in_table
from figures.style import SYSTEMS
from harness.store import Run

COLUMN = "output_tokens_per_s"


def compares(run: Run) -> bool:
    """Whether the run has several concurrencies of a workload, and repetitions."""
    return run.serving["repetition"].nunique() > 1 and bool(closed_charts(run))


def compare_tables(run: Run) -> str:
    """A table a workload in markdown, ending in a newline."""
    return "\n".join(_table(run, chart) for chart in closed_charts(run))


def _table(run: Run, chart: Chart) -> str:
    loads = chart.loads
    most = max(len(rows) for line in chart.lines for rows in line.at.values())
    against = list(_against(chart))
    head = ["tokens/s at this many in flight", *(f"{load:g}" for load in loads)]
    rows = [[_name(line), *_throughputs(line, loads, most)] for line in chart.lines]
    for name, found in against:
        rows.append([name, *(_ratio(chart, found.get(load)) for load in loads)])
    said = _said(run, chart, most, [compared.ratio for _, found in against for compared in found.values()])
    rule = ["---", *["---:"] * len(loads)]
    return "\n".join([said, "", *(f"| {' | '.join(row)} |" for row in [head, rule, *rows])]) + "\n"


def _against(chart: Chart) -> Iterator[tuple[str, dict[float, Compared]]]:
    """Ours against the better peer, by the configuration of the peers where they have several; or the
    configurations of the only system against one of them."""
    if chart.base is not None:
        others = [line for line in chart.lines if line is not chart.base]
        for line, found in against_best(others, [chart.base], COLUMN):
            yield f"**{line.label} / {chart.base.label}**", found
        return
    configs = list(dict.fromkeys(line.config for line in chart.peers))
    for config in configs:
        peers = [line for line in chart.peers if line.config == config]
        of = f" · {config.replace('_', ' ')}" if len(configs) > 1 else ""
        for line, found in against_best(chart.ours, peers, COLUMN):
            yield f"**{line.label} / better peer{of}**", found


def _said(run: Run, chart: Chart, most: int, ratios: list[Spread]) -> str:
    """What the numbers are, in a few sentences above the table."""
    said = [
        f"{chart.title}: output tokens/s, geometric mean of {most} repetitions; "
        "in each repetition all systems played the same schedule."
    ]
    if ratios:
        said.append(f"Ratio: {_ratio_in_words(chart)}, {described_in_table(ratios)}.")
    invalid = _invalid(run, chart)
    said += [invalid] if invalid else []
    left_out = left_out_note([chart], "in flight")
    return " ".join([*said, f"{left_out[0].upper()}{left_out[1:]}." if left_out else ""]).strip()


def _invalid(run: Run, chart: Chart) -> str:
    rows = run.serving
    loads = rows["load_name"].isin(set(chart.rows["load_name"]))
    closed = rows[loads & rows["concurrency"].isin(chart.loads)]
    number = int((closed["verdict"] != "VALID").sum())
    return f"INVALID and not in the means: {count(number)} of {count(len(closed))} cells." if number else ""


def _name(line: Line) -> str:
    versions = sorted({version for rows in line.at.values() for version in rows["system_version"]})
    version = "" if line.system == OURS else f" {' and '.join(versions)}"
    return line.label.replace(line.style.name, f"{line.style.name}{version}", 1)


def _throughputs(line: Line, loads: list[float], most: int) -> list[str]:
    """Means; with the number of repetitions where some are missing."""
    spreads = line.spread(COLUMN)
    cells = []
    for load in loads:
        found = spreads.get(load)
        if found is None:
            cells.append(UNDEFINED)
        else:
            cells.append(
                three_digits(found.mean) + ("" if found.number == most else f" ({found.number} rep.)")
            )
    return cells


def _ratio(chart: Chart, compared: Compared | None) -> str:
    """The ratio, its interval, and the rival where there are several to choose from."""
    if compared is None:
        return UNDEFINED
    found = compared.ratio
    interval = f" [{found.low:.3f}, {found.high:.3f}]" if found.number > 1 else ""
    rival = f" {compared.rival.style.name}" if chart.base is None else ""
    return f"{found.mean:.3f}{interval}{rival}"


def _ratio_in_words(chart: Chart) -> str:
    if chart.base is not None:
        return f"a configuration / {chart.base.label}"
    return f"{SYSTEMS[OURS].name} / the peer of the highest mean"
