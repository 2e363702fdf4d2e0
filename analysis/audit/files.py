"""Detect which benchmark harness wrote a result file, and read it."""

import dataclasses
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from analysis.audit.language_benchmarks import (
    read_criterion,
    read_go,
    read_jmh,
    read_pyperf,
    with_name,
)
from analysis.audit.llama_bench import read_llama_bench
from analysis.audit.load_tests import read_aiperf, read_guidellm, read_loadgen, read_vllm_bench
from analysis.audit.microbenchmarks import (
    read_asv,
    read_google_benchmark,
    read_hyperfine,
    read_pytest_benchmark,
)
from analysis.audit.series import Note, Reading, Results, Series, SharedSetting
from analysis.audit.training_logs import read_mlperf_training, read_nccl_tests
from paradnn.core.errors import DataError

#: Largest accepted file: parsed JSON takes about ten times its size in memory.
MAX_FILE_BYTES = 64 * 2**20

_WHITESPACE = re.compile(r"\s*")
_GZIP_MAGIC = b"\x1f\x8b"
#: Beginning of a line of JSON, in a text that also has other lines, such as a program's banner, or
#: that ends within a list, because its harness was interrupted.
_JSON_LINE = re.compile(r"^[ \t]*[{\[]", re.MULTILINE)


class Harness(NamedTuple):
    """A benchmark harness whose result files can be read.

    Attributes:
        read: Function that yields the measurements in a parsed file; nothing if a different harness
            wrote it.
        file: For messages: the option with which the harness writes the file, or the name of the
            file.
    """

    read: Callable[[Any], Reading]
    file: str


#: Harnesses by name.
READERS: dict[str, Harness] = {
    "hyperfine": Harness(read_hyperfine, "hyperfine --export-json"),
    "pytest-benchmark": Harness(read_pytest_benchmark, "pytest --benchmark-json"),
    "Google Benchmark": Harness(read_google_benchmark, "Google Benchmark --benchmark_format=json"),
    "asv": Harness(read_asv, "asv (results/MACHINE/*.json)"),
    "pyperf": Harness(read_pyperf, "pyperf -o"),
    "JMH": Harness(read_jmh, "JMH -rf json"),
    "Go": Harness(read_go, "go test -bench"),
    "Criterion.rs": Harness(read_criterion, "cargo bench"),
    "llama-bench": Harness(read_llama_bench, "llama-bench"),
    "GuideLLM": Harness(read_guidellm, "GuideLLM (benchmarks.json)"),
    "AIPerf": Harness(read_aiperf, "AIPerf (profile_export_aiperf.json)"),
    "vllm bench": Harness(read_vllm_bench, "vllm bench --save-result"),
    "LoadGen": Harness(read_loadgen, "LoadGen (mlperf_log_summary.txt)"),
    "MLPerf Training": Harness(read_mlperf_training, "MLPerf Training (:::MLLOG lines)"),
    "nccl-tests": Harness(read_nccl_tests, "nccl-tests"),
}


def read_results(path: Path) -> list[Results]:
    """Read the sessions in the result file of a benchmark harness.

    A file is one session: measurements taken in one go. If its harness appends an entry per run
    (JSON lines, or a list), each entry is one session.

    Args:
        path: A file in the format of one of `READERS`, in UTF-8, UTF-16 or UTF-32, or compressed by
            gzip.

    Returns:
        The sessions, in the order of the file.

    Raises:
        DataError: If the file cannot be read, or has no measurement above zero in a known format.
    """
    reported: list[str] = []
    for documents, unread in _parse_documents(_read_text(path)):
        sessions = []
        for number, document in enumerate(documents, 1):
            label = str(path)
            if len(documents) > 1:
                label = f"{path} (entry {number})"
            results = _read_document(label, with_name(document, path))
            if results is None:
                continue
            if results.series:
                sessions.append(results)
            reported += results.notes
        if sessions and unread:
            last = sessions[-1]
            note = "a part of the file is not JSON and was not read"
            sessions[-1] = dataclasses.replace(last, notes=(*last.notes, note))
        if sessions:
            return sessions
    if reported:
        raise DataError(f"{path} contains no measurement above zero: {'; '.join(reported)}")
    formats = ", ".join(harness.file for harness in READERS.values())
    raise DataError(
        f"{path} contains no measurement above zero in a known format; give results of {formats}"
    )


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _too_large(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); give a result file"
        ) from None
    if content.startswith(_GZIP_MAGIC):
        content = _decompress(path, content)
    return content.decode(json.detect_encoding(content), errors="replace")


