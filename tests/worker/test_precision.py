"""Instructions of a processor, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paradnn.worker.precision import has_instructions

X86 = "processor\t: 0\nmodel name\t: some\nflags\t\t: fpu avx512f {}\nbugs\t\t: avx512_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.mark.parametrize(
    ("text", "precision", "expected"),
    [
        (X86.format(""), "float32", True),
        (X86.format(""), "bfloat16", False),
        (X86.format("avx512_bf16"), "bfloat16", True),
        (X86.format("amx_bf16 amx_tile"), "bfloat16", True),
        (X86.format("avx512_bf16"), "float16", False),
        (X86.format("avx512_fp16"), "float16", True),
        (ARM.format("bf16"), "bfloat16", True),
        (ARM.format("asimdhp"), "bfloat16", False),
        ("processor\t: 0\n", "bfloat16", None),
    ],
)
def test_instructions_are_read_from_the_first_processor(
    text: str, precision: str, expected: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert has_instructions(precision, tmp_path / "cpuinfo") is expected
    assert has_instructions("bfloat16", tmp_path / "missing") is None
