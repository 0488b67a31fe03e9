"""Programmatic dependent launch: a kernel of a chain starts while the one before it still runs.

A kernel that is launched so may read, before it waits (`gdc_wait`), only what the kernels before the last one
have written: each of a chain lets the next one start (`gdc_launch_dependents`) after its own wait, when all
before it is complete and visible. See "Programmatic Dependent Launch and Synchronization" in the CUDA
Programming Guide.
"""

import functools

import torch

_FIRST_CAPABILITY = (9, 0)


def launches_early(x: torch.Tensor) -> bool:
    """Whether kernels on x's device can be launched so."""
    return x.is_cuda and _capability(x.device.index) >= _FIRST_CAPABILITY


@functools.cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