def _decompress(path: Path, content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is a damaged gzip file ({error}); give the file that the harness wrote"
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise _too_large(path)
    return content


def _too_large(path: Path) -> DataError:
    return DataError(
        f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB; "
        "give the summary that the harness wrote"
    )


def _parse_documents(text: str) -> Iterator[tuple[Sequence[Any], bool]]:
    """Yield the documents in a text: first its JSON objects, then the text as a whole.

    The JSON objects are yielded if there are any, possibly between other lines. The whole text is
    yielded if it has other lines, or no JSON.

    Yields:
        The documents, and whether parts of the text were not read. The documents are the JSON
        objects, or a single object with the whole text under the key `text`.
    """
    documents, unread = _parse_json(text)
    if documents:
        yield documents, unread
    if unread or not documents:
        yield [{"text": text}], False


def _parse_json(text: str) -> tuple[Sequence[Any], bool]:
    """Return the JSON objects of a text, and whether parts of the text are not JSON.

    A JSON value may start at the beginning of the text, after another value, or at the beginning of
    a line. If the only value is a list, its objects are returned. The objects of one session may be
    merged into one (`_merge_messages`).
    """
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    unread = False
    position = _skip_whitespace(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            unread = True
            line = _JSON_LINE.search(text, position + 1)
            if line is None:
                break
            position = line.end() - 1
            continue
        documents.append(document)
        position = _skip_whitespace(text, position)
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    objects = [document for document in documents if isinstance(document, Mapping)]
    merged = _merge_messages(objects)
    if merged is not None:
        objects = [merged]
    return objects, unread


def _merge_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Merge the JSON objects of one session into one document; None if each object is a session.

    JMH and llama-bench write a list of results, AIPerf a line per request, `cargo criterion` and
    `go test -json` a line per event.

    Args:
        messages: The objects of a file, in order.
    """
    if not messages:
        return None
    if all("primaryMetric" in message for message in messages):
        return {"jmh": messages}
    if all({"n_prompt", "n_gen", "avg_ts"} <= message.keys() for message in messages):
        return {"llama-bench": messages}
    if all("reason" in message for message in messages):
        return {"criterion": messages}
    if all({"metadata", "metrics", "error"} <= message.keys() for message in messages):
        return {"requests": messages}
    if all("Action" in message for message in messages):
        return {"text": "".join(str(message.get("Output", "")) for message in messages)}
    return None


def _skip_whitespace(text: str, position: int) -> int:
    match = _WHITESPACE.match(text, position)
    assert match, "the pattern matches the empty text"
    return match.end()


def _read_document(label: str, document: Any) -> Results | None:
    """Return the session in a document; None if no reader finds a measurement or a report in it.

    If no reader finds a measurement, the result has the reports of the first reader that finds any.

    Args:
        label: Name of the document for messages, such as the path of the file.
        document: A JSON object.
    """
    best = None
    for name, harness in READERS.items():
        entries = list(harness.read(document))
        series = [entry for entry in entries if isinstance(entry, Series)]
        notes = [entry.text for entry in entries if isinstance(entry, Note)]
        conditions = {
            entry.name: entry.value for entry in entries if isinstance(entry, SharedSetting)
        }
        if series or (notes and best is None):
            best = Results(
                file=label,
                harness=name,
                series=_with_distinct_names(series),
                notes=tuple(notes),
                conditions=conditions,
            )
        if series:
            return best
    return best


def _with_distinct_names(series: Sequence[Series]) -> tuple[Series, ...]:
    """Append numbers to the names of series with the same name.

    Otherwise they would count as sessions of one series.
    """
    seen: Counter[str] = Counter()
    distinct = []
    for entry in series:
        seen[entry.name] += 1
        if seen[entry.name] > 1:
            entry = dataclasses.replace(entry, name=f"{entry.name} #{seen[entry.name]}")
        distinct.append(entry)
    return tuple(distinct)
