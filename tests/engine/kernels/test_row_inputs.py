"""row_inputs: the kernel against the reference."""

import pytest
import torch

from engine.kernels.row_inputs import row_inputs_reference, row_inputs_triton
from tests.engine.kernels.measured import Place


@pytest.mark.parametrize("rows", [1, 5, 32, 45])
def test_rows_are_looked_up(place: Place, rows: int) -> None:
    device, slots = place.device, 7
    table = torch.randint(2, 60, (slots, 9), device=device)  # the length is one column of several
    tokens = torch.randint(0, 1000, (slots, 64), device=device)
    blocks = torch.randint(0, 500, (slots, 16), device=device)
    slot = torch.randint(0, slots, (rows,), device=device)
    places = torch.where(
        torch.rand(rows, device=device) < 0.5, -1, torch.randint(0, 64, (rows,), device=device)
    )
    arguments = (slot, places, table[:, 3], tokens, blocks, 4)
    for found, expected in zip(row_inputs_triton(*arguments), row_inputs_reference(*arguments), strict=True):
        assert torch.equal(found, expected)
