"""What a run says of its precision and of its profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paradnn.record.breakdown_figure import point_figure
from paradnn.record.profile_summary import precision_tags, profile_tags
from paradnn.worker.messages import Profile, Table

TABLE = Table(["type", "category", "share"], [["MatMul", "matmul", 0.75], ["(no operation)", "(no operation)", 0.25]])
PROFILE = Profile(TABLE, TABLE, 0.5, 0.25, 100.0, {"float32": 1.0}, 3, 1.05)

EMULATED = "this processor has no instructions for products in bfloat16: they are emulated"


@pytest.mark.parametrize(
    ("types", "native", "expected"),
    [
        ({"bfloat16": 1.0}, True, {"matmul_types": "bfloat16 100.0%"}),
        ({"bfloat16": 1.0}, False, {"matmul_types": "bfloat16 100.0%", "emulation_note": EMULATED}),
        (
            {"bfloat16": 0.75, "float32": 0.25},
            None,
            {
                "matmul_types": "bfloat16 75.0%, float32 25.0%",
                "precision_note": "25% of the products have operands of another type than bfloat16",
            },
        ),
        # Nothing is emulated where the compiler has turned all to float32.
        (
            {"float32": 1.0},
            False,
            {
                "matmul_types": "float32 100.0%",
                "precision_note": "100% of the products have operands of another type than bfloat16",
            },
        ),
        ({}, False, {"emulation_note": EMULATED}),
        ({}, None, {}),
    ],
)
def test_precision_is_that_of_the_operands(
    types: dict[str, float], native: bool | None, expected: dict[str, str]
) -> None:
    assert precision_tags(types, "bfloat16", native) == expected


@pytest.mark.parametrize(("slowdown", "told"), [(1.05, False), (1.37, True)])
def test_a_slow_profile_carries_a_note(slowdown: float, told: bool) -> None:
    profile = replace(PROFILE, slowdown=slowdown)
    note = "shares are of a step that took 1.37 times as long under the profiler"
    assert profile_tags(profile).get("profile_note") == (note if told else None)
    hidden = profile_tags(replace(profile, command_buffers=2))["profile_note"]
    assert "operations in 2 command buffer(s) of the GPU are not seen" in hidden
    assert (note in hidden) is told
    label = point_figure("a point", profile, {}, "float32").axes[0].get_xlabel()
    assert (note in label) is told
