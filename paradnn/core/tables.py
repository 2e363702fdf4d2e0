"""Tables that come with the package, beside the modules that read them."""

import csv
from pathlib import Path


def rows(file: str, name: str = "") -> list[dict[str, str]]:
    """The rows of a CSV file beside a module `file`: of the same name as that unless another is
    given.
    """
    path = Path(file)
    with (path.with_name(name) if name else path.with_suffix(".csv")).open(
        encoding="utf-8", newline=""
    ) as table:
        return list(csv.DictReader(table))
