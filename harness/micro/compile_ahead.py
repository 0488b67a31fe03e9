"""Compiling the candidates of a tuning command before any is timed."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

_MOST_WORKERS = 12  # each holds a CUDA context of half a gigabyte

Candidate = TypeVar("Candidate")


def compile_ahead(launch: Callable[[Candidate], object], found: Sequence[Candidate]) -> list[Candidate]:
    """Fill Triton's cache on disk by launching every candidate once, in a pool of processes.

    Returns those that run; the others are printed with the reason, which can be too much shared memory.
    """
    workers = max(1, min(_MOST_WORKERS, multiprocessing.cpu_count() - 2))
    spawned = multiprocessing.get_context("spawn")  # a forked process has no CUDA
    with ProcessPoolExecutor(workers, mp_context=spawned) as pool:
        errors = pool.map(partial(_launch_error, launch), found, chunksize=4)
        return [c for c, error in zip(found, errors, strict=True) if accepted(c, error)]


def accepted(candidate: object, error: str) -> bool:
    """Whether there is no error; one is printed."""
    if error:
        print(f"left out {candidate}: {error.splitlines()[0]}", flush=True)
    return not error


def _launch_error(launch: Callable[[Candidate], object], candidate: Candidate) -> str:
    try:
        launch(candidate)
        torch.cuda.synchronize()
    except (OutOfResources, PTXASError, CompilationError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
