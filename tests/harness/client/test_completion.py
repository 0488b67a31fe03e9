"""Reading events: the full parse, and its equality with the fast scan."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.completion import MAX_COUNT, Completion, PlainEventScanner, parse


def event(text: str = " a", tokens: int = 3, **changes) -> dict:
    """An event as vLLM sends it."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}],
        "usage": {"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens},
    } | changes


def encoded(content: dict, **options) -> bytes:
    return json.dumps(content, **options).encode()


def framed(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def scanner_for(data: bytes) -> PlainEventScanner:
    scanner = PlainEventScanner()
    scanner.learn(data, parse(data))
    return scanner


def test_all_fields_are_read() -> None:
    content = event(
        choices=[{"index": 0, "text": "ä", "finish_reason": "length", "token_ids": [7, 8]}],
        usage={"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
    )
    assert parse(encoded(content)) == Completion("ä", True, 9, [7, 8], "length", 5, 4, None)


@pytest.mark.parametrize(
    "content",
    [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "text": None}], "usage": None},
        {"choices": [{}], "usage": {}},
    ],
)
def test_an_event_may_say_nothing(content: dict) -> None:
    assert parse(encoded(content)) == Completion(has_choice=True)


def test_usage_alone() -> None:
    content = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    assert parse(encoded(content)) == Completion(completion_tokens=3, prompt_tokens=5)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"choices": [{"text": "\xc3"}]}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"error": {"message": "boom"}}', "boom"),
        (b'{"error": "boom"}', "boom"),
        (b'{"object": "error", "message": "boom"}', "boom"),
        (b'{"choices": [{"text": 1}]}', "text is int"),
        (b'{"choices": {"text": "a"}}', "choices is dict"),
        (b'{"choices": [1]}', "int where an object belongs"),
        (b'{"choices": [{}, {}]}', "2 choices"),
        (b'{"usage": {"completion_tokens": "3"}}', "completion_tokens is str"),
        (b'{"usage": {"completion_tokens": true}}', "completion_tokens is bool"),
        (b'{"usage": {"completion_tokens": 3.0}}', "completion_tokens is float"),
        (b'{"usage": 3}', "int where an object belongs"),
        (b'{"usage": {"completion_tokens": -1}}', "completion_tokens -1 is not from 0"),
        (b'{"usage": {"completion_tokens": 1000000000}}', "completion_tokens 1000000000 is not from 0"),
        (b"[" * 100_000, "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("{}".encode("utf-16-le"), "not JSON"),
    ],
)
def test_what_is_no_completion_is_an_error(data: bytes, named: str) -> None:
    completion = parse(data)
    assert named in completion.error
    assert completion._replace(error=None) == Completion()


def test_scanner_declines_until_it_has_learned() -> None:
    assert PlainEventScanner().scan(framed(encoded(event()))) is None


