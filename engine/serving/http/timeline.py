"""Which tokens go with which piece of text, also when text is held back."""

from collections import deque
from dataclasses import dataclass

from engine.serving.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a choice. start: where its text begins in the text of the choice, in characters;
    generated: False for those of an echoed prompt; logprobs: None where none are known."""

    id: int
    start: int
    generated: bool
    logprobs: TokenLogprobs | None


class Timeline:
    """Tokens wait here until their text is shown.

    A token that completes no character by itself waits for the one that does. The tokens of a piece of text
    are thus those whose bytes it consists of, wherever a possible stop string holds text back.
    """

    def __init__(self) -> None:
        self._made = 0
        self._without_text: list[Token] = []
        self._waiting: deque[tuple[int, Token]] = deque()

    def add(
        self, token_id: int, text: str, logprobs: TokenLogprobs | None = None, generated: bool = True
    ) -> None:
        """The next token, and the text that it completes."""
        self._without_text.append(Token(token_id, self._made, generated, logprobs))
        if text:
            self._made += len(text)
            self._waiting += [(self._made, token) for token in self._without_text]
            self._without_text.clear()

    def take(self, shown: int, ended: bool) -> list[Token]:
        """The tokens whose text lies in the first `shown` characters; all that are left once the choice has
        ended, for those of a stop string and of the end of a sequence never show."""
        tokens = []
        while self._waiting and (ended or self._waiting[0][0] <= shown):
            tokens.append(self._waiting.popleft()[1])
        if ended:
            tokens += self._without_text
            self._without_text.clear()
        return tokens
