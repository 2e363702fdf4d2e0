"""Truth table of conditions, on which --where and claims must agree in every row."""

import pandas as pd
import pytest

from analysis.claims.evaluate import require
from analysis.claims.load import parse_claims
from analysis.store.conditions import claim_conditions, filter_by_text, format_conditions
from paradnn.core.errors import ConfigError, InsufficientData

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

#: Column of FRAME, condition, and the rows that meet it. Row 2 has few values.
TRUTH = [
    ("n", "=1", [0]),
    ("n", "=1,2", [0, 1]),
    ("n", "!=1", [1]),
    ("n", "!=1,2", []),
    ("n", ">=1", [0, 1]),
    ("n", "<2", [0]),
    ("n", "=null", [2]),
    ("n", "!=null", [0, 1]),
    ("n", "=1,null", [0, 2]),
    ("n", "!=1,null", [1]),
    ("x", "<2.5", [0, 2]),
    ("x", ">=5e-1", [0, 2]),
    ("x", "!=0.5", [2]),
    ("s", "=b, c", [1]),
    ("s", "!=b, c", [0]),
    ("s", "=a,b", [0]),
    ("s", "=b*", [1]),
    ("s", "!=b*", [0]),
    ("s", "=?", [0]),
    ("s", ">1", []),
    ("v", "=1.1*", [0]),
    ("v", "!=1.7", [0]),
    ("v", "<=1.7", [1]),
    ("m", "=8", [1]),
    ("m", ">4", [1]),
    ("l", "=[1, 1]", [0]),
    ("b", "=true", [0]),
    ("b", "!=true", [2]),
    ("b", "=False", [2]),
    ("b", "=null", [1]),
    ("t", ">2026-01-01T12:00", [1]),
    ("t", "=2026-01-02", [1]),
    ("t", "!=2026-01-02", [0]),
    ("nothing", "=null", [0, 1, 2]),
    ("nothing", "!=x", []),
]


@pytest.mark.parametrize(
    ("column", "condition", "rows"),
    [
        pytest.param(column, condition, rows, id=f"{column}{condition}")
        for column, condition, rows in TRUTH
    ],
)
def test_a_condition_selects_the_same_rows_in_where_and_in_claims(
    column: str, condition: str, rows: list[int]
) -> None:
    assert list(filter_by_text(FRAME, [f" {column} {condition} "])["row"]) == rows

    in_claims = f'{{{column}: "{condition.removeprefix("=")}"}}'
    text = f"- {{id: 1, says: s, checks: [{{kind: threshold, metric: n, at_least: 1, where: {in_claims}}}]}}"
    [check] = parse_claims(text, "test")[0].checks
    if rows:
        assert list(require(FRAME, check.where)["row"]) == rows
    else:
        with pytest.raises(InsufficientData, match=f"no run satisfies {column}{condition}"):
            require(FRAME, check.where)


def test_all_conditions_of_a_filter_must_hold() -> None:
    assert list(filter_by_text(FRAME, ["n>0", "n<2"])["row"]) == [0]


def test_all_conditions_of_a_claim_must_hold() -> None:
    where = {
        "n": claim_conditions("n", (">0", "<2"), "where"),
        "s": claim_conditions("s", ("a", "b, c", None), "where"),
    }

    assert list(require(FRAME, where)["row"]) == [0]
    assert format_conditions(where) == "n>0, n<2, s=a,b, c,null"


def test_listed_values_are_alternatives() -> None:
    where = {"b": claim_conditions("b", (True, None), "where")}

    assert list(require(FRAME, where)["row"]) == [0, 1]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        pytest.param(
            "n",
            "--where=n: is not a condition; for example, write --where 'model.nodes>=1024'",
            id="no comparison",
        ),
        pytest.param(
            "b=maybe",
            "--where=b=maybe: 'maybe' is not a value of b; write b=true or b=false",
            id="not a boolean",
        ),
        pytest.param(
            "n=one",
            "--where=n=one: 'one' is not a value of n; write a number",
            id="not a number",
        ),
        pytest.param(
            "n=1*",
            "--where=n=1*: '1*' is not a value of n; write a number",
            id="pattern for a number",
        ),
        pytest.param(
            "b>true",
            (
                "compares with 'true', which is neither a number nor a time; "
                "for example, write 'b>=1024', or "
                "use = or !="
            ),
            id="order of booleans",
        ),
        pytest.param(
            "b>1",
            "'1' is not a value of b; write b=true or b=false",
            id="number for a boolean",
        ),
        pytest.param(
            "s>a",
            "--where=s>a: compares with 'a', which is neither a number nor a time",
            id="order of text",
        ),
        pytest.param("n>2026-01-01", "'2026-01-01' is not a value of n", id="time for a number"),
        pytest.param("t=soon", "'soon' is not a value of t", id="not a time"),
        pytest.param(
            "rows=1", "these runs have no column rows; did you mean row?", id="unknown column"
        ),
    ],
)
def test_invalid_conditions_are_rejected(condition: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        filter_by_text(FRAME, [condition])
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--a="):
        filter_by_text(FRAME, [condition], "--a")
