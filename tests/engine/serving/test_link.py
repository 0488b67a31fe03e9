"""Frames survive any cut of the byte stream, and carry every field."""

from hypothesis import given
from hypothesis import strategies as st

from engine.serving import link
from engine.serving.news import News
from engine.serving.request import Finish, SamplingParams, TokenLogprobs, Update

updates = st.lists(
    st.builds(
        Update,
        request_id=st.one_of(st.integers(0, 3), st.integers(0, 2**60)),
        token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5),
        finish=st.sampled_from(Finish),
        cached_tokens=st.integers(0, 2**31 - 1),
    ),
    max_size=6,
)
STATS = {"running": 3, "waiting": 2, "kv_blocks_used": 7, "kv_blocks": 9, "preemptions": 1}


@given(st.lists(updates, min_size=1, max_size=4), st.integers(1, 50))
def test_step_frames_round_trip_in_any_pieces(steps: list[list[Update]], piece: int) -> None:
    add = link.Add(5, [1, 2], SamplingParams(stop=("x",), seed=-(2**63)), 1)
    stream = b"".join(link.pack_step(News.of(step), STATS) for step in steps) + link.pack(link.ADD, add)
    told = [Update(1, [4], Finish.NOT_YET, 0, logprobs=(TokenLogprobs(-0.5, (4, 2), (-0.5, -1.5)),))]
    stream += link.pack_step(News.of(told), STATS)
    reader, frames = link.FrameReader(), []
    for at in range(0, len(stream), piece):
        frames += reader.feed(stream[at : at + piece])
    tail = [(link.ADD, add), (link.STEP_WITH_LOGPROBS, (told, STATS))]
    found = [(kind, (list(body[0]), body[1])) if kind != link.ADD else (kind, body) for kind, body in frames]
    assert found == [(link.STEP, (step, STATS)) for step in steps] + tail


@given(st.lists(st.tuples(st.booleans(), updates), max_size=6))
def test_joined_steps_tell_what_they_told_apart(told: list[tuple[bool, list[Update]]]) -> None:
    """Each request's tokens in their order, its last finish; nothing moves past a frame of another kind."""
    frames: list[tuple[int, object]] = []
    for refused_before, step in told:
        if refused_before:
            frames.append((link.REFUSED, (1, "why")))
        alike = {update.request_id: update for update in step}  # a step tells a request once
        frames.append((link.STEP, (News.of(list(alike.values())), {**STATS, "running": len(frames)})))
    groups: list[dict[int, tuple[list[int], Finish]]] = [{}]
    for kind, body in frames:
        if kind == link.REFUSED:
            groups.append({})
            continue
        for update in body[0]:
            tokens, _ = groups[-1].get(update.request_id, ([], None))
            groups[-1][update.request_id] = (tokens + update.token_ids, update.finish)
    last_stats = [body[1] for kind, body in frames if kind == link.STEP][-1:]

    joined = link.joined(frames)
    seen: list[dict[int, tuple[list[int], Finish]]] = [{}]
    for kind, body in joined:
        if kind == link.REFUSED:
            seen.append({})
            continue
        for update in body[0]:
            tokens, _ = seen[-1].get(update.request_id, ([], None))
            seen[-1][update.request_id] = (tokens + update.token_ids, update.finish)
    assert seen == groups
    assert [body[1] for kind, body in joined if kind == link.STEP][-1:] == last_stats
    told_apart = [kind for kind, body in joined if kind == link.STEP and len(body[0])]
    assert len(told_apart) <= 1 + sum(kind == link.REFUSED for kind, _ in joined)
