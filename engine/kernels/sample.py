"""Choosing the next token: greedy, or temperature / top-k / top-p / min-p with reproducible noise.

The noise of a draw depends on (seed, position, token id) alone, never on the batch: a counter-based
generator (a 64-bit finaliser after Stafford's "mix13", as in Steele, Lea and Flood, OOPSLA 2014) replaces
a stateful one. The draw itself is the Gumbel-max trick: argmax(log p + g), g standard Gumbel.
"""

import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX_A = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_B = -7723592293110705685  # 0x94D049BB133111EB


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The 64-bit finaliser, elementwise on int64 (arithmetic wraps; shifts made logical by masks)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_A
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_B
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def uniform_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Uniform numbers in (0, 1), fp32, (R, vocab_size), keyed by (seed, position, token id).

    seeds, positions: (R,) int64.
    """
    keys = _mixed(_mixed(seeds * _GOLDEN + positions) + positions * _GOLDEN)
    tokens = torch.arange(vocab_size, dtype=torch.int64, device=seeds.device)
    bits = _mixed(keys[:, None] + tokens * _GOLDEN)
    return (((bits >> 40) & 0xFFFFFF).float() + 0.5) * (1.0 / (1 << 24))


def keep_mask(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Which tokens may be drawn: (R, V) bool from temperature-scaled scores (R, V).

    top_k: (R,) int64, 0 = off; top_p, min_p: (R,) fp32, 1 and 0 = off. The filters act one after another,
    as in the OpenAI-compatible servers: the k best; of those the smallest set whose probability reaches p
    (the token that crosses it included); of the whole, tokens with at least min_p of the best one's
    probability. The best token always stays.
    """
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    allowed = (top_k[:, None] == 0) | (rank < top_k[:, None])
    ranked = ranked.masked_fill(~allowed, float("-inf"))
    probabilities = ranked.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    allowed &= (top_p[:, None] >= 1) | (before < top_p[:, None])
    allowed &= probabilities >= min_p[:, None] * probabilities[:, :1]
    allowed[:, 0] = True
    return torch.zeros_like(allowed).scatter_(1, order, allowed)


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
    gumbel = -torch.log(-torch.log(uniform_noise(seeds, positions, logits.shape[-1])))
    return torch.where(temperature > 0, (scores + gumbel).argmax(dim=-1), greedy)
