"""Programmatic dependent launch: a kernel of a chain starts while the one before it still runs.

A kernel that is launched so may read, before it waits (`gdc_wait`), only what the kernels before the last one
have written: each of a chain lets the next one start (`gdc_launch_dependents`) after its own wait, when all
before it is complete and visible. See "Programmatic Dependent Launch and Synchronization" in the CUDA
Programming Guide.
"""

import functools

import torch

_FIRST_CAPABILITY = (9, 0)


def early_launch(x: torch.Tensor) -> dict[str, bool]:
    """What a kernel over x gets so that it is launched so where x's device can: its constant EARLY, which
    says whether it has to wait, and the option of the launch."""
    if x.is_cuda and _capability(x.device.index) >= _FIRST_CAPABILITY:
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@functools.cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
