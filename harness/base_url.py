"""Where an OpenAI-compatible server listens, as users write it."""

from __future__ import annotations

from urllib.parse import urlsplit


def split_base_url(url: str, what: str) -> tuple[str, int, str]:
    """Host, port and prefix of http://HOST[:PORT][/PREFIX], with or without a closing /v1.

    Raises ValueError for another URL; the message calls it `what`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise ValueError(f"{what} {url!r}: {error}") from error
    if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{what} {url!r} must have the form http://HOST[:PORT][/PREFIX]")
    return parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1")
