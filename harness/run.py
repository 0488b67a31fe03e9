"""A run, from its stage to its folder: freeze the schedules, measure every cell, store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.agreement import agreement, by_system, shortfalls
from harness.client.ceiling import measure_ceiling
from harness.client.player import PlayError, play
from harness.correctness import ask, compared, end_token_ids, force, not_answered, run_reference
from harness.gpu import strangers_on
from harness.plan import (
    WORKLOAD,
    ChosenSystem,
    PlannedCell,
    build_schedules,
    cell_id,
    planned_cells,
    write_schedule,
)
from harness.play import PlayedCell, not_played, play_cell, window_ns
from harness.progress import phase, say
from harness.provenance import anonymous
from harness.rows import serving_row
from harness.schema import (
    SCHEMA_VERSION,
    CellRecord,
    ClientCeiling,
    CorrectnessRow,
    Manifest,
    ReferenceCheck,
    ScheduleInfo,
    ServingRow,
)
from harness.servers import Servers
from harness.store import RunWriter, check_name_is_free, list_runs
from harness.survey import RunOptions, Survey, survey, utc_now
from harness.systems.environment import PROJECT
from harness.systems.process import RunningServer, ServerError
from harness.tables import records_to_csv
from harness.workload.chat import chat_turn


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its rows, its correctness rows, and where they agree less than declared."""

    path: Path
    serving: list[ServingRow]
    correctness: list[CorrectnessRow]
    shortfalls: list[str]

    @property
    def valid(self) -> bool:
        return all(row.verdict == "VALID" for row in self.serving) and not self.shortfalls


def run_stage(options: RunOptions) -> Outcome:
    """Measures a stage and stores it; what goes wrong with one system becomes INVALID rows.

    Raises BadInput, StoreError or CorrectnessError when it cannot be done.
    """
    for old in list_runs(options.results):
        if old.state == "incomplete" and old.stage == options.stage.name:
            say(f"incomplete run of this stage at {old.path} (killed, or still running): it does not count")
    if options.run is not None:
        check_name_is_free(options.results, options.run)
    found = survey(options)
    writer = RunWriter(options.results, found.identity.run, options.stage.name, found.created_at)
    return _StageRun(options, found, writer).measure()


@dataclass(frozen=True)
class _Circumstances:
    """What all cells of one server share."""

    startup_s: float
    correctness_identical: bool | None
    strangers: list[str]


