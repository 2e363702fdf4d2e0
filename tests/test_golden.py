"""`benchmarks.golden` and `benchmarks.mutants` on planted differences and a planted module."""

import ast
from pathlib import Path

import pytest

from benchmarks.golden import differences
from benchmarks.mutants import mutants, sample

TABLE = "device,value,run_id\nV100,1.0,a\nT4,2.0,b\n"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param("device,value,run_id\nV100,1.0,c\nT4,2.0,d\n", [], id="different identifiers"),
        pytest.param(
            "device,value,run_id\nT4,2.0,b\nV100,1.0,a\n",
            ["the same rows in another order"],
            id="different order",
        ),
        pytest.param(
            "device,value,run_id\nV100,1.0,a\nT4,2.5,b\n",
            ["column value: 1 of 2: relative, median 0.25, largest 0.25"],
            id="different number",
        ),
        pytest.param(
            "device,value,run_id\nV100,1.0,a\nT4,,b\n",
            ["column value: 1 of 2: a value appears or disappears"],
            id="missing number",
        ),
        pytest.param(
            "device,value,run_id\nV100,1.0,a\nA100,2.0,b\n",
            ["column device: 1 of 2: 'T4', then 'A100'"],
            id="different text",
        ),
        pytest.param(
            "device,speed,run_id\nV100,1.0,a\nT4,2.0,b\n",
            ["column value: removed", "column speed: added"],
            id="renamed column",
        ),
        pytest.param(
            "device,value,run_id\nV100,1.0,a\n", ["2 rows, then 1"], id="different number of rows"
        ),
        pytest.param(None, ["written only at the base"], id="no table"),
    ],
)
def test_planted_differences_of_two_tables_are_described(
    tmp_path: Path, head: str | None, expected: list[str]
) -> None:
    base_file = tmp_path / "base.csv"
    head_file = tmp_path / "head.csv"
    base_file.write_text(TABLE)
    if head is not None:
        head_file.write_text(head)

    assert list(differences(base_file, head_file)) == expected


SOURCE = """def f(a: int | None, b: float = 2) -> int | None:
    if a < b and not a:
        return min(a, -b)
    return None
"""


def test_mutants_include_every_possible_change_of_a_module() -> None:
    changes = sorted(text for _, _, text, _ in mutants(ast.parse(SOURCE)))

    assert changes == [
        "2 to 1",
        "2 to 3",
        "And to Or",
        "Lt to Gt",
        "Lt to LtE",
        "drop Not",
        "drop USub",
        "min to max",
        "return None",
    ]


def test_a_mutant_differs_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    original = ast.unparse(ast.parse(SOURCE)).splitlines()

    chosen_mutants, count = sample(path, most=9, seed=0)

    assert len(chosen_mutants) == count == 9
    for mutant in chosen_mutants:
        changed = ast.unparse(mutant.tree).splitlines()
        lines = [
            number
            for number, (old, new) in enumerate(zip(original, changed, strict=True), 1)
            if old != new
        ]
        assert lines == [mutant.line]
