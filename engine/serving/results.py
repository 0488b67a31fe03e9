"""What the results of a queued step say: news of its requests, and which of them are over."""

from dataclasses import dataclass

import numpy as np

from engine.serving.news import News, listed
from engine.serving.plan import Results
from engine.serving.request import Finish, Request, Update
from engine.serving.slots import Slots


@dataclass(slots=True, eq=False)
class ChunkWork:
    """A prompt chunk of a queued step: positions start … computed-1."""

    request: Request
    start: int
    computed: int


@dataclass(slots=True, eq=False)
class QueuedStep:
    """sampled: the slots of its results. decode_steps: those planned up to here, which tell how long it
    leaves a sequence. filling: requests of which it fills a block by decoding.
    """

    sampled: np.ndarray
    decode_steps: int
    filling: list[Request]
    chunks: list[ChunkWork]


def read(step: QueuedStep, results: Results, slots: Slots) -> tuple[News, list[tuple[Request, Finish]]]:
    """Take new tokens over into the histories; the news of requests that had not ended, and who ends now."""
    at, rows = step.sampled, results.rows
    appended, tokens, finished, _ = rows.T
    slots.history[at, slots.base[at] + (step.decode_steps - 1)] = tokens
    live = slots.live[at]
    finishes = np.zeros(len(rows), np.int64)
    over = []
    for row in (finished * live).nonzero()[0].tolist():
        request = slots.owner[at[row]]
        finishes[row] = finish = _reason(request, *rows[row].tolist())
        over.append((request, finish))
    news = News(slots.ids[at], appended, finishes, slots.cached[at], tokens)
    if np.count_nonzero(appended * live) < len(rows):
        news = _only(news, live, appended > 0)
    if results.logprobs or results.prompt_logprobs:
        news = _with_logprobs(news, step, results, slots)
    return news, over


def _reason(request: Request, appended: int, token: int, _: int, broken: int) -> Finish:
    """Why a sequence is over, from its result row."""
    if broken:
        return Finish.BROKEN
    return Finish.STOP if appended and token in request.stop_ids else Finish.LENGTH


def _only(news: News, live: np.ndarray, appended: np.ndarray) -> News:
    """The news of requests that had not ended, without tokens that were not appended."""
    rows = news.ids, news.counts, news.finishes, news.cached
    return News(*(column[live] for column in rows), news.tokens[live & appended])


def _with_logprobs(news: News, step: QueuedStep, results: Results, slots: Slots) -> News:
    """The news with log probabilities: a step reports for all of its requests what one of them asked."""
    if results.logprobs:
        for slot, appended, found in zip(step.sampled, results.rows[:, 0], results.logprobs, strict=True):
            request = slots.owner[slot]
            if appended and request.finish is Finish.NOT_YET and request.params.logprobs is not None:
                news.logprobs[request.id] = (found,)
    told, silent = set(news.ids.tolist()), []
    for work in step.chunks:
        request = work.request
        if request.slot not in results.prompt_logprobs or request.finish is not Finish.NOT_YET:
            continue
        # A prompt computed again after a preemption is reported once only.
        prompt = results.prompt_logprobs[request.slot][max(0, request.reported - work.start) :]
        request.reported += len(prompt)
        news.prompt_logprobs[request.id] = prompt
        if request.id not in told:
            silent.append(Update(request.id, [], Finish.NOT_YET, request.cached))
    return listed([news, News.of(silent)]) if silent else news
