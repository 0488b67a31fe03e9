"""Host memory of queued steps: what goes to the device in one copy, and what comes back."""

import torch


class Staging:
    """Buffers of one queued step, pinned on a GPU; free again once its results have been read.

    sent: (words,) int64, as numpy in `words`. results: (rows, 4) int64. Nothing may write them before `done`.
    """

    def __init__(self, words: int, rows: int, device: str) -> None:
        pinned = device == "cuda"
        self.sent = torch.zeros(words, dtype=torch.int64, pin_memory=pinned)
        self.words = self.sent.numpy()
        self.results = torch.zeros(rows, 4, dtype=torch.int64, pin_memory=pinned)
        self.done = torch.cuda.Event() if pinned else None
