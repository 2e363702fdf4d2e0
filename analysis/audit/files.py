"""Find out which harness wrote a file, and read it."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.audit.load_tests import read_aiperf, read_guidellm, read_loadgen, read_vllm_bench
from analysis.audit.microbenchmarks import (
    read_asv,
    read_google_benchmark,
    read_hyperfine,
    read_pytest_benchmark,
)
from analysis.audit.series import Note, Reading, Results, Series, SharedSetting
from paradnn.core.errors import DataError

#: Larger files are rejected: parsed JSON takes about ten times its size in memory.
MAX_FILE_BYTES = 64 * 2**20

_BLANKS = re.compile(r"\s*")

#: Reader by the name of the harness.
READERS: dict[str, Callable[[Any], Reading]] = {
    "hyperfine": read_hyperfine,
    "pytest-benchmark": read_pytest_benchmark,
    "Google Benchmark": read_google_benchmark,
    "asv": read_asv,
    "GuideLLM": read_guidellm,
    "AIPerf": read_aiperf,
    "vllm bench": read_vllm_bench,
    "LoadGen": read_loadgen,
}


def read_results(path: Path) -> list[Results]:
    """Read the sessions in a result file.

    A file is one session. A file of JSON lines, or with a list of results, holds one session per
    entry: harnesses that append to a file write one entry per run.

    Args:
        path: A file in the format of one of `READERS`, in UTF-8, UTF-16 or UTF-32.

    Returns:
        The sessions, in the order of the file.

    Raises:
        DataError: The file cannot be read, or holds no measurement of a known format.
    """
    text = _read_text(path)
    documents, unread = _parse_documents(text)
    sessions = []
    reported: list[str] = []
    for number, document in enumerate(documents, 1):
        label = str(path)
        if len(documents) > 1:
            label = f"{path} (entry {number})"
        results = _read_document(label, document)
        if results is None:
            continue
        if results.series:
            sessions.append(results)
        reported += results.notes
    if not sessions:
        if reported:
            raise DataError(f"{path} holds no measurement above zero: {'; '.join(reported)}")
        raise DataError(
            f"{path} holds no measurement above zero in a known format; "
            f"give results of {', '.join(READERS)}"
        )
    if unread:
        last = sessions[-1]
        note = f"the file is damaged after entry {len(documents)}; the rest was not read"
        sessions[-1] = dataclasses.replace(last, notes=(*last.notes, note))
    return sessions


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(
                f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB; "
                "give the summary that the harness wrote"
            )
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); give a result file"
        ) from None
    return content.decode(json.detect_encoding(content), errors="replace")


def _parse_documents(text: str) -> tuple[Sequence[Any], bool]:
    """The JSON values of a text, one after the other, and whether text after them is no JSON.

    A single list of objects counts as its objects. A text that is not JSON becomes one document with
    the key `text`.
    """
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    position = _skip_blanks(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        documents.append(document)
        position = _skip_blanks(text, position)
    if not any(isinstance(document, dict | list) for document in documents):
        return [{"text": text}], False
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    return documents, position < len(text)


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    assert match, "the pattern matches the empty text"
    return match.end()


def _read_document(label: str, document: Any) -> Results | None:
    """The session in a document; None if no reader finds anything in it.

    If no reader finds a series, the result has the notes of the first reader that has some.
    """
    best = None
    for harness, reader in READERS.items():
        entries = list(reader(document))
        series = [entry for entry in entries if isinstance(entry, Series)]
        notes = [entry.text for entry in entries if isinstance(entry, Note)]
        conditions = {
            entry.name: entry.value for entry in entries if isinstance(entry, SharedSetting)
        }
        if series or (notes and best is None):
            best = Results(
                file=label,
                harness=harness,
                series=_with_distinct_names(series),
                notes=tuple(notes),
                conditions=conditions,
            )
        if series:
            return best
    return best


def _with_distinct_names(series: Sequence[Series]) -> tuple[Series, ...]:
    """Number series of the same name, so that none passes for another session of the first."""
    seen: Counter[str] = Counter()
    distinct = []
    for entry in series:
        seen[entry.name] += 1
        if seen[entry.name] > 1:
            entry = dataclasses.replace(entry, name=f"{entry.name} #{seen[entry.name]}")
        distinct.append(entry)
    return tuple(distinct)
