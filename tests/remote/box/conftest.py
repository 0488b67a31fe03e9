"""Fixtures of tests on loopback boxes."""

from __future__ import annotations

from tests.remote.sshd import box

__all__ = ["box"]
