"""The skip where ssh servers cannot be had, and how it becomes a failure."""

from __future__ import annotations

import pytest

from tests.remote import sshd


def test_without_sshd_a_test_is_skipped_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv(sshd.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no sshd and no ssh and no rsync here: apt-get install"):
        sshd.need_sshd()
    monkeypatch.setenv(sshd.REQUIRE, "1")
    # A skip that came through here would skip this test, too.
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match="no sshd and no ssh") as caught:
        sshd.need_sshd()
    assert caught.type is pytest.fail.Exception
