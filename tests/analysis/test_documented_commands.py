"""The documented commands about upgrades and machines run without changes."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.atlas.ask import main as ask
from analysis.cli import main as analyse
from analysis.published.source import PublishedRun, load_shipped, log_published
from tests.analysis.published import select_runs
from tests.conftest import ROOT

#: Largest number of published runs per device and model in the test store.
_RUNS_PER_KIND = 8


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each command in the shell blocks of a page in docs/."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    """Return the URI of a store with a few published runs of each kind that the page uses."""
    folder = tmp_path_factory.mktemp("published")
    uri = blank_store(folder / "mlflow.db")
    counts: dict[tuple[str, ...], int] = {}

    def is_wanted(run: PublishedRun) -> bool:
        params = run.params
        kind = (run.tags["device"], params["model.name"])
        is_v100 = kind[0] == "NVIDIA V100" and params["precision"] == "float16"
        is_kernel = kind[1] == "conv2d" or params.get("model.cell") == "lstm"
        is_traced = kind[0] == "TPU v2" and run.metrics.get("trace_captures", 0) >= 1
        is_large = float(params.get("model.nodes", 0)) >= 1024
        if not ((is_v100 and is_kernel) or (is_traced and is_large)):
            return False
        counts[kind] = counts.get(kind, 0) + 1
        return counts[kind] <= _RUNS_PER_KIND

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARADNN_ARTIFACTS", str(folder / "artifacts"))
        for name in ("deepbench", "archive"):
            log_published(select_runs(load_shipped(name), is_wanted), uri)
    assert len(counts) == 3
    return uri


def test_commands_about_upgrades_work(
    published: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", published)
    found = [words[3:] for words in commands("how-to/whatif.md") if "import-" not in words[3]]

    assert len(found) >= 10

    for words in found:
        assert analyse(words) == 0, shlex.join(words)
        assert "95% CI" in capsys.readouterr().out, shlex.join(words)

    figures = [words[words.index("--figure") + 1] for words in found if "--figure" in words]

    assert figures
    assert all((tmp_path / name).stat().st_size > 1000 for name in figures)


def test_commands_about_machines_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = commands("how-to/machines.md")

    assert len(found) >= 5

    for words in found:
        assert words[:2] == ["paradnn", "ask"]
        assert ask(words[2:]) == 0, shlex.join(words)
        assert "95% interval" in capsys.readouterr().out, shlex.join(words)

    assert (tmp_path / "machines.png").stat().st_size > 1000
