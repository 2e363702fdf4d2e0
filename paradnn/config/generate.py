"""Generating tokens, typed: the keys of `mode=generate`, and what a point must be to generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paradnn.core.schema import option, read
from paradnn.errors import ConfigError

__all__ = ["GENERATE", "Generate", "check_generate", "read_generate"]

GENERATE = "generate"


@dataclass(frozen=True)
class Generate:
    """The length of a prompt, and of what is generated for it; every example of a batch has the same."""

    prompt: int = option(64, "mode=generate: tokens of each prompt, read at once", low=1, high=1_000_000)
    tokens: int = option(64, "mode=generate: tokens generated for it, one after the other", low=1, high=1_000_000)

    @property
    def length(self) -> int:
        """Positions of the cache."""
        return self.prompt + self.tokens


def read_generate(config: Mapping[str, Any]) -> Generate | None:
    """The keys of `generate` in a composed configuration; None for another mode, where ConfigError for one that is set.

    They stand in every configuration, so that `mode` need not be a group; where nothing generates they mean nothing.
    """
    given = read(Generate, config.get(GENERATE, {}), GENERATE)
    if config.get("mode") == GENERATE:
        return given
    usual = asdict(Generate())
    for name, value in asdict(given).items():
        if value != usual[name]:
            raise ConfigError(f"{GENERATE}.{name}", value, "is for mode=generate", "add mode=generate, or leave it out")
    return None


def check_generate(point: Any) -> None:
    """Raises ConfigError where `point`, a `Point`, is to generate and cannot."""
    given = point.generate
    if given is None:
        return
    if not point.model.generates:
        reason = f"model={point.model.name} generates no tokens"
        raise ConfigError("mode", GENERATE, reason, "choose model=gpt or model=gpt2, or mode=inference")
    for key, value, usual, why in (
        ("devices", point.devices, 1, "is for one device"),
        ("data", point.data.name, "synthetic", "takes prompts of its own"),
    ):
        if value != usual:
            raise ConfigError(key, value, f"mode=generate {why}", f"set {key}={usual}")
    most = point.model.sequence_length
    if given.length > most:
        reason = f"with generate.prompt={given.prompt} is more than the model's {most} positions"
        remedy = f"raise model.sequence_length to {given.length}, or ask for less"
        raise ConfigError(f"{GENERATE}.tokens", given.tokens, reason, remedy)
