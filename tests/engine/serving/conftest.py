"""Both ways of running a step, for the tests that must not see a difference."""

from functools import partial

import pytest

from engine.serving import engine
from engine.serving.runner import Runner


@pytest.fixture(params=["gathered", "paged"])
def either_runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines run gathered steps, or the padded paged ones that a GPU captures, here without capture."""
    monkeypatch.setattr(engine, "Runner", partial(Runner, paged=request.param == "paged"))
