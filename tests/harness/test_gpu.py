import itertools
import time
from types import SimpleNamespace

import pytest

from harness import gpu as gpu_module
from harness.gpu import GpuSampler, describe, open_nvml, strangers_on


class FakeError(Exception):
    pass


class FakeNvml:
    """Two GPUs of which the second knows neither energy nor ECC; energy grows by 50 mJ a reading."""

    NVMLError = FakeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self):
        self.energy = 1000
        self.processes = {0: [], 1: []}

    def nvmlSystemGetDriverVersion(self):
        return b"580.1"

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle):
        return "Fake H200"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=2**37)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980 if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetEccMode(self, handle):
        return [1, 1] if handle == 0 else self.unsupported()

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.processes[handle]]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle == 1:
            self.unsupported()
        self.energy += 50
        return self.energy

    def nvmlDeviceGetPowerUsage(self, handle):
        return 350_000

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1700 if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 55

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 4

    def unsupported(self):
        raise FakeError("not supported")


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeNvml()


def test_every_gpu_is_described_and_what_it_does_not_know_is_empty(nvml):
    first, second = describe(nvml)
    assert (first.name, first.uuid, first.driver, first.memory_bytes) == (
        "Fake H200",
        "GPU-0",
        "580.1",
        2**37,
    )
    assert (first.max_sm_clock_mhz, first.max_memory_clock_mhz, first.power_limit_mw) == (1980, 3201, 700_000)
    assert (first.ecc, second.ecc) == (True, None)


@pytest.mark.parametrize(("visible", "indices"), [("1", [1]), ("1,0", [1, 0]), ("GPU-1", [1]), ("", [])])
def test_only_visible_gpus_count(nvml, monkeypatch, visible, indices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in describe(nvml)] == indices


def test_readings_count_from_the_start_of_play(nvml, monkeypatch):
    monkeypatch.setattr(gpu_module, "SAMPLE_INTERVAL_S", 0.001)
    before_ns = time.monotonic_ns()
    with GpuSampler(nvml, describe(nvml)) as sampler:
        while nvml.energy < 1300:
            time.sleep(0.001)
        end_ns = time.monotonic_ns()
    assert max(row.t_ns for row in sampler.rows("c0", end_ns)) >= 0, "the end of the play is not covered"
    rows = sampler.rows("c0", before_ns)
    first = [row for row in rows if row.gpu == 0]
    assert [row.energy_mj for row in first] == [1050 + 50 * i for i in range(len(first))]
    assert all(0 <= earlier.t_ns <= later.t_ns for earlier, later in itertools.pairwise(first))
    assert (first[0].power_mw, first[0].sm_clock_mhz, first[0].temperature_c) == (350_000, 1700, 55)
    assert {row.energy_mj for row in rows if row.gpu == 1} == {None}


def test_other_processes_on_the_gpu_are_named_once_they_had_time_to_leave(nvml, monkeypatch):
    monkeypatch.setattr(gpu_module, "RELEASE_LIMIT_S", 0.05)
    monkeypatch.setattr(gpu_module, "SAMPLE_INTERVAL_S", 0.01)
    gpus = describe(nvml)[:1]
    nvml.processes[1] = [99]
    assert strangers_on(nvml, gpus) == []
    nvml.processes[0] = [41, 42]
    assert strangers_on(nvml, gpus) == ["pid 41 on GPU 0", "pid 42 on GPU 0"]


def test_without_gpus_nobody_is_asked():
    assert strangers_on(None, ()) == []


def test_a_machine_without_a_driver_has_no_nvml(monkeypatch):
    def no_driver():
        raise gpu_module.pynvml.NVMLError(gpu_module.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(gpu_module.pynvml, "nvmlInit", no_driver)
    assert open_nvml() is None
