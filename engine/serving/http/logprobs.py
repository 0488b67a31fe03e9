"""Log probabilities as the two endpoints show them."""

from tokenizers import Tokenizer

from engine.serving.detokenizer import token_bytes
from engine.serving.http.timeline import Token

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have, as in OpenAI's answers."""


class TokenNames:
    """What answers call a token: its text; `bytes:\\xe2\\x80` where its bytes are no characters of their own;
    `<|end|>`, the name in the vocabulary, for a special token; `token_id:7` beyond the vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = token_bytes(tokenizer)
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def __getitem__(self, token_id: int) -> tuple[str, list[int] | None]:
        """(name, bytes); no bytes beyond the vocabulary."""
        if token_id not in self._known:
            self._known[token_id] = self._find(token_id)
        return self._known[token_id]

    def _find(self, token_id: int) -> tuple[str, list[int] | None]:
        data = self._bytes_of(token_id)
        if data is None:
            return f"token_id:{token_id}", None
        try:
            return data.decode(), list(data)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), list(data)


def completion_logprobs(
    names: TokenNames, tokens: list[Token], shown: int, count: int
) -> dict[str, list[object]]:
    """Parallel lists. text_offset: where each token's text begins in the choice's text, in characters; its
    end for tokens that are not shown. top_logprobs: the `count` best and the token itself, by name."""
    known = [token.logprobs for token in tokens]
    return {
        "text_offset": [min(token.start, shown) for token in tokens],
        "token_logprobs": [logprobs and _finite(logprobs.token) for logprobs in known],
        "tokens": [names[token.id][0] for token in tokens],
        "top_logprobs": [_best(names, token, count) for token in tokens],
    }


def _best(names: TokenNames, token: Token, count: int) -> dict[str, float] | None:
    if token.logprobs is None:
        return None
    best: dict[str, float] = {}
    for token_id, logprob in _top(token, count):
        best.setdefault(names[token_id][0], logprob)
    best.setdefault(names[token.id][0], _finite(token.logprobs.token))
    return best


def chat_logprobs(names: TokenNames, tokens: list[Token], shown: int, count: int) -> dict[str, object]:
    """An entry for each token, with the `count` best beside it."""
    content = [
        _entry(names, token.id, _finite(token.logprobs.token))
        | {"top_logprobs": [_entry(names, *pair) for pair in _top(token, count)]}
        for token in tokens
        if token.logprobs is not None
    ]
    return {"content": content, "refusal": None}


def _entry(names: TokenNames, token_id: int, logprob: float) -> dict[str, object]:
    name, data = names[token_id]
    return {"token": name, "logprob": logprob, "bytes": data}


def _top(token: Token, count: int) -> list[tuple[int, float]]:
    # The engine may report more than one request asked for, when another one of the step asked for more.
    ids, values = token.logprobs.top_ids[:count], token.logprobs.top[:count]
    return [(token_id, _finite(value)) for token_id, value in zip(ids, values, strict=True)]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
