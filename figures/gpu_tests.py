"""The sentence of README.md about the GPU tests, from their receipt (`pytest -m gpu --receipt FILE`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd


def sentence(receipt: Path) -> str:
    """For which commit how many GPU tests ended how, and on what.

    Raises ValueError for a receipt of several commits or machines.
    """
    rows = pd.read_csv(receipt)
    same = rows[["git_commit", "dirty", "gpu", "torch", "triton"]].drop_duplicates()
    if len(same) != 1:
        raise ValueError(
            f"{receipt}: {len(same)} commits or machines; a receipt is of one run on one machine"
        )
    run = same.iloc[0]
    results = Counter(rows["result"])
    ended = ", ".join(
        f"{results[result]} {result}" for result in ("passed", "failed", "skipped") if results[result]
    )
    commit = run["git_commit"][:12] + (" with changes on top" if run["dirty"] else "")
    machine = f"one {run['gpu']}, PyTorch {run['torch']}, Triton {run['triton']}"
    return f"GPU tests (`pytest -m gpu`) at commit {commit}: {ended}; {machine}.\n"
