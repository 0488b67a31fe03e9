"""What is known before the first measurement: code, machine, interpreters, model, and the systems here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import BadInput
from harness.gpu import describe, open_nvml
from harness.models import PreparedModel, prepare_model, served_elsewhere
from harness.plan import ChosenSystem, present_systems
from harness.play import GpuAccess
from harness.progress import phase, say
from harness.provenance import box_name, read_environment, read_hardware, utc_now
from harness.rank import winners
from harness.rows import RunIdentity
from harness.schema import Environment
from harness.source import SourceState, read_source
from harness.stage import Stage
from harness.systems.environment import PROJECT, Interpreter
from harness.systems.openai import served_model

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for. `model`, `run` and `box` None: the stage's model, and made names.

    `systems` replace those of the stage. `budget_s`: no cell is begun that would not be over by then, counted
    from the start of the run. `after`: runs whose cells are not measured again. `tuned_by`: runs of the stage
    `tune` whose winners stand for the pinned configurations `tuned`.
    """

    stage: Stage
    device: Device
    environments: dict[str, Interpreter]
    results: Path
    root: Path
    command: list[str]
    model: str | None = None
    run: str | None = None
    box: str | None = None
    systems: tuple[str, ...] = ()
    budget_s: float | None = None
    after: tuple[str, ...] = ()
    tuned_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """All of it, fixed for the length of the run."""

    created_at: str
    identity: RunIdentity
    source: SourceState
    environments: dict[str, Environment]
    systems: list[ChosenSystem]
    model: PreparedModel
    gpu: GpuAccess


def survey(options: RunOptions) -> Survey:
    """Raises BadInput when a part of what was asked for is not there."""
    plan = options.stage.on(options.device).of_systems(options.systems)
    gpu = _gpus(options.device)
    tuned = winners(options.results, options.tuned_by)
    systems, absent = present_systems(plan, options.device, options.environments, tuned)
    for name in absent:
        say(f"{name} is left out: no environment for it (neither .venv-{name} nor --env {name}=PYTHON)")
    if not systems:
        raise BadInput(f"none of the systems of stage {options.stage.name} has an environment here")
    created_at = utc_now()
    hardware = read_hardware(list(gpu.gpus))
    project = options.environments[PROJECT]
    interpreters = {PROJECT: project} | {chosen.interpreter.name: chosen.interpreter for chosen in systems}
    with phase("environments"):
        environments = {name: read_environment(used, options.root) for name, used in interpreters.items()}
    with phase("model"):
        model = _model(options, systems, project)
    source = read_source(options.root)
    box = options.box or box_name(hardware)
    stamp = created_at.replace("-", "").replace(":", "")
    identity = RunIdentity(
        run=options.run or f"{options.stage.name}-{box}-{stamp}",
        box=box,
        hardware=hardware,
        source=source.source,
        model=model.info,
    )
    return Survey(created_at, identity, source, environments, systems, model, gpu)


def _model(options: RunOptions, systems: list[ChosenSystem], project: Interpreter) -> PreparedModel:
    """The model that every system serves; of servers that already run, what they say they serve."""
    urls = [chosen.system.url for chosen in systems if chosen.system.url is not None]
    if len(urls) < len(systems):
        name = options.model or options.stage.declared.model
        for_engine = any(chosen.system.name == "engine" for chosen in systems)
        return prepare_model(name, project, options.root, for_engine=for_engine)
    names = {served_model(url, options.model) for url in urls}
    if len(names) > 1:
        raise BadInput(f"the servers serve different models: {', '.join(sorted(names))}")
    return served_elsewhere(names.pop())


def _gpus(device: Device) -> GpuAccess:
    """The GPU that a run on cuda uses: the first visible one."""
    if device == "cpu":
        return GpuAccess(None, ())
    nvml = open_nvml()
    gpus = describe(nvml) if nvml is not None else []
    if not gpus:
        raise BadInput("device cuda: no NVIDIA GPU is visible here")
    return GpuAccess(nvml, gpus[:1])
