"""Our category of an operation, by its name in each of the four languages that traces and programs
speak.

The table `categories.csv` has a row a pattern: the first one of its language that is found in a
name says the category. The language `kernel` are kernels of a device that name no operation, in
lower case.
"""

import functools
import re

from paradnn.core.tables import rows

_PATTERNS = rows(__file__)
#: Those that multiply what is counted as a product.
PRODUCTS = ("matmul", "convolution")


@functools.cache
def categorise(language: str, name: str) -> str:
    """Of an operation: matmul, convolution, elementwise, reduction, data movement, communication,
    control, other.
    """
    rows = (row for row in _PATTERNS if row["language"] == language)
    return next(row["category"] for row in rows if re.search(row["pattern"], name))
