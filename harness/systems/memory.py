"""How servers share a GPU's memory: what one may take, and whether a stopped one has given its own back."""

from __future__ import annotations

import math

from harness.systems.base import ServerError

# A server's CUDA context and NCCL's buffers, as a share of the GPU: they are there before the server looks at
# what is free. 2.8 GiB of an H200, 0.5 GiB of a GPU of 24 GiB.
CONTEXT_SHARE = 0.02
# Less than a CUDA context takes: what is left below it is no process, but the driver's own.
DRIVER_SLACK_BYTES = 256 << 20


def check_share(share: float, free_share: float) -> None:
    """Raises ServerError unless a server may have `share` of a GPU of which `free_share` is free."""
    if not 0 < share <= 1:
        raise ServerError(f"a share of {share:g} of the GPU's memory; it must lie in (0, 1]")
    if share + CONTEXT_SHARE > free_share:
        raise ServerError(
            f"a share of {share:g} of the GPU's memory, and {CONTEXT_SHARE:g} for its context, where only "
            f"{free_share:.3f} is free"
        )


def shown_share(share: float) -> str:
    """As a number of a command line, rounded down: never more than there is."""
    return f"{math.floor(round(share * 10_000, 6)) / 10_000:.4f}"


def is_back(used_before: int, used_now: int) -> bool:
    """A server has given its GPU memory back: bytes in use on the GPU (NVML's `used`) are what they were
    before it started, but for the driver's own."""
    return used_now <= used_before + DRIVER_SLACK_BYTES
