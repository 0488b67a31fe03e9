"""Server-sent events, parsed from bytes as they arrive.

Follows "Interpreting an event stream" of the HTML standard
(https://html.spec.whatwg.org/multipage/server-sent-events.html): lines end in CR LF, LF or CR; a line that
starts with a colon is a comment; one space after the field's colon is dropped; several data lines are joined
with LF; an empty line ends the event; an unfinished event at the end of the stream is not one. Bytes are
never decoded here, so a character split over two reads is no special case, and no length of a line is too
long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """`stamp_ns` is that of the read that completed the event; `name` is b"" when the stream gives none."""

    stamp_ns: int
    data: bytes
    name: bytes


class SseParser:
    """Incremental: however a stream is cut into reads, the same events come out.

    `between_events` is true when the bytes so far end exactly where an event ends.
    """

    __slots__ = ("_at_start", "_data", "_line", "_name", "_skip_line_feed", "between_events")

    def __init__(self) -> None:
        # Pieces of a line that has not ended: joined once, so that a long line costs linear time.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._name = b""
        # The last read ended in CR: a LF right after it belongs to the same line end.
        self._skip_line_feed = False
        self._at_start = True
        self.between_events = False

    def feed(self, data: bytes, stamp_ns: int) -> list[SseEvent]:
        """Events completed by these bytes, in order."""
        events = self._feed_lines(data, stamp_ns)
        self.between_events = not (
            self._line or self._data or self._name or self._skip_line_feed or self._at_start
        )
        return events

    def _feed_lines(self, data: bytes, stamp_ns: int) -> list[SseEvent]:
        if self._skip_line_feed and data:
            self._skip_line_feed = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._skip_line_feed = data.endswith(b"\r")
        *ended, rest = _LINE_END.split(data)
        events = []
        for piece in ended:
            self._line.append(piece)
            line = b"".join(self._line)
            self._line.clear()
            if event := self._end_line(line, stamp_ns):
                events.append(event)
        if rest:
            self._line.append(rest)
        return events

    def _end_line(self, line: bytes, stamp_ns: int) -> SseEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch(stamp_ns)
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self, stamp_ns: int) -> SseEvent | None:
        event = SseEvent(stamp_ns, b"\n".join(self._data), self._name) if self._data else None
        self._data.clear()
        self._name = b""
        return event
