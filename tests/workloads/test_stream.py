"""Streamed answers: complete answers, numbers of tokens, and reasons for failures."""

import http.client
import io
import json
import math
import time

import pytest

from paradnn.workloads.endpoint.stream import (
    MAX_LINE_BYTES,
    AnswerError,
    DeadlineError,
    StreamedAnswer,
    error_text,
    read_answer,
)

TOKEN = '{"choices": [{"delta": {"content": "x"}}]}'
LAST_TOKEN = '{"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}'
ROLE = '{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
DONE = "[DONE]"


def events(*contents: str) -> str:
    return "".join(f"data: {content}\n\n" for content in contents)


class Pieces:
    """Stream that arrives in pieces.

    Attributes:
        request_times: Times in ns at which the reader requested each piece.
    """

    def __init__(self, pieces: list[bytes], end: Exception | None = None) -> None:
        self.request_times: list[int] = []
        self._pieces = iter(pieces)
        self._end = end

    def read1(self, limit: int = -1, /) -> bytes:
        self.request_times.append(time.monotonic_ns())
        piece = next(self._pieces, None)
        if piece is None:
            if self._end is not None:
                raise self._end
            return b""
        assert len(piece) <= limit
        return piece


def read(text: str | bytes, max_tokens: int = 100) -> StreamedAnswer:
    data = text.encode() if isinstance(text, str) else text
    return read_answer(io.BytesIO(data), math.inf, max_tokens)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param(events(TOKEN, TOKEN, DONE), 2, id="with-done"),
        pytest.param(events(TOKEN, LAST_TOKEN), 2, id="finish-reason-without-done"),
        pytest.param(events(ROLE, TOKEN, DONE), 1, id="role-is-no-token"),
        pytest.param(events(TOKEN, DONE).replace("\n", "\r\n"), 1, id="crlf"),
        pytest.param(events(TOKEN, DONE).replace("\n", "\r"), 1, id="carriage-returns"),
        pytest.param(events(TOKEN, DONE).replace("\n\n", "\n"), 1, id="no-blank-lines"),
        pytest.param(events(TOKEN, DONE).replace("data: ", "data:"), 1, id="no-space"),
        pytest.param("\ufeff" + events(TOKEN, DONE), 1, id="byte-order-mark"),
        pytest.param(": ping\n\n" + events(TOKEN, DONE), 1, id="comment"),
        pytest.param("data:\n\n" + events(TOKEN, DONE), 1, id="empty-event"),
        pytest.param("event: message\nid: 1\n" + events(TOKEN, DONE), 1, id="other-fields"),
        pytest.param(
            'data: {"choices":\ndata:  [{"text": "x"}]}\n\n' + events(DONE), 1, id="several-lines"
        ),
        pytest.param(
            events('{"error": null, "choices": [{"text": "x"}]}', DONE), 1, id="null-error"
        ),
        pytest.param(
            events('{"error": {}, "choices": [{"text": "x"}]}', DONE), 1, id="empty-error"
        ),
        pytest.param(
            events('{"choices": [{"delta": {"reasoning_content": "x"}}]}', TOKEN, DONE),
            2,
            id="reasoning",
        ),
        pytest.param(
            events(
                '{"choices": [{"delta": {"content": null, "tool_calls": [{"index": 0}]}}]}', DONE
            ),
            1,
            id="tool-call",
        ),
        pytest.param(events(TOKEN, DONE) + "data: garbage", 1, id="rest-after-done"),
        pytest.param(
            events('{"choices": [{"delta": {"refusal": "I"}}]}', DONE), 1, id="refused-prompt"
        ),
        pytest.param(events(TOKEN) + f"data: {DONE}", 1, id="no-end-of-line"),
    ],
)
def test_complete_answers_are_counted(text: str, tokens: int) -> None:
    answer = read(text)

    assert answer.tokens == tokens
    assert 0 < answer.first <= answer.last <= time.monotonic_ns()


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([{"prompt_tokens": 3, "completion_tokens": 7}], (3, 7), id="final"),
        pytest.param(
            [{"prompt_tokens": 3, "completion_tokens": n} for n in (1, 5)], (3, 5), id="cumulative"
        ),
        pytest.param([{"prompt_tokens": 3, "completion_tokens": 7}, None], (3, 7), id="then-null"),
        pytest.param([{"completion_tokens": 0}], (0, 2), id="zero"),
        pytest.param([{"completion_tokens": None}], (0, 2), id="null"),
        pytest.param([{"completion_tokens": float("inf")}], (0, 2), id="infinite"),
        pytest.param([{"completion_tokens": 1e30}], (0, 2), id="impossible"),
        pytest.param(["unknown"], (0, 2), id="no-object"),
    ],
)
def test_tokens_are_counted_by_the_usage_record_or_else_by_chunks(
    usages: list[object], expected: tuple[int, int]
) -> None:
    chunks = [json.dumps({"choices": [], "usage": usage}) for usage in usages]

    answer = read(events(TOKEN, TOKEN, *chunks, DONE))

    assert (answer.prompt_tokens, answer.tokens) == expected
    assert answer.has_usage == (expected[1] != 2)


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    half = "🙂".encode()[:2]
    event = b'data: {"choices": [{"text": "' + half + b'"}]}\n\n'

    assert read(event + events(DONE).encode()).tokens == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "contains no token", id="nothing"),
        pytest.param(events(DONE), "contains no token", id="done-only"),
        pytest.param(events(ROLE, DONE), "contains no token", id="role-only"),
        pytest.param(
            events('{"choices": [{"delta": {}, "finish_reason": "stop"}]}', DONE),
            "contains no token (finish_reason=stop)",
            id="ends-at-once",
        ),
        pytest.param(
            '{"message": {"content": "x"}}\n', 'no token: {"message": {"content"', id="no-events"
        ),
        pytest.param(events("[" * 100_000) + "\n", "an event is not JSON: [[", id="deep"),
        pytest.param(events('{"error": true, "message": "no"}'), ": no", id="error-flag"),
        pytest.param(events(TOKEN), "broke off after 1 token", id="no-end"),
        pytest.param('data: {"choices": [{"del', "broke off within an event", id="cut"),
        pytest.param("data: {]\n\n", "not JSON: {]", id="garbage"),
        pytest.param(events("[1]"), "not a JSON object", id="list"),
        pytest.param(events('{"choices": 3}'), "'choices' is not a list", id="choices"),
        pytest.param(events('{"choices": [{"delta": 3}]}'), "'delta' is not", id="delta"),
        pytest.param(
            events(TOKEN, '{"error": {"message": "out of memory", "code": 500}}'),
            "error after 1 token: out of memory",
            id="error",
        ),
        pytest.param(events('{"error": "late", "error_type": "x"}'), ": late", id="error-text"),
        pytest.param(
            events('{"object": "error", "message": "too long"}'), ": too long", id="error-object"
        ),
        pytest.param('event: error\ndata: {"message": "no"}\n\n', ": no", id="error-event"),
        pytest.param('error: {"code": 500, "message": "no"}\n\n', ": no", id="error-field"),
        pytest.param(
            events('{"choices": [{"finish_reason": "abort"}]}'),
            "finish_reason=abort",
            id="finish-reason",
        ),
        pytest.param(
            events(TOKEN, '{"choices": [{"delta": {}, "finish_reason": "content_filter"}]}', DONE),
            "finish_reason=content_filter",
            id="filtered",
        ),
        pytest.param(
            events(
                '{"choices": [{"delta": {"content": ""}, "finish_reason": "length"}]}',
                '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 64}}',
                DONE,
            ),
            "the answer has 64 tokens but no text (finish_reason=length)",
            id="hidden-reasoning",
        ),
        pytest.param(events(*[TOKEN] * 101), "does not end after 100 tokens", id="endless"),
        pytest.param("data: " + "x" * MAX_LINE_BYTES, "exceeds 1,048,576 bytes", id="long-line"),
    ],
)
def test_incomplete_and_invalid_answers_have_a_reason(text: str, reason: str) -> None:
    with pytest.raises(AnswerError) as raised:
        read(text)

    assert reason in str(raised.value)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"], ids=["lf", "crlf", "cr"])
