"""Choosing the next token: greedy, or temperature / top-k / top-p / min-p with reproducible noise.

The noise of a draw depends on (seed, position, token id) alone, never on the batch: a counter-based
generator (a 64-bit finaliser after Stafford's "mix13", as in Steele, Lea and Flood, OOPSLA 2014) replaces
a stateful one. The draw itself is the Gumbel-max trick: argmax(log p + g), g standard Gumbel.
"""

import torch

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
MIX_A = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_B = -7723592293110705685  # 0x94D049BB133111EB
# Below it -log(1 - v) is v + v² / 2 to fp32, while 1 - v has lost bits of v.
SMALL = 2.0**-11


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The 64-bit finaliser, elementwise on int64 (arithmetic wraps; shifts made logical by masks)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX_A
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX_B
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel numbers, fp32, (R, vocab_size), keyed by (seed, position, token id).

    seeds, positions: (R,) int64.
    """
    keys = _mixed(_mixed(seeds * GOLDEN + positions) + positions * GOLDEN)
    tokens = torch.arange(vocab_size, dtype=torch.int64, device=seeds.device)
    return gumbel_of(_mixed(keys[:, None] + tokens * GOLDEN))


def gumbel_of(bits: torch.Tensor) -> torch.Tensor:
    """-log(-log(1 - v)), fp32, of v made from the upper halves of uniform 64-bit numbers.

    A draw is decided by the largest numbers, which small v make: those keep all their bits here, and none is
    infinite, which would win over every probability. v stays below 1 as well: minus infinity would lose
    against nothing where a single token may be drawn.
    """
    v = (((bits >> 32) & 0xFFFFFFFF).float() + 0.5) * 2.0**-32
    v = v.clamp(max=1 - 2.0**-24)
    return -torch.log(torch.where(v < SMALL, v + v * v / 2, -torch.log(1 - v)))


def keep_mask(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Which tokens may be drawn: (R, V) bool from temperature-scaled scores (R, V).

    top_k: (R,) int64, 0 = off; top_p, min_p: (R,) fp32, 1 and 0 = off. The filters act one after another,
    as in the OpenAI-compatible servers: the k best; of those the smallest set whose probability reaches p
    (the token that crosses it included); of the whole, tokens with at least min_p of the best one's
    probability. Tokens as probable as the last one that stays also stay, and the best one always does.
    """
    ranked = scores.sort(dim=-1, descending=True).values
    last = torch.where(top_k == 0, scores.shape[-1], top_k).clamp(max=scores.shape[-1]) - 1
    allowed = ranked >= ranked.gather(1, last[:, None])
    probabilities = ranked.masked_fill(~allowed, float("-inf")).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    allowed &= (top_p[:, None] >= 1) | (before < top_p[:, None])
    allowed &= probabilities >= min_p[:, None] * probabilities[:, :1]
    allowed[:, 0] = True
    least = ranked.masked_fill(~allowed, float("inf")).amin(dim=-1, keepdim=True)
    return scores >= least


def penalised(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    prompt_length: torch.Tensor,
    length: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Logits (R, V) with the three penalties applied; all other arguments but tokens (R, L) are (R,).

    repetition (Keskar et al., 2019, arXiv:1909.05858): positive logits of tokens seen in prompt or output are
    divided by it, negative ones multiplied. presence and frequency (OpenAI API): subtracted once, and once
    per occurrence, for tokens of the output. Counts come from the history itself: no other state exists.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device)
    known = index < length[:, None]
    counts = torch.zeros(2, *logits.shape, dtype=torch.int32, device=logits.device)
    counts[0].scatter_add_(1, tokens, known.int())
    counts[1].scatter_add_(1, tokens, (known & (index >= prompt_length[:, None])).int())
    factor = torch.where(counts[0] > 0, repetition[:, None], 1.0).to(logits.dtype)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    used = (counts[1] > 0) * presence[:, None] + counts[1] * frequency[:, None]
    return logits - used.to(logits.dtype)


def top_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Natural-log probabilities under softmax(logits) (R, V): of tokens (R,), and of the `count` best.

    Returns (R,) fp32, (R, count) int64 ids and (R, count) fp32, best first.
    """
    logprobs = logits.float().log_softmax(-1)
    top, ids = logprobs.topk(count, dim=-1)
    return logprobs.gather(1, tokens[:, None])[:, 0], ids, top


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    filtered: bool,
) -> torch.Tensor:
    """Next token ids (R,) int64 from logits (R, V); rows of temperature 0 are greedy.

    `positions` is the index each new token will have in its sequence. `filtered` says whether any row
    uses top-k, top-p or min-p; without it the sort is left out. A filter that is off changes nothing, so
    a row's result does not depend on what its batch mates ask for.
    """
    greedy = logits.argmax(dim=-1)
    scores = logits.float() / temperature.clamp(min=1e-5)[:, None]
    if filtered:
        scores = scores.masked_fill(~keep_mask(scores, top_k, top_p, min_p), float("-inf"))
    gumbel = gumbel_noise(seeds, positions, logits.shape[-1])
    return torch.where(temperature > 0, (scores + gumbel).argmax(dim=-1), greedy)
