"""The event stream parser: the standard's rules, and independence of how bytes are cut into reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.sse import SseParser


def events_of(*reads: bytes) -> list[tuple[int, bytes, bytes]]:
    """(number of the read that completed it, data, name) of each event."""
    parser = SseParser()
    return [tuple(event) for number, read in enumerate(reads) for event in parser.feed(read, number)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [(b"a", b"")]),
        (b"data:a\n\n", [(b"a", b"")]),
        (b"data:  a \n\n", [(b" a ", b"")]),
        (b"data: a\r\n\r\n", [(b"a", b"")]),
        (b"data: a\r\rdata: b\r\r", [(b"a", b""), (b"b", b"")]),
        (b"data: a\n\r\ndata: b\r\n\n", [(b"a", b""), (b"b", b"")]),
        (b"data: a\n\ndata: b\n\n", [(b"a", b""), (b"b", b"")]),
        (b"data: {\ndata:  1\ndata: }\n\n", [(b"{\n 1\n}", b"")]),
        (b": ping\n\ndata: a\n\n:\n\n", [(b"a", b"")]),
        (b": note\ndata: a\n: note\n\n", [(b"a", b"")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [(b"a", b"error"), (b"b", b"")]),
        (b"event: x\n\ndata: a\n\n", [(b"a", b"")]),
        (b"id: 3\nretry: 10\nother\ndata: a\n\n", [(b"a", b"")]),
        (b"data\n\n", [(b"", b"")]),
        (b"data: a\ndata\n\n", [(b"a\n", b"")]),
        (b"\n\n\ndata: a\n\n\n\n", [(b"a", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"a", b"")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"a", b"")]),
        (b" data: a\n\n", []),
        (b"data: unfinished\n", []),
        (b"data: unfinished", []),
        ("data: ä€😀\n\n".encode(), [("ä€😀".encode(), b"")]),
        (b"data: a:b: c\n\n", [(b"a:b: c", b"")]),
        (b"data: a\x0bb\x0cc\x85\n\n", [(b"a\x0bb\x0cc\x85", b"")]),
    ],
)
def test_rules_of_the_standard(stream: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert [(data, name) for _, data, name in events_of(stream)] == expected


def test_stamp_is_of_the_read_that_completes_the_event() -> None:
    assert events_of(b"da", b"ta: a\n", b"\ndata: b\n\n", b"data: c\r\n\r", b"\n") == [
        (2, b"a", b""),
        (2, b"b", b""),
        (3, b"c", b""),
    ]


def test_character_cut_in_two_is_whole_again() -> None:
    euro = "€".encode()
    assert events_of(b"data: " + euro[:1], euro[1:2], euro[2:] + b"\n\n") == [(2, euro, b"")]


def test_very_long_line_in_small_reads() -> None:
    text = b"x" * 3_000_000
    stream = b"data: " + text + b"\n\n"
    reads = [stream[start : start + 4096] for start in range(0, len(stream), 4096)]
    assert events_of(*reads) == [(len(reads) - 1, text, b"")]


def test_between_events_only_where_an_event_has_just_ended() -> None:
    parser = SseParser()
    seen = []
    for read in (b"", b"data: a", b"\n", b"\n", b"event: x\n", b"\n", b": c", b"\n", b"data: b\r\n\r", b"\n"):
        parser.feed(read, 0)
        seen.append(parser.between_events)
    assert seen == [False, False, False, True, False, True, False, True, False, True]


PIECES = st.sampled_from(
    [
        *(b"data: ", b"data:", b"data", b"event: error", b": ping", b"id: 1", b" ", b":"),
        *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"),
        *("ä😀".encode(), b"\xef\xbb\xbf", b'{"a": 1}', b"[DONE]"),
    ]
)


@given(st.lists(PIECES, max_size=40).map(b"".join), st.data())
def test_any_cut_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reads = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = [event[1:] for event in events_of(stream)]
    assert [event[1:] for event in events_of(*reads)] == whole
    assert [event[1:] for event in events_of(*(stream[i : i + 1] for i in range(len(stream))))] == whole


@given(st.lists(st.tuples(st.text(), st.sampled_from(["\n", "\r\n", "\r"])), max_size=8))
def test_what_was_encoded_comes_back(items: list[tuple[str, str]]) -> None:
    """One line end for each event; data lines hold anything but line ends."""
    stream, expected = b"", []
    for text, end in items:
        lines = text.replace("\r", "\n").split("\n")
        stream += "".join(f"data: {line}{end}" for line in lines).encode() + end.encode()
        expected.append("\n".join(lines).encode())
    assert [data for _, data, _ in events_of(stream)] == expected
