"""What the device keeps of one sequence beside its tokens and blocks: one row of 64-bit words a slot."""

import numpy as np
import torch

from engine.kernels.append_chosen import Columns
from engine.serving.plan import Admit

MAX_STOP_IDS = 32
MAX_LOGIT_BIAS = 300

# One description for both sides: the host fills a record, the device reads its columns. What every step
# reads comes first, the bias, which is rare and long, last.
# The first three are the state that a step changes.
ROW = np.dtype(
    [
        ("length", np.int64),  # of tokens known: the newest one is at length - 1
        ("finished", np.int64),  # 0 or 1
        ("max_length", np.int64),
        ("stop_ids", np.int64, MAX_STOP_IDS),  # -1 where there is none
        ("prompt_length", np.int64),
        ("min_length", np.int64),  # no stop id is chosen before
        ("top_k", np.int64),
        ("seed", np.int64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("biased", np.int64),  # how many of the entries below are valid
        ("bias_ids", np.int64, MAX_LOGIT_BIAS),
        ("bias", np.float32, MAX_LOGIT_BIAS),
    ]
)
ROW_WORDS = ROW.itemsize // 8
_TORCH = {np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


def words_before(name: str) -> int:
    """Words of a row that come before the column `name`."""
    return ROW.fields[name][1] // 8


def column(rows: torch.Tensor, name: str) -> torch.Tensor:
    """A column of rows: (n, words) int64, as a view (n,) or (n, width) of the column's dtype."""
    field, offset = ROW.fields[name][:2]
    view = rows.view(_TORCH[field.base])
    first = offset // field.base.itemsize
    return view[:, first : first + field.shape[0]] if field.shape else view[:, first]


def columns(rows: torch.Tensor) -> Columns:
    """All columns but the state's own, which stand together: of rows (slots, words) int64, as views."""
    names = [name for name in ROW.names if name not in ("length", "finished", "max_length")]
    return Columns(state=rows[:, : words_before("stop_ids")], **{name: column(rows, name) for name in names})


def packed_row(admit: Admit) -> np.ndarray:
    """The words of an admitted sequence's row: (n,) int64, up to the last one that is needed."""
    params, row = admit.params, np.zeros(1, ROW)
    record = row[0]
    record["length"] = len(admit.tokens)
    record["max_length"] = admit.max_length
    record["stop_ids"] = -1
    record["stop_ids"][: len(admit.stop_ids)] = admit.stop_ids
    record["prompt_length"] = admit.prompt_length
    record["min_length"] = admit.prompt_length + params.min_tokens
    record["top_k"] = params.top_k
    record["seed"] = params.seed
    record["temperature"] = params.temperature
    record["top_p"] = params.top_p
    record["min_p"] = params.min_p
    record["repetition"] = params.repetition_penalty
    record["presence"] = params.presence_penalty
    record["frequency"] = params.frequency_penalty
    if not params.logit_bias:
        return row.view(np.int64)[: words_before("bias_ids")]
    addends: dict[int, float] = {}
    for token, addend in params.logit_bias:
        addends[token] = addends.get(token, 0) + addend
    biased = record["biased"] = len(addends)
    record["bias_ids"][:biased], record["bias"][:biased] = list(addends), list(addends.values())
    return row.view(np.int64)
