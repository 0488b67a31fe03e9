"""JSON over HTTPS with an account key that must not get anywhere else.

The key travels in a header only: redirects are refused, since they would carry it to another host; it is cut
out of every text that becomes an error; plain HTTP is for loopback only.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import ProviderError, RemoteError

TRIES = 6
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MAX_ANSWER_BYTES = 64 * 2**20
SHOWN_CHARACTERS = 300
HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "llm-ladder"}
NEVER_SENT = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)


class Key:
    """An account key; its repr does not show it."""

    def __init__(self, value: str) -> None:
        # The standard library quotes a header that it refuses, and with it the key.
        if not re.fullmatch(r"[\x21-\x7e]{8,512}", value):
            raise RemoteError(
                "the API key is unusable: must be 8 to 512 printable ASCII characters, no space"
            )
        self._value = value

    def header(self) -> str:
        return f"Bearer {self._value}"

    def cut_from(self, text: str) -> str:
        return text.replace(self._value, "[key]")

    def __repr__(self) -> str:
        return "Key(…)"


class Fault(ProviderError):
    """A request without a usable answer.

    `status`: HTTP status, None without an answer; `body`: the JSON object of the answer, empty if none;
    `text`: the answer as text; `sent`: False when the request cannot have reached the server; `pause_s`: how
    long the server asks to wait.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        text: str = "",
        sent: bool = True,
        pause_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.text, self.sent, self.pause_s = status, text, sent, pause_s
        self.body: Mapping[str, Any] = _object(text) or {}

    @property
    def code(self) -> str:
        return str(self.body.get("error") or "")

    @property
    def passing(self) -> bool:
        """Whether the same request may work later. A daily quota does not come back in time."""
        if self.code == "search_quota_exceeded":
            return False
        return self.status is None or self.status < 300 or self.status in (408, 429) or self.status >= 500


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True)
class Api:
    """`base`: URL without a path; `timeout_s`: limit of one request, in seconds."""

    base: str
    key: Key
    clock: Clock = SYSTEM_CLOCK
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.base)
        loopback = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
        if parts.scheme != "https" and not loopback:
            raise RemoteError(f"API address {self.base!r}: must be https:// (http:// on loopback only)")

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        tries: int = TRIES,
    ) -> Mapping[str, Any]:
        """The JSON object that the server answers.

        What can pass is tried again, `tries` times in all: 1 is for what must not happen twice. Raises Fault.
        """
        url = self.base.rstrip("/") + path + ("?" + urllib.parse.urlencode(query) if query else "")
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(tries)):
            try:
                return self._ask(method, url, path, body)
            except Fault as fault:
                too_long = (fault.pause_s or 0) > LONGEST_PAUSE_S
                if not left or not fault.passing or too_long:
                    raise
                # Spread, so that controllers that were turned away together do not come back together.
                self.clock.sleep(fault.pause_s or pause_s * random.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("tries must be at least 1")

    def public_text(self, url: str) -> str | None:
        """A text for anyone who has its URL, asked for without the key; None while it is not there."""
        if self.base.startswith("https://") and not url.startswith("https://"):
            raise ProviderError(f"the provider gave an address that is not https://: {_short(url)!r}")
        try:
            return self._read(urllib.request.Request(url), f"GET {urllib.parse.urlsplit(url).path}")
        except Fault as fault:
            if fault.status in (403, 404):
                return None
            raise

    def _ask(self, method: str, url: str, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        request = urllib.request.Request(
            url,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers=HEADERS,
        )
        request.add_unredirected_header("Authorization", self.key.header())
        text = self._read(request, f"{method} {path}")
        answer = _object(text)
        if answer is None:
            raise Fault(f"{method} {path}: the answer is no JSON object: {_short(text)!r}", 200, text)
        return answer

    def _read(self, request: urllib.request.Request, what: str) -> str:
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                return self.key.cut_from(_whole(answer, self.timeout_s))
        except urllib.error.HTTPError as error:
            with error:
                text = self.key.cut_from(_whole_if_it_comes(error, self.timeout_s))
            pause_s = _seconds(error.headers.get("Retry-After"))
            message = f"{what}: status {error.code}: {_short(text)}"
            raise Fault(message, error.code, text, pause_s=pause_s) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            message = self.key.cut_from(f"{what}: no answer: {type(reason).__name__} {reason}".rstrip())
            raise Fault(message, sent=not isinstance(reason, NEVER_SENT)) from None


def _whole(answer: Any, limit_s: float) -> str:
    """Reads to the end. The time-out of a socket limits each read only, and a trickle passes it."""
    end, parts, size = time.monotonic() + limit_s, [], 0
    while part := answer.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise OSError(f"the answer is longer than the limit of {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > end:
            raise TimeoutError(f"the answer took longer than the limit of {limit_s:g} s")
    return b"".join(parts).decode("utf-8", "replace")


def _whole_if_it_comes(error: urllib.error.HTTPError, limit_s: float) -> str:
    try:
        return _whole(error, limit_s)
    except (OSError, http.client.HTTPException):
        return ""


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS] + "…"


def _seconds(text: str | None) -> float | None:
    """Retry-After as a number; a date in it is left aside."""
    return float(text) if text and re.fullmatch(r"\d{1,9}", text.strip()) else None
