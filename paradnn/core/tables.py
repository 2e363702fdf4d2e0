"""CSV tables that are part of the package, in the folders of the modules that read them."""

import csv
from pathlib import Path


def rows(module_file: str, name: str = "") -> list[dict[str, str]]:
    """Return the rows of a CSV file in the folder of a module, as mappings from column to text.

    Args:
        module_file: `__file__` of the module.
        name: Name of the CSV file; if empty, the module's name with the suffix .csv.
    """
    module_path = Path(module_file)
    path = module_path.with_name(name) if name else module_path.with_suffix(".csv")
    with path.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))
