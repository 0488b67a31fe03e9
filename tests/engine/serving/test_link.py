"""Frames survive any cut of the byte stream, and carry every field."""

from hypothesis import given
from hypothesis import strategies as st

from engine.serving import link
from engine.serving.request import Finish, SamplingParams, TokenLogprobs, Update

updates = st.lists(
    st.builds(
        Update,
        request_id=st.integers(0, 2**60),
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
    stream = b"".join(link.pack_step(step, STATS) for step in steps) + link.pack(link.ADD, add)
    told = [Update(1, [4], Finish.NOT_YET, 0, logprobs=(TokenLogprobs(-0.5, (4, 2), (-0.5, -1.5)),))]
    stream += link.pack_step(told, STATS)
    reader, frames = link.FrameReader(), []
    for at in range(0, len(stream), piece):
        frames += reader.feed(stream[at : at + piece])
    tail = [(link.ADD, add), (link.STEP_WITH_LOGPROBS, (told, STATS))]
    assert frames == [(link.STEP, (step, STATS)) for step in steps] + tail
