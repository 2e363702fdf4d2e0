"""One thread for BLAS while a model is fitted or asked.

Its matrices are small, so further threads gain little; and where cores are shared with a measurement or another driver,
BLAS threads spin for each other at every product: the same look took 5 to 15 times as long (benchmarks/README.md).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's and SciPy's products take one thread in here; as a decorator, in the function."""
    with _blas().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _blas() -> ThreadpoolController:
    """The libraries that are loaded; looking for them takes some 20 ms."""
    import scipy.linalg  # noqa: F401  brings a BLAS of its own

    return ThreadpoolController()
