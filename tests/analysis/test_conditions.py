"""Truth table of conditions; --where, sides and claims must agree on every row."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis.claims.evaluate import require
from analysis.claims.load import parse_claims
from analysis.store.conditions import claim_conditions, filter_by_text, format_conditions
from paradnn.core.errors import ConfigError, NotEnoughData
from tests.analysis.conftest import refusals

FRAME = pd.DataFrame(
    {
        "n": pd.array([1, 2, None], "Int64"),
        "x": [0.5, float("nan"), 2.0],
        "s": ["a", "b, c", None],
        "v": ["1.12.0", "1.7", None],
        "m": ["auto", "8", None],
        "l": ["[1, 1]", "[2, 2]", None],
        "b": pd.array([True, None, False], "boolean"),
        "t": pd.to_datetime(["2026-01-01", "2026-01-02", None], utc=True),
        "nothing": pd.Series([None, None, None], dtype="str"),
        "row": range(3),
    }
)

_COLUMNS = yaml.safe_load(Path(__file__).with_name("conditions.yaml").read_text())
TRUTH = [
    (column, condition, rows)
    for column, table in _COLUMNS.items()
    for condition, rows in table.items()
]


@pytest.mark.parametrize(("column", "condition", "rows"), TRUTH)
def test_a_condition_means_the_same_everywhere(
    column: str, condition: str, rows: list[int]
) -> None:
    assert list(filter_by_text(FRAME, [f" {column} {condition} "])["row"]) == rows
    in_claims = f'{{{column}: "{condition.removeprefix("=")}"}}'
    text = f"- {{id: 1, says: s, checks: [{{kind: threshold, metric: n, at_least: 1, where: {in_claims}}}]}}"
    [check] = parse_claims(text, "test")[0].checks
    if rows:
        assert list(require(FRAME, check.where)["row"]) == rows
    else:
        with pytest.raises(NotEnoughData, match=f"no runs with {column}{condition}"):
            require(FRAME, check.where)


def test_conditions_must_all_hold_and_values_of_a_claim_are_alternatives() -> None:
    assert list(filter_by_text(FRAME, ["n>0", "n<2"])["row"]) == [0]
    where = {
        "n": claim_conditions("n", (">0", "<2"), "where"),
        "s": claim_conditions("s", ("a", "b, c", None), "where"),
    }
    assert list(require(FRAME, where)["row"]) == [0]
    assert format_conditions(where) == "n>0, n<2, s=a,b, c,null"
    assert list(require(FRAME, {"b": claim_conditions("b", (True, None), "where")})["row"]) == [
        0,
        1,
    ]


@pytest.mark.parametrize(("condition", "message"), refusals("conditions"))
def test_what_cannot_be_asked_is_said(condition: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        filter_by_text(FRAME, [condition])
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--a="):
        filter_by_text(FRAME, [condition], "--a")
