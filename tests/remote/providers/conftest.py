from __future__ import annotations

from collections.abc import Iterator

import pytest

from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from tests.remote.clocks import StillClock
from tests.remote.fake_vast import FakeVast, make_offer


@pytest.fixture
def fake() -> Iterator[FakeVast]:
    with FakeVast([make_offer(1011, 0.40), make_offer(1021, 0.35), make_offer(1031, 0.50)]) as fake:
        yield fake


@pytest.fixture
def still() -> StillClock:
    return StillClock()


@pytest.fixture
def api(fake: FakeVast, still: StillClock) -> Api:
    return Api(fake.url, Key(fake.key), still.clock, timeout_s=10.0)


@pytest.fixture
def vast(api: Api) -> Vast:
    return Vast(api)
