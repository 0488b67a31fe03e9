"""The `place` of the folder above, for the modules of attention."""

from collections.abc import Iterator

import pytest
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorDescHandle, TensorHandle

from engine.kernels import attention_backward, attention_forward, attention_work
from tests.engine.kernels import conftest as kernels

_MODULES = (attention_backward, attention_forward, attention_work)


@pytest.fixture(autouse=True)
def interpreter_knows_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_WITH_FUNCTIONS", (*_MODULES, tl, tl.standard))
    monkeypatch.setattr(InterpreterBuilder, "create_descriptor_reduce", _descriptor_add, raising=False)


@pytest.fixture
def interpreted(interpreter_knows_attention: None) -> Iterator[None]:
    """Kernels run on CPU tensors, of any dtype but bfloat16."""
    torch.manual_seed(0)
    with kernels._interpreted():
        yield


def _descriptor_add(
    builder: InterpreterBuilder, kind: object, descriptor: TensorDescHandle, value: TensorHandle, place: list
) -> None:
    """What Triton's interpreter lacks: the reductions that a tensor descriptor takes."""
    pointers, inside = descriptor.materialize_pointers(place)
    builder.create_atomic_rmw(ir.ATOMIC_OP.FADD, pointers, value, inside, ir.MEM_SEMANTIC.RELAXED, None)