@dataclass
class _StageRun:
    """The run in progress, and what its steps add up to."""

    options: RunOptions
    survey: Survey
    writer: RunWriter
    schedule_sha256: dict[str, str] = field(default_factory=dict)
    cells: list[CellRecord] = field(default_factory=list)
    rows: list[ServingRow] = field(default_factory=list)
    correctness: list[CorrectnessRow] = field(default_factory=list)
    ceiling: ClientCeiling | None = None
    reference: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.plan = self.options.stage.on(self.options.device)
        self.schedules = build_schedules(self.options.stage, self.plan, chat_turn(self.survey.model.folder))
        self.servers = Servers(self.options, self.survey, self.writer.folder)

    def measure(self) -> Outcome:
        if self.survey.source.diff is not None:
            self.writer.write("dirty.diff.gz", self.survey.source.diff.encode())
        self.schedule_sha256 = {
            name: write_schedule(schedule, self._schedule_file(name))
            for name, schedule in self.schedules.items()
        }
        self._measure_ceiling()
        self._make_reference()
        planned = planned_cells(self.plan, self.survey.systems)
        for chosen in self.survey.systems:
            self._measure_system(chosen, [cell for cell in planned if cell.chosen is chosen])
        if self.plan.correctness is not None:
            self.writer.write("correctness.csv", records_to_csv(CorrectnessRow, self.correctness))
        path = self.writer.finish(self._manifest(), self.rows)
        return Outcome(path, self.rows, self.correctness, self._shortfalls())

    def _schedule_file(self, name: str) -> Path:
        return self.writer.folder / "schedules" / f"{name}.jsonl"

    def _measure_ceiling(self) -> None:
        if self.plan.ceiling is None:
            return
        with phase("client ceiling"):
            ceiling = measure_ceiling(
                workers=self.plan.client_workers,
                window_s=self.plan.ceiling.seconds,
                concurrency=self.plan.ceiling.concurrency,
            )
        self.ceiling = ClientCeiling(**asdict(ceiling))

    def _make_reference(self) -> None:
        if self.plan.correctness is None:
            return
        with phase("reference: transformers, fp32"):
            self.reference = run_reference(
                self.options.environments[PROJECT],
                self.survey.model.folder,
                self._schedule_file("correctness"),
                self.writer.logs,
                self.options.device,
                self.options.root,
            )

    def _measure_system(self, chosen: ChosenSystem, planned: list[PlannedCell]) -> None:
        """All cells of a system on one server; the check before, on its own server where formats differ."""
        checked = self.plan.correctness is not None and chosen.system.name in self.plan.correctness.systems
        check_here = checked and self.plan.dtype == self.plan.correctness.dtype
        identical = self._check_separately(chosen) if checked and not check_here else None
        if not planned and not check_here:
            return
        strangers = strangers_on(self.survey.gpu.nvml, self.survey.gpu.gpus)
        around = _Circumstances(0.0, identical, strangers)
        waiting = list(planned)
        try:
            purpose = "timed cells" if planned else "correctness"
            with self.servers.up(chosen, self.plan.dtype, purpose) as server:
                identical = self._check(chosen, server) if check_here else identical
                around = _Circumstances(server.startup_s, identical, strangers)
                if planned:
                    self._warm_up(chosen, server)
                while waiting:
                    self._measure_cell(waiting[0], server, around)
                    waiting.pop(0)
        except (ServerError, PlayError) as error:
            say(f"{chosen.label}: {error}")
            reason = str(error).splitlines()[0]
            if check_here and identical is None:
                self._note_no_answers(chosen, reason)
            for cell in waiting:
                self._store(cell, not_played(self._cell_id(cell), reason), around)

    def _warm_up(self, chosen: ChosenSystem, server: RunningServer) -> None:
        with phase(f"{chosen.label}: warm-up"):
            play(
                self._schedule_file("warmup"),
                server.url,
                self.survey.model.info.name,
                workers=self.plan.client_workers,
                timeout_s=self.plan.request_timeout_s,
            )

    def _check_separately(self, chosen: ChosenSystem) -> bool:
        try:
            with self.servers.up(chosen, self.plan.correctness.dtype, "correctness") as server:
                return self._check(chosen, server)
        except ServerError as error:
            say(f"{chosen.label}: {error}")
            self._note_no_answers(chosen, str(error).splitlines()[0])
            return False

    def _note_no_answers(self, chosen: ChosenSystem, reason: str) -> None:
        answers = not_answered(self.reference, reason)
        self.correctness += compared(chosen.system.name, self.reference, answers, set())

    def _check(self, chosen: ChosenSystem, server: RunningServer) -> bool:
        schedule, model = self.schedules["correctness"], self.survey.model
        with phase(f"{chosen.label}: correctness", total=len(schedule.requests)) as advance:
            answers = ask(server.url, model.info.name, schedule, advance)
        forced = None
        if self.plan.correctness.min_forced_agreement is not None:
            with phase(f"{chosen.label}: teacher forcing", total=len(schedule.requests)) as advance:
                forced = force(server.url, model.info.name, schedule, self.reference, advance)
        rows = compared(chosen.system.name, self.reference, answers, end_token_ids(model.folder), forced)
        self.correctness += rows
        return not self._less_than_declared(rows)

    def _less_than_declared(self, rows: list[CorrectnessRow]) -> list[str]:
        declared = self.plan.correctness
        return shortfalls(agreement(rows), declared.min_identical, declared.min_forced_agreement)

    def _shortfalls(self) -> list[str]:
        return [
            f"{system}: {line}"
            for system in by_system(self.correctness)
            for line in self._less_than_declared([row for row in self.correctness if row.system == system])
        ]

    def _measure_cell(self, planned: PlannedCell, server: RunningServer, around: _Circumstances) -> None:
        played = play_cell(
            planned,
            self._cell_id(planned),
            self._schedule_file(planned.cell.name),
            server.url,
            self.survey.model.info.name,
            self.plan,
            self.survey.gpu,
        )
        self._store(planned, played, around)

    def _cell_id(self, planned: PlannedCell) -> str:
        chosen, source = planned.chosen, self.survey.source.source
        return cell_id(
            {
                "system": chosen.system.name,
                "version": self.servers.version(chosen),
                "diff_sha256": source.diff_sha256 if chosen.system.runs_in_checkout else None,
                "config": chosen.config_name,
                "flags": chosen.configuration.flags,
                "model": self.survey.model.info.sha256,
                "device": self.options.device,
                "dtype": self.plan.dtype,
                "max_model_len": self.options.stage.declared.max_model_len,
                "schedule": self.schedule_sha256[planned.cell.name],
                "window": window_ns(planned.cell),
                "repetition": planned.repetition,
            }
        )

    def _store(self, planned: PlannedCell, played: PlayedCell, around: _Circumstances) -> None:
        """The cell's raw rows and record on disk, and its summary row in memory."""
        chosen, load = planned.chosen, planned.cell
        start_ns, end_ns = window_ns(load)
        record = CellRecord(
            cell=self._cell_id(planned),
            name=load.name,
            system=chosen.system.name,
            system_version=self.servers.version(chosen),
            config=chosen.config_name,
            prefix_cache=chosen.configuration.prefix_cache,
            dtype=self.plan.dtype,
            device=self.options.device,
            num_gpus=len(self.survey.gpu.gpus),
            workload=WORKLOAD,
            load=load.load,
            concurrency=load.concurrency,
            rate_rps=load.rate_rps,
            schedule_sha256=self.schedule_sha256[load.name],
            schedule_exhausted=played.schedule_exhausted,
            failure=played.failure,
            repetition=planned.repetition,
            position=planned.position,
            started_at=played.started_at,
            startup_s=around.startup_s,
            window_start_ns=start_ns,
            window_end_ns=end_ns,
            slo_ttft_ms=self.plan.slo.ttft_ms,
            slo_tpot_ms=self.plan.slo.tpot_ms,
            ceiling_events_per_s=self.ceiling.events_per_s if self.ceiling else None,
            correctness_identical=around.correctness_identical,
            undeclared_gpu_processes=around.strangers,
            limits=self.plan.limits.model_dump(),
        )
        self.writer.add_cell(record, played.frames)
        self.cells.append(record)
        self.rows.append(serving_row(self.survey.identity, record, *played.frames.values()))

    def _manifest(self) -> Manifest:
        identity = self.survey.identity
        return Manifest(
            schema_version=SCHEMA_VERSION,
            run=identity.run,
            stage=self.options.stage.name,
            stage_sha256=self.options.stage.sha256,
            created_at=self.survey.created_at,
            finished_at=utc_now(),
            command=[anonymous(argument, self.options.root) for argument in self.options.command],
            source=identity.source,
            box=identity.box,
            hardware=identity.hardware,
            environments=self.survey.environments,
            servers=self.servers.launches,
            model=identity.model,
            schedules=[
                ScheduleInfo(file=f"schedules/{name}.jsonl", sha256=sha256)
                for name, sha256 in self.schedule_sha256.items()
            ],
            client_ceiling=self.ceiling,
            reference_check=self._reference_check(),
            cells=self.cells,
            files=[],
            logs=[],
            complete=False,
        )

    def _reference_check(self) -> ReferenceCheck | None:
        if self.reference is None:
            return None
        found = agreement(self.correctness)
        return ReferenceCheck(
            prompts=found.prompts,
            identical=found.identical,
            max_tokens=self.plan.correctness.max_tokens,
            device=self.reference["device"],
            dtype=self.reference["dtype"],
            attention=self.reference["attention"],
            packages=self.reference["packages"],
            wall_s=self.reference["wall_s"],
            system_dtype=self.plan.correctness.dtype,
            min_identical=self.plan.correctness.min_identical,
            min_forced_agreement=self.plan.correctness.min_forced_agreement,
            identical_share=found.identical_share,
            forced_agreement=found.forced_share,
        )
