"""What is concluded from files of other harnesses: two of each kind as they write them, and files
that are broken.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.audit import READERS, AuditFinding, AuditOptions, audit, conclusions, read_results
from analysis.options import Selection
from paradnn.core.errors import ConfigError, DataError

TIMES = [0.101, 0.099, 0.1, 0.102, 0.098]
#: Kind: two files as it writes them, and a note on one of them.
EXAMPLES = yaml.safe_load(Path(__file__).with_name("harnesses.yaml").read_text())


def hyperfine(*commands: str, times: list[float] = TIMES) -> dict[str, Any]:
    entry = {
        "mean": 0.1,
        "stddev": 0.001,
        "median": 0.1,
        "times": times,
        "exit_codes": [0] * len(times),
    }
    return {"results": [{"command": command, **entry} for command in commands]}


def written(folder: Path, name: str, document: Any) -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("kind", [*READERS])
def test_two_files_of_a_kind_are_two_sessions(tmp_path: Path, kind: str) -> None:
    first, second = (
        read_results(written(tmp_path, str(n), one))
        for n, one in enumerate(EXAMPLES[kind]["files"])
    )
    assert (first.kind, second.kind) == (kind, kind)
    found = list(conclusions([[first], [second]]))
    assert {EXAMPLES[kind].get("note", found[0].sentence)} <= {
        finding.sentence for finding in found
    }
    ratios = [finding for finding in found if not math.isnan(finding.ratio)]
    assert any(
        finding.ratio == pytest.approx(2.0) for finding in ratios
    )  # the second is half as good in each
    assert {finding.verdict for finding in ratios} == {"no verdict"}
    assert all(
        "one session each, no verdict; 3 or more a side" in finding.sentence for finding in ratios
    )


def sessions(folder: Path, name: str, medians: list[float]) -> list[Any]:
    documents = [hyperfine("a", times=[median * value for value in TIMES]) for median in medians]
    return [read_results(written(folder, f"{name}{n}", one)) for n, one in enumerate(documents)]


def only(findings: Any) -> AuditFinding:
    [finding] = [finding for finding in findings if not math.isnan(finding.ratio)]
    return finding


def test_three_sessions_a_side_carry_a_verdict(tmp_path: Path) -> None:
    found = only(
        conclusions(
            [sessions(tmp_path, "a", [1, 1.01, 0.99]), sessions(tmp_path, "b", [2, 2.02, 1.98])]
        )
    )
    assert (found.verdict, found.ratio) == ("faster", pytest.approx(2.0, rel=1e-3))
    assert found.low < 2 < found.high
    assert "if the sessions of both sides alternated in time" in found.sentence


def test_equal_sides_differ_in_one_of_twenty_at_most(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    wrong = 0
    for draw in range(100):
        folder = tmp_path / str(draw)
        folder.mkdir()
        sides = [sessions(folder, side, list(np.exp(random.normal(0, 0.05, 4)))) for side in "ab"]
        wrong += only(conclusions(sides)).verdict != "undecided"
    assert wrong <= 11  # of 100 at 5%: more in one of a hundred


def test_commands_of_one_file_were_measured_one_after_the_other(tmp_path: Path) -> None:
    results = read_results(written(tmp_path, "f", hyperfine("a", "b")))
    found = only(conclusions([[results]]))
    assert "a drift of the machine looks the same" in found.sentence
    assert found.sentence.endswith("paradnn compare 'a' 'b' runs both by turns.")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            [0.1 + 0.001 * n for n in range(20)],
            "Not steady: the second half differs by +9.6% from the first.",
        ),
        ([0.1, 0.101, 0.099] * 6 + [0.9], "Its slowest run took 9 times the median"),
        ([0.1], "a single number; how it would repeat is not known"),
    ],
)
def test_what_a_session_shows_of_itself(tmp_path: Path, times: list[float], words: str) -> None:
    [finding] = conclusions([[read_results(written(tmp_path, "f", hyperfine("a", times=times)))]])
    assert words in finding.sentence


DEEP = "[" * 100_000
LARGE = '{"results": [{"command": "a", "times": {"a": 1}, "median": ' + "9" * 400 + "}]}"


@pytest.mark.parametrize("text", [*EXAMPLES["broken"], DEEP, LARGE])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"^\S+f[ (]"):
        read_results(written(tmp_path, "f", text))


def test_wrong_files_are_wrong_input(tmp_path: Path) -> None:
    name = str(written(tmp_path, "f", hyperfine("a")))
    with pytest.raises(ConfigError, match="is on both sides"):
        audit(AuditOptions(files=(name,), against=(name,)), Selection())
    with pytest.raises(DataError, match="cannot be read"):
        audit(AuditOptions(files=(str(tmp_path / "nowhere"),)), Selection())
    other = str(written(tmp_path, "g", hyperfine("b")))
    with pytest.raises(DataError, match="no benchmark is in both: a against b"):
        audit(AuditOptions(files=(name,), against=(other,)), Selection())


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, name, hyperfine("a\x1b[31m", "b"))) for name in ("f", "g")]
    audit(AuditOptions(files=tuple(files), json=str(tmp_path / "found.json")), Selection())
    out = capsys.readouterr().out
    assert f"{files[0]}: hyperfine, 2 series" in out
    assert "\x1b" not in out
    assert len(json.loads((tmp_path / "found.json").read_text())) == 6