@pytest.mark.parametrize("options", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_scanner_reads_events_of_the_learned_form(options: dict) -> None:
    scanner = scanner_for(encoded(event(), **options))
    for text, tokens in ((" hello", 4), ("", 5), (' "quoted" \\ \n\t/', 123_456)):
        changed = event(text, tokens, id="cmpl-99", created=5)
        assert scanner.scan(framed(encoded(changed, **options))) == (text, tokens)


@pytest.mark.parametrize(
    "changed",
    [
        event(choices=[{"index": 0, "text": " a", "logprobs": None, "finish_reason": "length"}]),
        event(choices=[]),
        event(choices=[{"index": 1, "text": " a", "logprobs": None, "finish_reason": None}]),
        event(error={"message": "boom"}),
        event(usage=None),
        event(usage={"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3.0}),
        event(usage={"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": -3}),
        event(usage={"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 10**9}),
        event(usage={"prompt_tokens": 10**9, "total_tokens": 8, "completion_tokens": 3}),
        event(model="other"),
        event(text="ä"),
        event(text="\x01"),
    ],
)
def test_scanner_declines_all_else(changed: dict) -> None:
    scanner = scanner_for(encoded(event()))
    assert scanner.scan(framed(encoded(changed))) is None
    assert scanner.scan(framed(encoded(changed, ensure_ascii=False))) is None


@pytest.mark.parametrize(
    "data",
    [
        encoded(event())[:-1] + b',"choices":[{}]}',
        encoded(event())[:-1] + b',"usage":{"completion_tokens":1}}',
        encoded(event()).replace(b'"text": " a"', b'"text": " a", "text": " b"'),
        encoded(event(), indent=1),
        encoded(event(choices=[{"index": 0, "text": None}])),
        encoded(event(choices=[{"index": 0, "text": "a", "token_ids": [1]}])),
        encoded(event(usage=None)),
        b"\xef\xbb\xbf" + encoded(event()),
        encoded(event()).decode().encode("utf-16-le"),
        b'{"error": {}}',
        b"nonsense",
    ],
)
def test_scanner_learns_nothing_ambiguous(data: bytes) -> None:
    assert scanner_for(data).scan(framed(data)) is None


def test_two_events_in_one_are_no_plain_event() -> None:
    one = framed(encoded(event()))
    assert scanner_for(encoded(event())).scan(one + one) is None
    assert scanner_for(encoded(event())).scan(one[:-1]) is None


OPTIONS = st.sampled_from([{}, {"separators": (",", ":")}, {"ensure_ascii": False, "separators": (",", ":")}])


def check_equal_to_full_parse(scanner: PlainEventScanner, data: bytes) -> bool:
    """Whether the scanner read it; what it says then is all that a full parse finds."""
    scanned = scanner.scan(framed(data))
    if scanned is None:
        return False
    text, tokens = scanned
    full = parse(data)
    assert full._replace(prompt_tokens=None, cached_tokens=None) == Completion(text, True, tokens)
    return True


@given(st.text(), st.integers(0, MAX_COUNT - 5), OPTIONS)  # total_tokens is 5 more
def test_scan_equals_parse_on_any_text(text: str, tokens: int, options: dict) -> None:
    scanner = scanner_for(encoded(event(), **options))
    was_read = check_equal_to_full_parse(scanner, encoded(event(text, tokens), **options))
    assert was_read or not (text.isascii() and text.isprintable())


@given(
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=0, max_size=3)), min_size=1, max_size=3),
    OPTIONS,
)
def test_scan_equals_parse_on_damaged_events(edits: list[tuple[int, bytes]], options: dict) -> None:
    """Bytes replaced at random places: whatever the scanner still takes must be what JSON says it is."""
    original = encoded(event(' say "x"\\', 12), **options)
    damaged = original
    for place, replacement in edits:
        start = place % len(damaged)
        damaged = damaged[:start] + replacement + damaged[start + len(replacement) :]
    check_equal_to_full_parse(scanner_for(original), damaged)


NAMES = st.sampled_from(
    [
        *("id", "created", "object", "error", "x", "", "usage", "choices", "index", "text", "finish_reason"),
        *("token_ids", "completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 30) | st.floats() | st.text(max_size=3) | NAMES,
    lambda children: st.lists(children, max_size=2) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=3)
TEXTS = st.text('ab"\\/\n\u007f\u00e9', max_size=4)
COUNTS = st.integers(0, MAX_COUNT + 1)


@given(OBJECTS, OBJECTS, OBJECTS, st.tuples(TEXTS, TEXTS), st.tuples(COUNTS, COUNTS), st.randoms(), OPTIONS)
def test_whatever_is_learned_reads_like_a_full_parse(
    changes: dict, choice: dict, usage: dict, texts: tuple, counts: tuple, order, options: dict
) -> None:
    """An event with any other content, in any order, is learned; then come others that differ from it in
    text, counts, or what stands around them."""

    def made(text: str, tokens: int, choice: dict, usage: dict) -> bytes:
        content = event(choices=[choice | {"text": text}], usage=usage | {"completion_tokens": tokens})
        content = changes | content
        return encoded({name: content[name] for name in names}, **options)

    names = sorted(changes | event())
    order.shuffle(names)
    learned = made(texts[0], counts[0], choice, usage)
    scanner = scanner_for(learned)
    check_equal_to_full_parse(scanner, learned)
    for data in (
        made(texts[1], counts[1], choice, usage),
        made(texts[1], counts[1], choice, dict.fromkeys(usage, counts[1])),
        made(texts[0], counts[1], {}, usage),
        made(texts[0], counts[1], choice, {}),
        encoded(event(texts[1], 7), **options),
    ):
        check_equal_to_full_parse(scanner, data)
