"""A run, from its stage to its folder: freeze the schedules, measure every cell, store.

A run that was killed goes on where it was when it is started again under its name: finished cells are known
by their content address, which covers everything that they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.book import ScheduleBook
from harness.check import Checker
from harness.client.ceiling import measure_ceiling
from harness.client.player import PlayError, play
from harness.errors import BadInput
from harness.finish import identity_of, write_run
from harness.gpu import strangers_on
from harness.knee import grid, next_probe
from harness.notes import Notes
from harness.plan import (
    BETWEEN_CELLS_S,
    ChosenSystem,
    PlannedCell,
    build_cell,
    build_correctness,
    build_warmup,
    cell_id,
    comparable_blocks,
    planned_cells,
    schedule_name,
)
from harness.play import GpuAccess, PlayedCell, not_played, play_cell, window_ns
from harness.progress import minutes, phase, say
from harness.provenance import utc_now
from harness.rows import CellTables, serving_row
from harness.schema import (
    CellRecord,
    ClientCeiling,
    CorrectnessRow,
    KneeRow,
    KneeSearch,
    ServingRow,
)
from harness.search import declared, knees, outcomes
from harness.servers import Fleet, Servers
from harness.stage import CellPlan, SearchPlan
from harness.store import (
    RunWriter,
    StoreError,
    check_name_is_free,
    list_runs,
    load_run,
    partial_path,
)
from harness.survey import RunOptions, Survey, survey
from harness.systems.base import ServerError
from harness.systems.process import RunningServer
from harness.verdict import RULES
from harness.workload.build import describe_load, describe_workload
from harness.workload.chat import chat_turn
from harness.workload.declared import IdRange

CEILING_TOKENS = 64
QUIET_WARMUP_RATIO = 0.9
"""A warm-up round that takes more than this share of the one before says that the server is warm."""


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its rows, and where systems agree less with the reference than declared."""

    path: Path
    serving: list[ServingRow]
    correctness: list[CorrectnessRow]
    knees: list[KneeRow]
    shortfalls: list[str]

    @property
    def valid(self) -> bool:
        return all(row.verdict == "VALID" for row in self.serving) and not self.shortfalls


def run_stage(options: RunOptions) -> Outcome:
    """Measures a stage and stores it; what goes wrong with one system becomes INVALID rows.

    Raises BadInput, ScheduleError, StoreError or CorrectnessError when it cannot be done.
    """
    started = time.monotonic()
    for old in list_runs(options.results):
        if old.state == "incomplete" and old.stage == options.stage.name and old.run != options.run:
            say(f"incomplete run of this stage at {old.path}: --run {old.run} goes on with it")
    if options.run is not None:
        check_name_is_free(options.results, options.run)
    found = survey(options)
    writer = RunWriter(options.results, found.identity.run)
    try:
        return _StageRun(options, found, writer, started).measure()
    finally:
        writer.close()


