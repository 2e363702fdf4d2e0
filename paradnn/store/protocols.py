"""Names of timing protocols: those of `conf/measure`, else the beginning of their hash."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import yaml

from paradnn.config.identity import protocol_id
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure
from paradnn.core.schema import read

__all__ = ["DEEPBENCH", "PUBLISHED", "VIDUR", "protocol_name", "protocol_names"]

#: `protocol_id` of the paper's measurements: a hash of what is known of it, "best logged rate".
PUBLISHED = "b5307f819546707b"
#: That of DeepBench's: "mean of many calls after one".
DEEPBENCH = "6a1314096f27918a"
#: That of Vidur's: "median of the kernels of three repetitions".
VIDUR = "ee900f105392ae85"
_SHORT = 8  # letters of a hash


@cache
def protocol_names() -> Mapping[str, str]:
    """`protocol_id` -> name: quick, standard and whatever else `conf/measure` holds, and those of published runs."""
    named = {PUBLISHED: "published", DEEPBENCH: "deepbench", VIDUR: "vidur"}
    for path in sorted((CONFIG / "measure").glob("*.yaml")):
        measure = read(Measure, yaml.safe_load(path.read_text(encoding="utf-8")), "measure")
        named.setdefault(protocol_id(measure), path.stem)
    return named


def protocol_name(identity: str) -> str:
    """What a protocol is called, given its `protocol_id`."""
    return protocol_names().get(identity, identity[:_SHORT])
