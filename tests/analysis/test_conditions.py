"""What a condition means, as a truth table; --where, sides and claims must agree on every row of it."""

import pandas as pd
import pytest

from analysis.claims.evaluate import require
from analysis.claims.load import parse_claims
from analysis.store.conditions import conditions_on, in_words, select
from paradnn.core.errors import ConfigError, NotEnoughData

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

#: (column, what it must be, rows that are so); row 2 lacks most values.
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


@pytest.mark.parametrize(("column", "condition", "rows"), TRUTH)
def test_a_condition_means_the_same_everywhere(column: str, condition: str, rows: list[int]) -> None:
    assert list(select(FRAME, [f" {column} {condition} "])["row"]) == rows
    in_claims = f'{{{column}: "{condition.removeprefix("=")}"}}'
    text = f"- {{id: 1, says: s, checks: [{{kind: threshold, metric: n, at_least: 1, where: {in_claims}}}]}}"
    [check] = parse_claims(text, "test")[0].checks
    if rows:
        assert list(require(FRAME, check.where)["row"]) == rows
    else:
        with pytest.raises(NotEnoughData, match=f"no runs with {column}{condition}"):
            require(FRAME, check.where)


def test_conditions_must_all_hold_and_values_of_a_claim_are_alternatives() -> None:
    assert list(select(FRAME, ["n>0", "n<2"])["row"]) == [0]
    where = {"n": conditions_on("n", (">0", "<2"), "where"), "s": conditions_on("s", ("a", "b, c", None), "where")}
    assert list(require(FRAME, where)["row"]) == [0]
    assert in_words(where) == "n>0, n<2, s=a,b, c,null"
    assert list(require(FRAME, {"b": conditions_on("b", (True, None), "where")})["row"]) == [0, 1]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("n", "--where=n: is not a condition; write for example --where 'model.nodes>=1024'"),
        ("b=maybe", "--where=b=maybe: 'maybe' is no value of b; that column holds boolean"),
        ("n=one", "--where=n=one: 'one' is no value of n; that column holds Int64"),
        ("n=1*", "--where=n=1*: '1*' is no value of n; that column holds Int64"),
        ("b>true", "compares with no number and no time; write for example 'b>=1024', or ask = or !="),
        ("b>1", "'1' is no value of b; that column holds boolean"),
        ("s>a", "--where=s>a: compares with no number and no time"),
        ("n>2026-01-01", "'2026-01-01' is no value of n"),
        ("t=soon", "'soon' is no value of t"),
        ("rows=1", "these runs have no column rows; did you mean row?"),
    ],
)
def test_what_cannot_be_asked_is_said(condition: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(FRAME, [condition])
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"^--a="):
        select(FRAME, [condition], "--a")
