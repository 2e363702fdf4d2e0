import re
from pathlib import Path

import pytest

from analysis.claims.load import load_claims, parse_claims
from paradnn.core.errors import ConfigError, DataError

GOOD = "- id: 1\n  says: it\n  checks:\n    - {kind: compare, a: {x: 1}, b: {x: 2}, at_least: 0.5}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "claims.yaml line 1: is not YAML: "),
        ("a: 1", "claims.yaml: holds no list of claims; begin each with '- id: ...'"),
        ("- 3", "claims.yaml: claim 1=3: is no mapping; write its keys: id, says, checks"),
        (GOOD + GOOD, "claims.yaml: claim 1: id=1: is there twice; give each claim its own"),
        (GOOD.replace("says: it", "sais: it"), "claims.yaml: claim 1: sais=it: no such key; did you mean says?"),
        (GOOD.replace("  says: it\n", ""), "claims.yaml: claim 1: says=(none): is missing; write says: ..."),
        (GOOD.replace("says: it", "says: 3"), "claims.yaml: claim 1: says=3: expects a line of text; quote it"),
        (GOOD.replace("compare", "contrast"), "claim 1: check 1: kind=contrast: no such kind; choose of trend, "),
        (GOOD.replace("at_least", "atleast"), "claim 1: check 1: atleast=0.5: no such key; did you mean at_least?"),
        (GOOD.replace(", at_least: 0.5", ""), "at_least or at_most or between=(none): is missing in a compare"),
        (GOOD.replace("at_least: 0.5", "at_least: half"), "check 1: at_least=half: expects a number"),
        (GOOD.replace("at_least: 0.5", "at_least: 0.5, at_most: 1"), "at_most=1: stands beside at_least"),
        (GOOD.replace("at_least: 0.5", "between: [2, 1]"), "between=[2, 1]: has its ends the wrong way round"),
        (GOOD.replace("at_least: 0.5", "between: 2"), "between=2: expects two numbers; write between: [2.0, 2.6]"),
        (GOOD.replace("b: {x: 2}, ", ""), "check 1: b=(none): is missing in a compare; write b: ..."),
        (GOOD.replace("{x: 2}", "gpu"), "check 1: b=gpu: is no mapping; write b: {platform.name: cpu}"),
        (GOOD.replace("{x: 2}", "{}"), "check 1: b={}: is empty; write a value"),
        (GOOD.replace("{x: 2}", "{x: '>many'}"), "check 1: b=x>many: compares with no number and no time; write"),
        (GOOD.replace("{x: 2}", "{x: {}}"), "check 1: b: x={}: is no value"),
        (GOOD.replace("{x: 2}", "{x: []}"), "check 1: b: x=[]: is no value"),
        (GOOD.replace("at_least: 0.5", "at_least: 1, margin: -1"), "margin=-1.0: must be above 0"),
        ("- {id: 1, says: it, checks: [{kind: ratio, at_least: 1}]}", "a, b or successive=neither: a ratio has"),
        (
            "- {id: 1, says: it, checks: [{kind: threshold, metric: m, at_least: 1, quantile: 90}]}",
            "quantile=90.0: must be above 0 and below 1",
        ),
        (
            "- {id: 1, says: it, checks: [{kind: trend, metric: m, of: x, direction: up}]}",
            "direction=up: no such choice; choose one of rises, falls",
        ),
        ("- {id: 1, says: it, checks: {kind: trend}}", "checks={'kind': 'trend'}: is no list; begin each"),
        ("- {id: 1, says: it, checks: [3]}", "check 1=3: is no mapping; write its keys: kind"),
        (
            "- {id: 1, says: it, checks: [{kind: ratio, a: {x: 1}, b: {x: 2}, paired: maybe, at_least: 1}]}",
            "paired=maybe: expects true or false",
        ),
        (
            GOOD.replace("compare", "ratio").replace("at_least", "paired: false, operations: {type: Add}, at_least"),
            "paired=false: operations are always paired",
        ),
    ],
)
def test_a_wrong_entry_is_one_line(content: str, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as caught:
        parse_claims(content, "claims.yaml")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.yaml: No such file or directory; name a YAML file of claims"):
        load_claims(tmp_path / "none.yaml")
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_claims(tmp_path / "mine.yaml")[0].says == "it"


def test_ours_are_found_by_name_and_yours_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {claim.id for claim in load_claims(Path("engines.yaml"))} >= {"int8-fc", "vision", "language"}
    (tmp_path / "engines.yaml").write_text(GOOD)
    assert load_claims(Path("engines.yaml"))[0].says == "it"
