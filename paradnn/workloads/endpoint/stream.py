"""Read a streamed answer: server-sent events with the JSON chunks of the OpenAI API.

Server-sent events are defined in the HTML standard
(https://html.spec.whatwg.org/multipage/server-sent-events.html). The reader accepts deviations of
common servers: no blank line between events, no final `data: [DONE]`, and llama.cpp's `error:`
field.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paradnn.core.words import counted

#: Longest accepted line of a stream, in bytes.
MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
#: Values of `finish_reason` that mark an answer as incomplete.
_FAILED_REASONS = ("abort", "error", "content_filter", "insufficient_system_resource")
#: Fields of a choice that hold generated tokens. Reasoning models use `reasoning_content` or
#: `reasoning`; a model that declines a prompt uses `refusal`.
_TOKEN_FIELDS = (
    "content",
    "text",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
)
#: Largest plausible token count. A larger count is an error of the server and is ignored.
_MAX_COUNT = 10**9
_EXCERPT_CHARS = 80


class ByteReader(Protocol):
    """A binary stream, such as `http.client.HTTPResponse`, that returns bytes as they arrive."""

    def read1(self, limit: int = -1, /) -> bytes: ...


class AnswerError(Exception):
    """The server did not send a complete answer; the message states the reason.

    Attributes:
        is_reported_by_server: Whether the server sent the error within the stream.
        is_without_text: Whether the server reports generated tokens but sent no text.
    """

    def __init__(
        self,
        message: str,
        *,
        is_reported_by_server: bool = False,
        is_without_text: bool = False,
    ) -> None:
        super().__init__(message)
        self.is_reported_by_server = is_reported_by_server
        self.is_without_text = is_without_text


class DeadlineError(AnswerError):
    """The answer did not end within the time limit of the measurement."""

    def __init__(self) -> None:
        super().__init__("the answer did not end within the time limit of the point")


@dataclass(frozen=True)
class StreamedAnswer:
    """Times and token counts of one complete answer.

    Attributes:
        first: Arrival of the first token, in ns of `time.monotonic_ns()`.
        last: Arrival of the last token, in ns of `time.monotonic_ns()`.
        prompt_tokens: Tokens of the prompt; 0 if the server does not report them.
        tokens: Output tokens that the server reports. If it reports none, the number of chunks with
            text.
        has_usage: Whether the server reports the output tokens.
    """

    first: int
    last: int
    prompt_tokens: int
    tokens: int
    has_usage: bool


@dataclass(frozen=True)
class _Event:
    """One event of a stream.

    Attributes:
        time: Arrival of its last line, in ns of `time.monotonic_ns()`.
        content: Its JSON value; None for `[DONE]`.
    """

    time: int
    content: Any


def read_answer(stream: ByteReader, deadline: float, max_tokens: int) -> StreamedAnswer:
    """Read a streamed answer to its end, and return its times and token counts.

    An answer is complete at `[DONE]`, or at the end of the stream if a choice had a
    `finish_reason`.

    Args:
        stream: The body of the response.
        deadline: Time of `time.monotonic()`, in seconds, at which reading ends.
        max_tokens: Maximum number of chunks with text.

    Raises:
        AnswerError: If the answer is incomplete, malformed or longer than `max_tokens`, or reports
            an error.
        DeadlineError: If data arrives after the deadline.
        OSError: If the connection failed.
    """
    first = 0
    last = 0
    chunks = 0
    is_complete = False
    reason: Any = None
    usage: Mapping[str, Any] = {}
    lines = _Lines(stream, deadline)
    for event in _events(lines):
        if event.content is None:
            is_complete = True
            break
        chunk = _checked_chunk(event.content, chunks)
        if isinstance(chunk.get("usage"), Mapping):
            usage = chunk["usage"]
        for choice in _choices(chunk):
            if _has_token(choice):
                first = first or event.time
                last = event.time
                chunks += 1
            reason = choice.get("finish_reason") or reason
            if reason in _FAILED_REASONS:
                raise AnswerError(f"the server ended the answer with finish_reason={reason}")
            is_complete = is_complete or bool(reason)
        if chunks > max_tokens:
            raise AnswerError(f"the answer does not end after {max_tokens:,} tokens")
    tokens = _count(usage, "completion_tokens")
    if not chunks:
        raise _missing_text(tokens, reason, lines)
    if not is_complete:
        raise AnswerError(f"the answer broke off after {counted(chunks, 'token')}")
    return StreamedAnswer(
        first=first,
        last=last,
        prompt_tokens=_count(usage, "prompt_tokens") or 0,
        tokens=tokens or chunks,
        has_usage=tokens > 0,
    )


def _missing_text(tokens: int, reason: Any, lines: _Lines) -> AnswerError:
    """Return the error for an answer without text, which explains the likely cause.

    Args:
        tokens: Output tokens that the server reports; 0 if it reports none.
        reason: The `finish_reason`; None if the server sent none.
        lines: The lines of the answer, which were read to the end.
    """
    # A single token without text may be the token that ends the sequence.
    if tokens > 1:
        problem = f"the answer has {tokens:,} tokens but no text (finish_reason={reason})"
        return AnswerError(problem, is_without_text=True)
    problem = "the answer contains no token"
    if reason:
        return AnswerError(f"{problem} (finish_reason={reason})")
    if lines.beginning.strip():
        return AnswerError(f"{problem}: {_excerpt([lines.beginning])}")
    if lines.is_cut:
        return AnswerError("the response ends early or is not valid HTTP")
    return AnswerError(problem)


def _events(lines: _Lines) -> Iterator[_Event]:
    """Yield the events of a stream as they arrive.

    An event ends as soon as its `data:` lines form a JSON value, because some servers omit the
    blank line that should follow.

    Args:
        lines: The lines of the streamed answer.

    Raises:
        AnswerError: If an event is not JSON, or if the stream ends within an event.
    """
    pending: list[bytes] = []
    name = b""
    for now, line in lines:
        field, _, value = line.partition(b":")
        if not line.strip():
            if any(entry.strip() for entry in pending):
                raise AnswerError(f"an event is not JSON: {_excerpt(pending)}")
            pending.clear()
            name = b""
        elif field == b"event":
            name = value.strip()
        elif field == b"error":
            yield _Event(now, {"error": _parsed_json(value) or _decoded(value)})
        elif field == b"data":
            if value.strip() == b"[DONE]":
                yield _Event(now, None)
                continue
            pending.append(value.removeprefix(b" "))
            content = _parsed_json(b"\n".join(pending))
            if content is None:
                continue
            if name == b"error":
                content = {"error": content}
            yield _Event(now, content)
            pending.clear()
    if pending:
        raise AnswerError(f"the answer broke off within an event: {_excerpt(pending)}")


class _Lines:
    """An iterable of the lines of a stream, as pairs (arrival in ns, line without its end).

    A line ends with a line feed, a carriage return, or both. A carriage return alone completes a
    line, so that its arrival time does not depend on the next byte. A byte order mark at the
    beginning of the stream is removed.

    Iteration raises DeadlineError if data arrives after the deadline, and AnswerError if a line
    exceeds `MAX_LINE_BYTES`.

    Attributes:
        beginning: The first bytes of the stream.
        is_cut: Whether the response ended within an HTTP chunk or before its announced length.
    """

    def __init__(self, stream: ByteReader, deadline: float) -> None:
        self.beginning = b""
        self.is_cut = False
        self._stream = stream
        self._deadline = deadline

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        now = 0
        is_first = True
        is_after_return = False
        rest = b""
        while data := self._read():
            now = time.monotonic_ns()
            if now > self._deadline * 1e9:
                raise DeadlineError
            if len(self.beginning) < _EXCERPT_CHARS:
                self.beginning += data
            if is_after_return:
                data = data.removeprefix(b"\n")
            is_after_return = data.endswith(b"\r")
            *lines, rest = _LINE_END.split(rest + data)
            for line in lines:
                if is_first:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    is_first = False
                yield now, line
            if len(rest) >= MAX_LINE_BYTES:
                raise AnswerError(f"a line of the answer exceeds {MAX_LINE_BYTES:,} bytes")
        if rest:
            yield now, rest

    def _read(self) -> bytes:
        """Wait for data and return it; b"" at the end of the stream, or if it is cut off."""
        try:
            return self._stream.read1(MAX_LINE_BYTES)
        except http.client.IncompleteRead:
            self.is_cut = True
            return b""


def _checked_chunk(content: Any, chunks: int) -> Mapping[str, Any]:
    """Check that the content of an event is a JSON object without an error, and return it.

    Args:
        content: The JSON value of the event.
        chunks: Number of chunks with text so far, for the error message.

    Raises:
        AnswerError: If the content is not a mapping, or reports an error.
    """
    if not isinstance(content, Mapping):
        raise AnswerError(
            f"the server sent an event that is not a JSON object: {str(content)[:_EXCERPT_CHARS]}"
        )
    is_error = bool(content.get("error")) or content.get("object") == "error"
    if is_error:
        message = error_text(content) or str(content)
        raise AnswerError(
            f"the server reported an error after {counted(chunks, 'token')}: {message}",
            is_reported_by_server=True,
        )
    return content


def _choices(chunk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices (parts of answers) of a chunk; empty for the last chunk.

    The last chunk reports the token counts.

    Args:
        chunk: One JSON object of the stream.

    Raises:
        AnswerError: If the choices are not a list of objects.
    """
    choices = chunk.get("choices") or []
    is_valid = isinstance(choices, list) and all(isinstance(each, Mapping) for each in choices)
    if not is_valid:
        raise AnswerError(f"'choices' is not a list of objects: {str(choices)[:_EXCERPT_CHARS]}")
    return choices


