"""The `place` of the folder above, for the modules of attention."""

from collections.abc import Iterator

import pytest
import torch
import triton.language as tl

from engine.kernels import attention_backward, attention_forward, attention_work
from tests.engine.kernels import conftest as kernels
from tests.engine.kernels.measured import Place

_MODULES = (attention_backward, attention_forward, attention_work)
_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def interpreter_knows_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_WITH_FUNCTIONS", (*_MODULES, tl, tl.standard))


@pytest.fixture(
    params=[
        pytest.param(Place("cpu", torch.float32), id="interpreter-torch.float32"),
        pytest.param(Place("cpu", torch.float16), id="interpreter-torch.float16"),
        pytest.param(
            Place("cuda", torch.bfloat16), id="cuda-torch.bfloat16", marks=[pytest.mark.gpu, _NO_GPU]
        ),
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """One dtype on a device, where each takes seconds to compile; test_attention_gpu has the others."""
    torch.manual_seed(0)
    if request.param.device == "cpu":
        with kernels._interpreted():
            yield request.param
    else:
        yield request.param


@pytest.fixture
def interpreted(interpreter_knows_attention: None) -> Iterator[None]:
    """Kernels run on CPU tensors, of any dtype but bfloat16."""
    torch.manual_seed(0)
    with kernels._interpreted():
        yield
