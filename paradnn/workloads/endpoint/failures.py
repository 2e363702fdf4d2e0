"""Causes and remedies of failed requests to an endpoint."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import html
import http.client
import json
import math
import re
import socket
import ssl
import time
import zlib
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

from paradnn.workloads.endpoint.stream import (
    AnswerError,
    DeadlineError,
    error_text,
    printable,
)

#: Maximum length of `RequestError.problem`, and maximum number of bytes read of an error response.
_MAX_PROBLEM_CHARS = 300
_MAX_ERROR_BYTES = 1 << 14
#: Statuses with which a server, or a proxy in front of it, reports that it is starting or busy.
_NOT_READY = (429, 502, 503, 504)
_OTHER_TOKEN_LIMIT = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
#: Exceptions from sending a request and reading its response.
REQUEST_ERRORS = (OSError, http.client.HTTPException, AnswerError, ValueError, OverflowError)


#: Phrases with which servers report that prompt and answer exceed the model's context length.
_CONTEXT_LENGTH = re.compile(r"context[ _](length|size|window)", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"too (long|large)|exceed|must be (<|less)|at most \d|maximum (input|context|sequence|length)"
    r"|valid range",
    re.IGNORECASE,
)
_SHORTER_REMEDY = "lower endpoint.input_tokens or endpoint.output_tokens"
#: Phrase with which servers report that they expect TLS.
_NEEDS_TLS = re.compile(r"HTTP request .*HTTPS (port|server)", re.IGNORECASE)
_MARKUP = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1>|<[^<>]*>", re.DOTALL | re.IGNORECASE)
#: The part of a URL after the base URL of the API.
_API_PATH = re.compile(r"/+(chat/completions|completions|models)/*$")


class ParameterOptions(Protocol):
    """The options of `model=endpoint` that remedies for failed requests depend on."""

    @property
    def url(self) -> str: ...
    @property
    def token_limit(self) -> str: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def stream_usage(self) -> bool: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def patience(self) -> float: ...
    @property
    def key_variable(self) -> str: ...


class RequestError(Exception):
    """A request failed.

    Attributes:
        problem: Description of the failure on one line, cut to 300 characters.
        remedy: What the user can do about the problem; "" if unknown.
        retry_after: Seconds after which the server asks for a retry; None if it does not ask.
        is_not_ready: Whether the server responded that it is starting or busy.
        is_unreachable: Whether the server refused or dropped the connection.
        is_deadline: Whether the time limit of the measurement was reached, which is not the
            server's fault.
    """

    def __init__(
        self,
        problem: str,
        remedy: str = "",
        *,
        retry_after: float | None = None,
        is_not_ready: bool = False,
        is_unreachable: bool = False,
        is_deadline: bool = False,
    ) -> None:
        self.problem = problem[:_MAX_PROBLEM_CHARS]
        self.remedy = remedy
        self.retry_after = retry_after
        self.is_not_ready = is_not_ready
        self.is_unreachable = is_unreachable
        self.is_deadline = is_deadline
        super().__init__(f"{self.problem}; {remedy}" if remedy else self.problem)


def check_status(response: http.client.HTTPResponse, path: str, options: ParameterOptions) -> None:
    """Check that the status of a response is 200.

    Args:
        response: The response.
        path: Path of the request on the server, such as "/v1/completions". Relative redirects are
            resolved against it.
        options: The options of the request, on which the remedy depends.

    Raises:
        RequestError: If the status differs. The error contains the cause and, if known, a remedy.
    """
    if response.status == 200:
        return
    problem = f"status {response.status} {response.reason}".rstrip()
    content = printable(_body_text(response))
    message = body_error(content) or content
    if message not in ("", "{}"):
        problem += f": {message}"
    raise RequestError(
        problem,
        _status_remedy(response, content, path, options),
        retry_after=retry_seconds(response.getheader("Retry-After")),
        is_not_ready=response.status in _NOT_READY,
    )


def _body_text(response: http.client.HTTPResponse) -> str:
    """Return the text of an error response, without the markup of an HTML page."""
    content = response.read(_MAX_ERROR_BYTES)
    if _compression(response):
        # This decoder reads gzip and zlib, and accepts data that is cut at _MAX_ERROR_BYTES.
        with contextlib.suppress(zlib.error):
            content = zlib.decompressobj(wbits=47).decompress(content, _MAX_ERROR_BYTES)
    text = content.decode("utf-8", errors="replace")
    if _is_html(response):
        text = html.unescape(_MARKUP.sub(" ", text))
    return text


def _compression(response: http.client.HTTPResponse) -> str:
    """Return the content encoding of a response, such as "gzip"; "" if it is not compressed."""
    encoding = (response.getheader("Content-Encoding") or "").strip().lower()
    return "" if encoding == "identity" else encoding


def _media_type(response: http.client.HTTPResponse) -> str:
    content_type = response.getheader("Content-Type") or ""
    return content_type.partition(";")[0].strip().lower()


def _is_html(response: http.client.HTTPResponse) -> bool:
    return "html" in _media_type(response)


def check_is_stream(response: http.client.HTTPResponse) -> None:
    """Check that a response is an uncompressed stream of events.

    Args:
        response: The response, whose body has not been read.

    Raises:
        AnswerError: If it is a JSON or HTML document, or a compressed stream.
    """
    media_type = _media_type(response)
    if media_type.endswith("json") or _is_html(response):
        content = printable(_body_text(response))
        message = body_error(content) or content[:80]
        raise AnswerError(f"the server answered with {media_type}, not with a stream: {message}")
    compression = _compression(response)
    if compression:
        raise AnswerError(
            f"the server compresses its answers (Content-Encoding: {printable(compression)[:20]}), "
            "which delays tokens; disable compression in the server or its proxy"
        )


def _status_remedy(
    response: http.client.HTTPResponse, content: str, path: str, options: ParameterOptions
) -> str:
    """Return the remedy for a status other than 200; "" if unknown.

    Args:
        response: The response.
        content: Text of its body.
        path: Path of the request on the server, such as "/v1/completions".
        options: The options of the request.
    """
    status = response.status
    if 300 <= status < 400:
        return _redirect_remedy(response, path, options)
    if status in (401, 403):
        return f"put the API key into the environment variable {options.key_variable}"
    if status in (404, 405, 501):
        return "check endpoint.url, endpoint.model and endpoint.api"
    if status == 413:
        return _SHORTER_REMEDY
    if status == 400 and _NEEDS_TLS.search(content):
        return f"set endpoint.url={urlsplit(options.url)._replace(scheme='https').geturl()}"
    if status in (400, 422):
        return _parameter_remedy(content, options)
    return ""


def _redirect_remedy(
    response: http.client.HTTPResponse, path: str, options: ParameterOptions
) -> str:
    """Return the remedy for a redirect: if possible, the value of endpoint.url to set.

    Args:
        response: The response with the redirect.
        path: Path of the request on the server, such as "/v1/completions".
        options: The options of the request.
    """
    location = printable((response.getheader("Location") or "").partition("?")[0])[:200]
    if not location:
        return "check endpoint.url"
    target = urljoin(urljoin(options.url, path), location)
    base, is_api = _API_PATH.subn("", target)
    if base == options.url.rstrip("/"):
        return (
            f"the server redirects to {target}, which no value of endpoint.url selects; remove "
            "the redirect on the server"
        )
    if not is_api:
        return f"the server redirects to {target}: check endpoint.url"
    return f"the server redirects to {target}: set endpoint.url={base}"


def _parameter_remedy(content: str, options: ParameterOptions) -> str:
    """Return the remedy for a request parameter that the server rejects; "" if unknown.

    Args:
        content: The body of the response, which may name the parameter.
        options: The options of the request, which determine its parameters.
    """
    if _CONTEXT_LENGTH.search(content):
        return _SHORTER_REMEDY
    if "chat template" in content or "chat_template" in content:
        return "set endpoint.api=completions if the model has no chat template"
    if options.ignore_eos and "ignore_eos" in content:
        return "set endpoint.ignore_eos=false to omit the parameter ignore_eos"
    if options.stream_usage and ("stream_options" in content or "include_usage" in content):
        return "set endpoint.stream_usage=false to omit the parameter stream_options"
    if options.temperature is not None and "temperature" in content:
        return "set endpoint.temperature=null to omit the parameter temperature"
    if _TOO_LONG.search(content):
        return _SHORTER_REMEDY
    if options.token_limit in content:
        return f"set endpoint.token_limit={_OTHER_TOKEN_LIMIT[options.token_limit]}"
    if options.ignore_eos:
        return "if the server rejects unknown parameters, set endpoint.ignore_eos=false"
    return ""


def as_request_error(
    error: Exception, options: ParameterOptions, *, is_past_deadline: bool
) -> RequestError:
    """Convert an exception that a request raised to a RequestError with cause and remedy.

    Args:
        error: The exception, of one of the types in `REQUEST_ERRORS`.
        options: The options of the request, on which the remedy depends.
        is_past_deadline: Whether the time limit of the measurement has passed, so that a timeout is
            a DeadlineError.
    """
    message = printable(str(error))
    if isinstance(error, DeadlineError) or (isinstance(error, TimeoutError) and is_past_deadline):
        return RequestError(str(DeadlineError()), is_deadline=True)
    if isinstance(error, TimeoutError):
        return RequestError(
            f"the server was silent for endpoint.patience={options.patience:g} s",
            "raise endpoint.patience if the server needs longer",
        )
    if isinstance(error, AnswerError):
        return RequestError(message, _answer_remedy(error, options))
    if isinstance(error, ssl.SSLError):
        return _tls_error(error)
    if isinstance(error, socket.gaierror):
        return RequestError(f"the host is unknown: {error.strerror}", "check endpoint.url")
    if isinstance(error, http.client.RemoteDisconnected):
        problem = "the server closed the connection without a response"
        return RequestError(problem, is_unreachable=True)
    if isinstance(error, http.client.BadStatusLine):
        problem = f"the server does not answer with HTTP: {message}"
        return RequestError(problem, "check endpoint.url; does the server need https://?")
    if isinstance(error, http.client.IncompleteRead):
        return RequestError("the connection ended before the answer was complete")
    if isinstance(error, http.client.HTTPException):
        return RequestError(f"the response is not valid HTTP: {message}")
    is_unreachable = isinstance(error, ConnectionError)
    if isinstance(error, OSError) and error.strerror:
        return RequestError(error.strerror, is_unreachable=is_unreachable)
    return RequestError(f"{type(error).__name__}: {message}", is_unreachable=is_unreachable)


def _answer_remedy(error: AnswerError, options: ParameterOptions) -> str:
    """Return the remedy for an incomplete answer; "" if unknown.

    Args:
        error: What is missing in the answer.
        options: The options of the request.
    """
    if error.is_without_text:
        return "the model may generate hidden reasoning tokens: raise endpoint.output_tokens"
    if options.ignore_eos and error.is_reported_by_server:
        return "if the model cannot continue after its end token, set endpoint.ignore_eos=false"
    return ""


def _tls_error(error: ssl.SSLError) -> RequestError:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = (
            "set the environment variable SSL_CERT_FILE to a file with the certificate "
            "of the authority that signed it"
        )
        problem = f"the server's certificate is not trusted: {printable(error.verify_message)}"
        return RequestError(problem, remedy)
    reason = error.reason or printable(str(error))
    return RequestError(
        f"the TLS handshake failed: {reason}", "check endpoint.url; does the server need http://?"
    )


def retry_seconds(value: str | None) -> float | None:
    """Return the seconds to wait that a Retry-After header requests.

    Args:
        value: Value of the header: a number of seconds or a date (RFC 9110, section 10.2.3). A date
            without a time zone, as `asctime` formats it, counts as UTC. None if the header is
            absent.

    Returns:
        The seconds; None if the header is absent or invalid.
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            date = email.utils.parsedate_to_datetime(value)
            if date.tzinfo is None:
                date = date.replace(tzinfo=datetime.UTC)
            return max(0.0, date.timestamp() - time.time())
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def body_error(content: str) -> str:
    """Return the error message in the body of a response.

    Args:
        content: Text of the body.

    Returns:
        The message; "" if the body is not JSON or contains no message.
    """
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    return error_text(document)