def _has_token(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice contains tokens of the answer.

    Args:
        choice: An entry of `choices` in a chunk of the stream.

    Raises:
        AnswerError: If the choice is malformed.
    """
    delta = choice.get("delta") or choice
    if not isinstance(delta, Mapping):
        raise AnswerError(f"'delta' is not an object: {str(delta)[:_EXCERPT_CHARS]}")
    return any(delta.get(field) for field in _TOKEN_FIELDS)


def _count(usage: Mapping[str, Any], name: str) -> int:
    """Return a token count that the server reports; 0 if it is missing or implausible.

    Args:
        usage: The object `usage` of a chunk.
        name: Name of the count, such as "completion_tokens".
    """
    value = usage.get(name)
    if isinstance(value, (int, float)) and 0 < value <= _MAX_COUNT:
        return int(value)
    return 0


def error_text(content: Any) -> str:
    """Return the error message in the decoded JSON of a response; "" if it has none.

    Servers use the forms {"error": {"message": ...}} (OpenAI API), {"error": "..."},
    {"message": ...}, and {"detail": ...} (FastAPI).

    Args:
        content: The decoded JSON.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, Mapping):
        return ""
    for key in ("error", "message", "detail"):
        value = content.get(key)
        if not value or value is True:  # for {"error": true, "message": ...}, use the message
            continue
        return error_text(value) or json.dumps(value, ensure_ascii=False)
    return ""


def _parsed_json(data: bytes) -> Any:
    """Return the JSON value in `data`; None if `data` is not one complete JSON value.

    Invalid UTF-8 is replaced, because an event may contain only a part of a character.
    """
    try:
        return json.loads(_decoded(data))
    except (ValueError, RecursionError):
        return None


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").strip()


def _excerpt(lines: list[bytes]) -> str:
    return printable(_decoded(b" ".join(lines)))[:_EXCERPT_CHARS]


def printable(content: bytes | str) -> str:
    """Return text or UTF-8 bytes as text on one line, without control characters."""
    if isinstance(content, bytes):
        content = content.decode("utf-8", errors="replace")
    return "".join(filter(str.isprintable, " ".join(content.split())))
