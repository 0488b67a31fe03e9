"""One plain GET of a server under measurement: no proxies, no redirects, no retries."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

UNREACHABLE = (OSError, http.client.HTTPException)


def fetch(url: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of `path` (which begins with a slash) below `url`, http://HOST[:PORT][/PREFIX].

    Raises one of UNREACHABLE when there is no answer.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
