"""Versions of the software under test, read from the installed distributions without importing them."""

from __future__ import annotations

import importlib.metadata
import platform

__all__ = ["versions"]

# Distributions whose versions make up the software under test, for each framework.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel", "tensorflow-macos"),
    "jax": ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu"),
    "torch": ("torch", "triton"),
}
_COMMON = ("keras", "numpy", "ml-dtypes", "h5py")


def versions(name: str) -> dict[str, str]:
    """Versions of the software under test, read from the installed distributions without importing them."""
    versions_by_name = {"python": platform.python_version()}
    for distribution in (*_DISTRIBUTIONS[name], *_COMMON):
        try:
            versions_by_name[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if distribution.startswith(("tensorflow-", "tf-")):
            # By one name whatever the build, which its own name says.
            versions_by_name.setdefault("tensorflow", versions_by_name[distribution])
    return versions_by_name
