"""Reading files of others within bounds: whatever is in them, a value comes out or one of `DAMAGED` is raised.

A file that is larger than `LARGEST`, packed or unpacked, is none of those that are read here (the largest published one
has 0.3 MB). Sheets are read row by row, so that one far cell or a million blank rows cost neither memory nor minutes.
"""

from __future__ import annotations

import csv
import json
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["DAMAGED", "LARGEST", "read_json", "read_sheets", "read_table", "read_text", "reason"]

#: What reading raises where a file is not what it claims to be; of damaged XML in a spreadsheet a SyntaxError.
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError),
    *(ValueError, csv.Error, zipfile.BadZipFile, zlib.error),
)
#: Bytes.
LARGEST = 32 * 2**20
_MOST_ROWS, _MOST_COLUMNS = 20_000, 200  # of a sheet
_DIGITS = 15  # a whole number with more is no count of anything: it is read as a float, which may be infinite


def reason(error: BaseException) -> str:
    """What is wrong, on one line."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    words = " ".join(f"{'has no ' if isinstance(error, KeyError) else ''}{error}".split())
    return words[:200] or type(error).__name__


def read_text(path: Path) -> str:
    """The text of a file, without the mark that may stand at its beginning."""
    if (size := path.stat().st_size) > LARGEST:
        raise ValueError(f"has {size:,} bytes, more than {LARGEST:,}")
    return path.read_text(encoding="utf-8-sig")


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(read_text(path), parse_int=lambda text: int(text) if len(text) <= _DIGITS else float(text))


def read_table(text: str, delimiter: str = ",") -> csv.DictReader[str]:
    """The rows of a text of delimited columns, as a reader that knows its `fieldnames` and the line it is at."""
    return csv.DictReader(text.splitlines(), delimiter=delimiter)


def read_sheets(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Sheet -> its rows of values, None where a cell is blank."""
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of extensions that are not read, such as colours
        with zipfile.ZipFile(file) as parts:
            if (size := sum(part.file_size for part in parts.infolist())) > LARGEST:
                raise ValueError(f"holds {size:,} bytes, more than {LARGEST:,}")
        try:
            book = load_workbook(file, data_only=True, read_only=True)
            return {sheet.title: list(_rows(sheet)) for sheet in book.worksheets}
        except InvalidFileException as error:
            raise ValueError(str(error)) from error


def _rows(sheet: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a sheet, whatever it says of its own size."""
    sheet.reset_dimensions()
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > _MOST_ROWS or len(row) > _MOST_COLUMNS:
            raise ValueError(f"sheet {sheet.title!r} has a cell beyond row {_MOST_ROWS:,} or column {_MOST_COLUMNS}")
        yield row
