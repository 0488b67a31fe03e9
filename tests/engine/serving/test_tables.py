"""The device tables: what Plans change reads back, and appending keeps to live sequences."""

import random

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.kernels.append_chosen import append
from engine.serving.plan import Admit, Features, Plan
from engine.serving.request import SamplingParams
from engine.serving.slot_row import MAX_LOGIT_BIAS, MAX_STOP_IDS, ROW, column
from engine.serving.tables import Tables

CONFIG = EngineConfig("cpu", "float64", max_model_len=40, num_blocks=30, block_size=4, max_num_seqs=6)


def plan_of(admits: list[Admit], grants: list[tuple[int, int, int]] = ()) -> Plan:
    granted = np.array(grants, np.int64).reshape(-1, 3)
    return Plan(tuple(admits), granted, np.zeros(0, np.int64), 0, (), Features.union([]))


def change(tables: Tables, plan: Plan) -> None:
    tables.write(*map(torch.from_numpy, tables.changes(plan)))


def test_changes_of_many_plans_read_back_and_touch_nothing_else() -> None:
    rng, tables = random.Random(0), Tables(CONFIG)
    tokens, blocks = tables.tokens.clone(), tables.block_table.clone()
    lengths = tables.length.clone()
    for _ in range(50):
        admits, grants = [], []
        for slot in rng.sample(range(6), 3):
            known = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 40)))
            admits.append(Admit(slot, known, 1, SamplingParams(), (), 40))
            tokens[slot, : len(known)], lengths[slot] = torch.tensor(known), len(known)
        for slot in rng.sample(range(6), rng.randint(0, 4)):
            first = rng.randint(0, 9)
            fresh = tuple(rng.randrange(1, 30) for _ in range(rng.randint(1, 10 - first)))
            grants += [(slot, first + i, block) for i, block in enumerate(fresh)]
            blocks[slot, first : first + len(fresh)] = torch.tensor(fresh)
        change(tables, plan_of(admits, grants))
        assert torch.equal(tables.tokens, tokens)
        assert torch.equal(tables.block_table, blocks)
        assert torch.equal(tables.length, lengths)


def test_every_column_of_a_row_reads_back() -> None:
    tables = Tables(CONFIG)
    params = SamplingParams(
        max_tokens=9, min_tokens=2, temperature=0.7, top_k=5, top_p=0.8, min_p=0.1, seed=-(1 << 63),
        repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=0.3,
        logit_bias=((3, 1.5), (4, -100.0)),
    )  # fmt: skip
    change(tables, plan_of([Admit(2, (7, 8, 9), 2, params, (11, 12), 11)]))
    want = {
        "length": 3, "finished": 0, "max_length": 11, "stop_ids": [11, 12] + [-1] * (MAX_STOP_IDS - 2),
        "prompt_length": 2, "min_length": 4, "top_k": 5, "seed": -(1 << 63), "temperature": 0.7, "top_p": 0.8,
        "min_p": 0.1, "repetition": 1.2, "presence": -0.5, "frequency": 0.3, "biased": 2,
        "bias_ids": [3, 4] + [0] * (MAX_LOGIT_BIAS - 2), "bias": [1.5, -100.0] + [0] * (MAX_LOGIT_BIAS - 2),
    }  # fmt: skip
    assert set(want) == set(ROW.names)
    for name, value in want.items():
        assert column(tables.rows, name)[2].tolist() == pytest.approx(value), name
    # A token that is named twice gets both addends.
    twice = SamplingParams(logit_bias=((3, 1.5), (4, 1.0), (3, 0.25)))
    change(tables, plan_of([Admit(2, (7,), 1, twice, (), 11)]))
    assert column(tables.rows, "biased")[2] == 2
    assert column(tables.rows, "bias_ids")[2, :2].tolist() == [3, 4]
    assert column(tables.rows, "bias")[2, :2].tolist() == [1.75, 1.0]
    # The next owner has no bias: that of the last one stays, but counts no more.
    change(tables, plan_of([Admit(2, (7,), 1, SamplingParams(), (), 11)]))
    assert column(tables.rows, "biased")[2] == 0


def test_append_leaves_finished_and_broken_sequences_as_they_are() -> None:
    tables = Tables(CONFIG)
    admits = [Admit(slot, (5, 6), 2, SamplingParams(), (9,), 4 if slot != 3 else 3) for slot in range(5)]
    change(tables, plan_of(admits))
    slots = torch.tensor([0, 1, 2, 3, 4, tables.pad_slot, tables.pad_slot])
    best = torch.tensor([1.0, 1.0, float("nan"), 1.0, float("inf"), float("nan"), 1.0])
    chosen = torch.tensor([7, 9, 7, 7, 7, 7, 8])
    pad = tables.rows[tables.pad_slot].clone()
    for repeat in range(2):
        rows = append(best, chosen, tables.columns, tables.tokens, slots).tolist()
        first = repeat == 0
        assert rows[0] == [1, 7, 0 if first else 1, 0]
        assert rows[1] == [int(first), 9, 1, 0]
        assert rows[2] == [0, 7, 1, int(first)]
        assert rows[3] == [int(first), 7, 1, 0]
        assert rows[4] == [0, 7, 1, int(first)]
        assert [row[0] for row in rows[5:]] == [0, 0] and [row[3] for row in rows[5:]] == [0, 0]
    assert tables.length[:5].tolist() == [4, 3, 2, 3, 2]
    assert tables.tokens[:5, :4].tolist() == [
        [5, 6, 7, 7], [5, 6, 9, 0], [5, 6, 0, 0], [5, 6, 7, 0], [5, 6, 0, 0]
    ]  # fmt: skip
    assert torch.equal(tables.rows[tables.pad_slot], pad)


def test_a_sequence_of_full_length_has_no_place_left() -> None:
    tables = Tables(CONFIG)
    change(tables, plan_of([Admit(5, tuple(range(39)), 1, SamplingParams(), (), 40)]))
    for _ in range(3):
        append(torch.ones(1), torch.tensor([77]), tables.columns, tables.tokens, torch.tensor([5]))
    assert tables.tokens[5].tolist() == [*range(39), 77]
    assert tables.length[5] == 40
    assert tables.tokens[tables.pad_slot].tolist() == [0] * 40


def test_nothing_changes_without_admissions_and_grants() -> None:
    addresses, values = Tables(CONFIG).changes(plan_of([]))
    assert addresses.dtype == values.dtype == np.int64
    assert len(addresses) == len(values) == 0
