"""Errors of remote boxes. Messages name the value and the limit, and never hold a key."""

from __future__ import annotations


class RemoteError(Exception):
    """Something about a remote box went wrong."""


class ProviderError(RemoteError):
    """The provider could not be asked, refused, or answered what cannot be used."""


class OfferGone(ProviderError):
    """The offer was taken or withdrawn; nothing was rented. Another one may do."""


class Busy(ProviderError):
    """The provider asks for patience; nothing was rented. The same request may work later."""


class Refused(ProviderError):
    """The account cannot rent: wrong key or no credit. Other offers will not help."""


class Unclear(ProviderError):
    """A box may exist and cost money although no usable one was returned.

    `box_id` is its id where the provider told it, otherwise the box can be found by its label only.
    """

    def __init__(self, message: str, box_id: str | None = None) -> None:
        super().__init__(message)
        self.box_id = box_id
