"""Every kernel test runs twice: here under Triton's interpreter, and marked gpu on a device."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton
import triton.experimental.gluon  # first launches import it, and it refuses interpreted functions
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from engine.kernels import (
    activation,
    append_chosen,
    decode_attention,
    few_rows,
    paged_attention,
    rms_norm,
    rope,
    row_inputs,
    row_tiles,
)
from tests.engine.kernels.measured import Place

_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
_WITH_FUNCTIONS = (
    activation,
    append_chosen,
    decode_attention,
    few_rows,
    paged_attention,
    rms_norm,
    rope,
    row_inputs,
    row_tiles,
    tl,
    tl.standard,
)
_PATCHED_BY_TRITON = (tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)


def _places() -> Iterator[object]:
    # The interpreter's arithmetic is numpy's, which knows no bfloat16.
    for dtype in (torch.float32, torch.float16):
        yield pytest.param(Place("cpu", dtype), id=f"interpreter-{dtype}")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        yield pytest.param(Place("cuda", dtype), id=f"cuda-{dtype}", marks=[pytest.mark.gpu, _NO_GPU])


@contextmanager
def _interpreted() -> Iterator[None]:
    """Every kernel is replaced by its interpreted twin.

    The interpreter is otherwise a setting of the whole process. Its functions that call others leave the
    language patched, which would break the next compilation, so everything is put back here.
    """
    before = [(owner, dict(vars(owner))) for owner in _WITH_FUNCTIONS + _PATCHED_BY_TRITON]
    for owner in _WITH_FUNCTIONS:
        for name, value in list(vars(owner).items()):
            if isinstance(value, triton.JITFunction):
                setattr(owner, name, InterpretedFunction(value.fn))
    yield
    for owner, members in before:
        for name, value in members.items():
            if vars(owner)[name] is not value:
                setattr(owner, name, value)


@pytest.fixture(params=_places())
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where the kernels run and in which dtype."""
    torch.manual_seed(0)
    if request.param.device == "cpu":
        with _interpreted():
            yield request.param
    else:
        yield request.param
