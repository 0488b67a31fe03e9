"""Rows of any content: what comes of them is an offer or a box that can be trusted, or an error."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.errors import ProviderError
from remote.providers.base import Wanted, suits
from remote.providers.vast_rows import addresses_of, box_of, offer_of
from tests.remote.fake_vast import FakeVast, make_offer

OFFER = make_offer(1011, 0.40) | {"dph_total": 0.42}
BOX = FakeVast()._row(5001, 101, "llm-ladder/night/1900000000", 0.42)
WANTED = Wanted(gpu="RTX 4090", num_gpus=1, gpu_ram_gb=24, disk_gb=73, max_dollars_per_hour=1.0)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [10**400, -(10**400), math.nan, math.inf, -math.inf, 0, -1, "nan", "1e999", "", "-oX", "a b"]
    ),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=6), st.integers(), max_size=2),
)


@given(field=st.sampled_from(sorted(OFFER)), value=JUNK)
def test_an_offer_with_one_wild_field(field: str, value: Any) -> None:
    offer = offer_of(OFFER | {field: value})
    if offer is not None and suits(offer, WANTED):
        assert 0 < offer.dollars_per_hour <= 1.0 and offer.gpu == "RTX 4090" and offer.id.isdigit()


@given(field=st.sampled_from(sorted(BOX)), value=JUNK)
def test_a_box_with_one_wild_field(field: str, value: Any) -> None:
    try:
        box = box_of(BOX | {field: value})
    except ProviderError:
        assert field == "id"
        return
    assert box.dollars_per_hour >= 0 and math.isfinite(box.dollars_per_hour) and len(box.message) <= 300
    assert box.id == str(value if field == "id" else 5001) or field == "id"


@pytest.mark.parametrize("price", [0, -0.4, "-1", None, "free", math.nan, True])
def test_an_offer_without_a_price_above_nothing_is_none(price: Any) -> None:
    """Money could not be counted on it: a negative one would even raise what may be spent."""
    assert offer_of(OFFER | {"dph_total": price}) is None


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "host:/etc", "", "a\nb", "$(x)"])
def test_what_is_no_host_is_no_address(host: str) -> None:
    """rsync and ssh would take it for an option, or for a path."""
    assert addresses_of({"ssh_host": host, "ssh_port": 22}) == ()
    assert len(addresses_of({"ssh_host": "ssh4.vast.ai", "ssh_port": 22})) == 1
