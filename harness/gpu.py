"""What NVML says about the GPUs: identity, readings during a cell, and who else is on them.

`nvml` is the module pynvml, or anything with the same functions (tests bring a fake).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pynvml

from harness.schema import GpuInfo, GpuSampleRow

SAMPLE_INTERVAL_S = 0.1
RELEASE_LIMIT_S = 10.0


def open_nvml() -> ModuleType | None:
    """Initialised NVML, or None where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _or_none(nvml: Any, function: str, *arguments: Any) -> Any:
    """Result of an NVML query, None where the driver or the board does not support it."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def describe(nvml: Any) -> list[GpuInfo]:
    """Every GPU that CUDA_VISIBLE_DEVICES leaves, in its order."""
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    return [_describe(nvml, index, driver) for index in visible_indices(nvml)]


def visible_indices(nvml: Any) -> list[int]:
    """NVML indices of the GPUs that CUDA_VISIBLE_DEVICES names by number or UUID; all of them when unset."""
    count = nvml.nvmlDeviceGetCount()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(range(count))
    by_name = {str(index): index for index in range(count)}
    by_name |= {_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i))): i for i in range(count)}
    return [by_name[name.strip()] for name in wanted.split(",") if name.strip() in by_name]


def _describe(nvml: Any, index: int, driver: str) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ecc = _or_none(nvml, "nvmlDeviceGetEccMode", handle)
    return GpuInfo(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        driver=driver,
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        max_sm_clock_mhz=_or_none(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        max_memory_clock_mhz=_or_none(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM),
        power_limit_mw=_or_none(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle),
        ecc=bool(ecc[0]) if ecc is not None else None,
    )


def used_memory_bytes(nvml: Any, gpus: Sequence[GpuInfo]) -> list[int]:
    """Memory in use on each of the GPUs."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus]
    return [nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]


def free_memory_share(nvml: Any, gpus: Sequence[GpuInfo]) -> float:
    """The least share of memory that is free on any of the GPUs; 1 without GPUs."""
    shares = []
    for gpu in gpus:
        memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(gpu.index))
        shares.append(memory.free / memory.total)
    return min(shares, default=1.0)


def strangers_on(nvml: Any, gpus: Sequence[GpuInfo]) -> list[str]:
    """Compute processes on the GPUs before a server of ours is started, as `pid N on GPU I`.

    Waits a little for those of the server before it to disappear. A container may hide processes outside it.
    """
    deadline = time.monotonic() + RELEASE_LIMIT_S
    while (found := processes_on(nvml, gpus)) and time.monotonic() < deadline:
        time.sleep(SAMPLE_INTERVAL_S)
    return found


def processes_on(nvml: Any, gpus: Sequence[GpuInfo]) -> list[str]:
    """Compute processes on the GPUs at this moment, as `pid N on GPU I`."""
    found = []
    for gpu in gpus:
        running = _or_none(
            nvml, "nvmlDeviceGetComputeRunningProcesses", nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        )
        found += [f"pid {process.pid} on GPU {gpu.index}" for process in running or []]
    return found


class GpuSampler:
    """Reads energy, power, clocks and temperature in a thread of its own while a cell is played. `processes`
    are all that were seen on the GPUs.

    with GpuSampler(nvml, gpus) as sampler: ...play...
    rows = sampler.rows(cell, start_ns)      # start_ns: start of play on CLOCK_MONOTONIC
    """

    def __init__(self, nvml: Any, gpus: Sequence[GpuInfo]) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._readings: list[tuple[int, int, dict[str, int | None]]] = []
        self.processes: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def __enter__(self) -> GpuSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def rows(self, cell: str, start_ns: int) -> list[GpuSampleRow]:
        """The readings with their time counted from `start_ns`."""
        return [
            GpuSampleRow(cell=cell, gpu=gpu, t_ns=at - start_ns, **values)
            for at, gpu, values in self._readings
        ]

    def _sample(self) -> None:
        stopped = False
        while True:
            for gpu in self._gpus:
                self._readings.append((time.monotonic_ns(), gpu.index, _read(self._nvml, gpu.index)))
            self.processes.update(processes_on(self._nvml, self._gpus))
            if stopped:
                return  # after a last reading: a window is covered to its end
            stopped = self._stopped.wait(SAMPLE_INTERVAL_S)


def _read(nvml: Any, index: int) -> dict[str, int | None]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "energy_mj": _or_none(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle),
        "power_mw": _or_none(nvml, "nvmlDeviceGetPowerUsage", handle),
        "sm_clock_mhz": _or_none(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _or_none(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": _or_none(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": _or_none(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle),
    }