class _StageRun:
    """The run in progress, and what its steps add up to."""

    def __init__(self, options: RunOptions, found: Survey, writer: RunWriter, started: float) -> None:
        self.options = options
        self.survey = found
        self.writer = writer
        self.started = started
        self.plan = options.stage.on(options.device).of_systems(options.systems)
        self.seed = options.stage.declared.seed
        self.book = ScheduleBook(writer.folder / "schedules")
        self.startup_s: dict[str, float] = {}
        self.cells: list[CellRecord] = []
        self.rows: dict[str, ServingRow] = {}
        self.notes = Notes(writer, options, found)
        launched = len(self.notes.started.servers)
        self.servers = Servers(options, found, writer.folder, launched, self.notes.add_launch)
        self.checker = self._checker()

    def _checker(self) -> Checker | None:
        if self.plan.correctness is None:
            return None
        schedule = build_correctness(self.plan.correctness, chat_turn(self.survey.model.folder))
        self.book.freeze(schedule)
        noted = self.notes.started
        return Checker(
            self.plan.correctness, schedule, self.survey, list(noted.correctness), dict(noted.agrees)
        )

    def measure(self) -> Outcome:
        if self.survey.source.diff is not None:
            self.writer.write("dirty.diff.gz", self.survey.source.diff.encode())
        planned = planned_cells(self.plan, self.survey.systems)
        for cell in planned:
            self._freeze(cell.cell, cell.repetition)
        self.notes.set_plan(self._searches(), len(planned))
        self._measure_ceiling()
        if self.checker is not None:
            self.checker.make_reference(self.options, self.book, self.writer)
            self.notes.set_checks(self.checker)
        for process in strangers_on(self.survey.gpu.nvml, self.survey.gpu.gpus):
            say(f"{process} is not part of this run: every cell that it is there in will be INVALID")
        self._check_in_own_format()
        with Fleet(self.servers, self.plan, self._make_ready) as fleet:
            kept = self._measure_cells(planned, fleet)
            position = len(planned)
            if kept == len(planned):
                for search in self.plan.searches:
                    for chosen in self.survey.systems:
                        position = self._search(search, chosen, position, fleet)
            self._check_the_rest(fleet)
        return self._finish(planned_total=position if kept == len(planned) else len(planned))

    def _freeze(self, cell: CellPlan, repetition: int) -> None:
        """The schedule of one repetition in its file. Raises BadInput for token ids that the model lacks."""
        vocab = self.survey.model.info.shape.get("vocab")
        if isinstance(cell.prompts, IdRange) and vocab is not None and cell.prompts.ids[1] > vocab:
            raise BadInput(
                f"{cell.name}: prompts of token ids below {cell.prompts.ids[1]}, but "
                f"{self.survey.model.info.name} has a vocabulary of {vocab}"
            )
        self.book.freeze(build_cell(cell, repetition, self.seed))

    def _measure_ceiling(self) -> None:
        if self.plan.ceiling is None:
            return
        with phase("client ceiling"):
            ceiling = measure_ceiling(
                workers=self.plan.client_workers,
                window_s=self.plan.ceiling.seconds,
                concurrency=self.plan.ceiling.concurrency,
                tokens=self._shortest_answers(),
            )
        self.notes.set_ceiling(ClientCeiling(**asdict(ceiling)))

    def _check_in_own_format(self) -> None:
        """Systems whose check has another number format than the cells, each on a server of its own."""
        if self.checker is None or self.plan.correctness.dtype == self.plan.dtype:
            return
        for chosen in self.survey.systems:
            if self.checker.is_due(chosen):
                self.checker.check_separately(chosen, self.servers)
                self.notes.set_checks(self.checker)

    def _check_the_rest(self, fleet: Fleet) -> None:
        """Systems that are still to be checked: there was no cell to start a server for."""
        for chosen in self.survey.systems if self.checker is not None else ():
            if self.checker.is_due(chosen):
                try:
                    fleet.turn_to(chosen)
                except ServerError as error:
                    say(f"{chosen.label}: {error}")
                    self.checker.note_no_answers(chosen, str(error).splitlines()[0])
                    self.notes.set_checks(self.checker)

    def _shortest_answers(self) -> int:
        """Tokens of an answer where they are shortest on average: requests cost more than events do."""
        means = [self.book[schedule_name(cell, 0)].mean_tokens for cell in self.plan.cells]
        return round(min(means)) if means else CEILING_TOKENS

    def _make_ready(self, chosen: ChosenSystem, server: RunningServer) -> None:
        """A server that has just come up: its greedy output first, then warm-up."""
        self.startup_s[chosen.label] = server.startup_s
        if self.checker is not None and self.checker.is_due(chosen):
            self.checker.check(chosen, server)
            self.notes.set_checks(self.checker)
        if self.plan.warmup is not None:
            self._warm_up(chosen, server)

    def _warm_up(self, chosen: ChosenSystem, server: RunningServer) -> None:
        before_s = float("inf")
        for number in range(self.plan.warmup.max_rounds):
            schedule = build_warmup(self.plan.warmup, number, self.seed)
            self.book.freeze(schedule)
            with phase(f"{chosen.label}: warm-up {number + 1}"):
                try:
                    _, _, info = play(
                        self.book.path(schedule.name),
                        server.url,
                        server.model,
                        workers=self.plan.client_workers,
                        timeout_s=self.plan.request_timeout_s,
                    )
                except PlayError as error:
                    raise ServerError(str(error)) from error
            if info.played_s > QUIET_WARMUP_RATIO * before_s:
                return
            before_s = info.played_s

    def _measure_cells(self, planned: Sequence[PlannedCell], fleet: Fleet) -> int:
        """Measures what is not finished; how many cells of the plan are, which is fewer when time is over."""
        elsewhere = {cell for run in self.options.after for cell in _measured(self.options.results, run)}
        missing = [cell for cell in planned if self._cell_id(cell) not in {*self.writer.cells, *elsewhere}]
        fleet.start([chosen for chosen in self.survey.systems if any(m.chosen is chosen for m in missing)])
        to_play_s = sum(cell.takes_s for cell in missing)
        done = 0
        for block in comparable_blocks(planned):
            block_s = sum(cell.takes_s for cell in block if cell in missing)
            if block_s and self._over_budget(block_s + self._startup_s(block, missing)):
                say(f"time is over: {len(planned) - done} cells of the plan are not measured")
                for cell in planned[done:]:
                    if self._cell_id(cell) in self.writer.cells:
                        self._measure_cell(cell, fleet)  # which an earlier process finished
                return done
            for cell in block:
                if self._cell_id(cell) in elsewhere:
                    continue
                if cell in missing:
                    say(f"cell {cell.position + 1} of {len(planned)}, about {minutes(to_play_s)} to go")
                    to_play_s -= cell.takes_s
                self._measure_cell(cell, fleet)
            done += len(block)
        return done

    def _startup_s(self, block: Sequence[PlannedCell], missing: Sequence[PlannedCell]) -> float:
        """Usual time until the servers that a block needs are up, where one runs at a time."""
        if self.plan.residents is not None:
            return 0.0
        turns = [cell.chosen for cell in block if cell in missing]
        starts = [now for before, now in zip([None, *turns], turns, strict=False) if now is not before]
        return sum(chosen.system.usual_startup_s for chosen in starts)

    def _over_budget(self, next_s: float) -> bool:
        budget_s = self.options.budget_s
        return budget_s is not None and time.monotonic() - self.started + next_s > budget_s

    def _search(self, search: SearchPlan, chosen: ChosenSystem, position: int, fleet: Fleet) -> int:
        """Tries rates until the knee is known, a cell says nothing, or time is over; the next position."""
        rates = grid(search.low_rps, search.high_rps, search.ratio)
        tried: list[ServingRow] = []
        while (rate := next_probe(rates, outcomes(declared(search), tried), search.repetitions)) is not None:
            cell = search.cell_at(rate)
            if self._over_budget(cell.play_s + BETWEEN_CELLS_S):
                say(f"time is over: search {search.name} of {chosen.label} is not finished")
                return position
            repetition = sum(row.load_name == cell.name for row in tried)
            self._freeze(cell, repetition)
            before = outcomes(declared(search), tried)
            tried.append(self._measure_cell(PlannedCell(position, chosen, cell, repetition), fleet))
            position += 1
            if outcomes(declared(search), tried) == before:
                say(f"search {search.name} of {chosen.label} ends: {tried[-1].reasons}")
                return position
        return position

    def _measure_cell(self, planned: PlannedCell, fleet: Fleet) -> ServingRow:
        """The summary row of a cell, which is measured unless an earlier process of the run has done so."""
        cell = self._cell_id(planned)
        if cell not in self.writer.cells:
            try:
                server = fleet.turn_to(planned.chosen)
                played = play_cell(
                    planned,
                    cell,
                    self.book.path(planned.schedule),
                    server,
                    self.plan,
                    self._gpu(planned.chosen),
                    fleet.processes,
                )
                fleet.check(planned.chosen)
            except ServerError as error:
                say(f"{planned.chosen.label}: {error}")
                played = not_played(cell, str(error).splitlines()[0])
            self.writer.add_cell(self._record(planned, cell, played, fleet.residents), played.frames)
        record = self.writer.cells[cell]
        row = serving_row(identity_of(self.writer, record), record, CellTables.of(self.writer.frames(cell)))
        self.cells.append(record)
        self.rows[cell] = row
        return row

    def _gpu(self, chosen: ChosenSystem) -> GpuAccess:
        """The GPUs a system runs on: nothing is known of those of a server that somebody else started."""
        return self.survey.gpu if chosen.system.url is None else GpuAccess(None, ())

    def _cell_id(self, planned: PlannedCell) -> str:
        chosen, source = planned.chosen, self.survey.source.source
        return cell_id(
            {
                "system": chosen.system.name,
                "version": self.servers.version(chosen),
                "diff_sha256": source.diff_sha256 if chosen.system.runs_in_checkout else None,
                "config": chosen.config_name,
                "flags": chosen.configuration.flags,
                "variables": chosen.configuration.variables,
                "entry": chosen.configuration.entry,
                "memory_share": self._memory_share(chosen),
                "model": self.survey.model.info.sha256,
                "device": self.options.device,
                "dtype": self.plan.dtype,
                "max_model_len": self.options.stage.declared.max_model_len,
                "schedule": self.book[planned.schedule].sha256,
                "window": window_ns(planned.cell),
                "repetition": planned.repetition,
            }
        )

    def _memory_share(self, chosen: ChosenSystem) -> float | None:
        return self.plan.memory_share(chosen.label)

    def _record(
        self, planned: PlannedCell, cell: str, played: PlayedCell, residents: list[str]
    ) -> CellRecord:
        chosen, load = planned.chosen, planned.cell
        frozen = self.book[planned.schedule]
        start_ns, end_ns = window_ns(load)
        ceiling = self.notes.ceiling
        agrees = self.checker.agrees.get(chosen.label) if self.checker is not None else None
        return CellRecord(
            cell=cell,
            name=load.name,
            system=chosen.system.name,
            system_version=self.servers.version(chosen),
            config=chosen.config_name,
            prefix_cache=chosen.configuration.prefix_cache,
            dtype=self.plan.dtype,
            device=self.options.device,
            num_gpus=len(self._gpu(chosen).gpus),
            workload=describe_workload(load.prompts, load.output, frozen.left_out),
            load=load.load.shape,
            concurrency=load.load.concurrency if load.is_closed else None,
            rate_rps=frozen.rate_rps,
            schedule_sha256=frozen.sha256,
            schedule_exhausted=played.schedule_exhausted,
            failure=played.failure,
            repetition=planned.repetition,
            position=planned.position,
            started_at=played.started_at,
            startup_s=self.startup_s.get(chosen.label, 0.0),
            window_start_ns=start_ns,
            window_end_ns=end_ns,
            slo_ttft_ms=self.plan.slo.ttft_ms,
            slo_tpot_ms=self.plan.slo.tpot_ms,
            ceiling_events_per_s=ceiling.events_per_s if ceiling else None,
            correctness_identical=agrees,
            undeclared_gpu_processes=list(played.strangers),
            limits=self.plan.limits.model_dump(),
            session=self.notes.session,
            load_label=describe_load(load.load),
            memory_share=self._memory_share(chosen),
            residents=residents,
            counters_before=played.counters_before,
            counters_after=played.counters_after,
            events_stride=played.events_stride,
            shares_prefixes=load.shares_prefixes,
            client_stall_ms=played.client_stall_ms,
            client_busy=played.client_busy,
            verdict_rules=RULES,
        )

    def _finish(self, planned_total: int) -> Outcome:
        rows = list(self.rows.values())
        searches = self._searches()
        self.notes.set_plan(searches, planned_total)
        path = write_run(self.writer, self.book.listed(), self.cells, rows, utc_now())
        return Outcome(
            path,
            rows,
            list(self.checker.rows) if self.checker is not None else [],
            knees(searches, rows),
            self.checker.shortfalls() if self.checker is not None else [],
        )

    def _searches(self) -> list[KneeSearch]:
        return [declared(search) for search in self.plan.searches]


def _measured(results: Path, run: str) -> list[str]:
    """VALID cells of a complete run. Raises StoreError when there is none."""
    if partial_path(results, run).is_dir():
        raise StoreError(f"run {run} is incomplete: finish it first, with --run {run}")
    serving = load_run(results / run).serving
    return serving[serving["verdict"] == "VALID"]["cell"].tolist()