def test_a_token_counts_from_the_arrival_of_its_line(end: str) -> None:
    lines = [f"data: {content}{end}".encode() for content in (TOKEN, LAST_TOKEN, DONE)]
    stream = Pieces(lines)

    answer = read_answer(stream, math.inf, 100)

    first, second, third = stream.request_times
    assert first <= answer.first <= second <= answer.last <= third


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_segments_may_split_lines_and_characters(end: str, size: int) -> None:
    token = '{"choices": [{"delta": {"content": "grüße 🙂"}}]}'
    data = "".join(f"data: {content}{end}" for content in (token, token, DONE)).encode()
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]

    assert read_answer(Pieces(pieces), math.inf, 100).tokens == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(events(TOKEN), "the answer broke off after 1 token", id="after-a-token"),
        pytest.param("", "the response ends early or is not valid HTTP", id="before-a-token"),
    ],
)
def test_a_response_that_ends_early_is_an_error(text: str, reason: str) -> None:
    stream = Pieces([text.encode()] if text else [], end=http.client.IncompleteRead(b""))

    with pytest.raises(AnswerError) as raised:
        read_answer(stream, math.inf, 100)

    assert reason in str(raised.value)


def test_an_answer_is_complete_if_its_response_ends_early_afterwards() -> None:
    stream = Pieces([events(LAST_TOKEN).encode()], end=http.client.IncompleteRead(b""))

    assert read_answer(stream, math.inf, 100).tokens == 1


def test_reading_after_the_deadline_is_an_error() -> None:
    with pytest.raises(DeadlineError):
        read_answer(io.BytesIO(events(TOKEN, DONE).encode()), time.monotonic() - 1, 100)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param({"error": {"message": "no"}}, "no", id="openai"),
        pytest.param({"error": "no"}, "no", id="text"),
        pytest.param({"detail": "no"}, "no", id="fastapi"),
        pytest.param({"detail": [{"loc": ["n"]}]}, '[{"loc": ["n"]}]', id="fastapi-validation"),
        pytest.param({"message": "no", "error": None}, "no", id="message"),
        pytest.param({"choices": []}, "", id="no-error"),
        pytest.param(3, "", id="number"),
    ],
)
def test_the_message_is_extracted_from_an_error(content: object, text: str) -> None:
    assert error_text(content) == text
