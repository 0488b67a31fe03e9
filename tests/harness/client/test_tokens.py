"""Tokens of each event, by each of the three methods."""

from harness.client.tokens import SeenEvent, count_tokens


def seen(
    stamp: int, total: int | None = None, ids: int | None = None, text: str = "x", choice: bool = True
) -> SeenEvent:
    return (stamp, total, ids, text, choice)


def chunks(count) -> list[tuple[int, int]]:
    return list(zip(count.chunk_ns, count.chunk_tokens, strict=True))


def test_running_usage_gives_differences() -> None:
    count = count_tokens([seen(110, 1), seen(120, 4), seen(130, 5), seen(140, 5, text="", choice=False)], 100)
    assert (count.method, count.total, count.error) == ("continuous_usage", 5, "")
    assert chunks(count) == [(10, 1), (20, 3), (30, 1)]


def test_tokens_without_text_count_and_empty_events_do_not() -> None:
    """A character over several tokens gives events without text; a first event with usage 0 has no token."""
    count = count_tokens([seen(1, 0, text=""), seen(2, 1, text=""), seen(3, 2)], 0)
    assert chunks(count) == [(2, 1), (3, 1)]


def test_usage_that_goes_back_is_an_error() -> None:
    assert count_tokens([seen(1, 2), seen(2, 1)], 0).error == "completion_tokens went back from 2 to 1"


def test_usage_on_the_last_text_only_is_not_running() -> None:
    count = count_tokens([seen(1), seen(2), seen(3, 3)], 0)
    assert (count.method, count.total, chunks(count)) == ("assumed", 3, [(1, 1), (2, 1), (3, 1)])


def test_returned_ids() -> None:
    count = count_tokens([seen(1, ids=2), seen(2, ids=0, text=""), seen(3, ids=1)], 0)
    assert (count.method, count.total, chunks(count)) == ("returned_ids", 3, [(1, 2), (3, 1)])


def test_returned_ids_must_agree_with_usage() -> None:
    count = count_tokens([seen(1, ids=2), seen(2, 3, text="", choice=False)], 0)
    assert (count.method, count.error) == (
        "returned_ids",
        "usage says 3 completion tokens, 2 ids were returned",
    )


def test_assumed_puts_the_rest_on_the_last_event() -> None:
    events = [seen(1), seen(2, text=""), seen(3), seen(4), seen(5, 10, text="", choice=False)]
    assert chunks(count_tokens(events, 0)) == [(1, 1), (3, 1), (4, 8)]


def test_assumed_with_fewer_tokens_than_events() -> None:
    events = [seen(1), seen(2), seen(3), seen(4, 2, text="", choice=False)]
    assert chunks(count_tokens(events, 0)) == [(1, 1), (2, 1)]


def test_assumed_without_any_text() -> None:
    events = [seen(1, text=""), seen(2, text=""), seen(3, 4, text="", choice=False)]
    assert chunks(count_tokens(events, 0)) == [(2, 4)]


def test_nothing_known() -> None:
    for events in ([], [seen(1), seen(2)]):
        count = count_tokens(events, 0)
        assert (count.method, count.total, chunks(count)) == (None, None, [])
