"""Differences between the supported releases of Hydra (1.3, 1.4) and OmegaConf (2.3, 2.4)."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from omegaconf import OmegaConf


def _release(package: str) -> tuple[int, int]:
    """Return (major, minor), the version of an installed package."""
    major, minor = version(package).split(".")[:2]
    return int(major), int(minor)


#: Parameters of hydra.main and of Hydra's initialize functions. Hydra 1.3 needs `version_base` to
#: select its defaults. Hydra 1.4 always has these defaults and deprecates the parameter.
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"}
#: Parameters that make Hydra's ConfigStore replace an entry. Hydra 1.3 needs no parameter.
REPLACE: dict[str, Any] = {}
#: Topics of Hydra's option --info.
INFO_TOPICS: tuple[str, ...] = (
    "all",
    "config",
    "defaults",
    "defaults-tree",
    "plugins",
    "searchpath",
)
if _release("hydra-core") >= (1, 4):
    VERSION_BASE = {}
    REPLACE = {"replace": True}
    INFO_TOPICS = ("all", "aliases", *INFO_TOPICS[1:])


def register_resolver(name: str, resolver: Callable[..., Any]) -> None:
    """Register a resolver for OmegaConf's interpolations, such as ${name:argument}.

    An existing resolver of the same name is replaced.

    Args:
        name: Name of the resolver in interpolations.
        resolver: Function of the arguments that returns the value.
    """
    # Before 2.4, `register_resolver` was a deprecated function with different arguments.
    register: Callable[..., None] = OmegaConf.register_new_resolver
    if _release("omegaconf") >= (2, 4):
        register = OmegaConf.register_resolver
    register(name, resolver, replace=True)
