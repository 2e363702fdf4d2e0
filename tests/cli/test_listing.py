"""Lists of names, filtered by a word, and completions of command lines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paradnn import completion
from paradnn import listing as command
from paradnn.cli.commands import COMMANDS
from paradnn.cli.help import known_keys
from paradnn.families import FAMILIES
from paradnn.store.metrics import METRICS
from tests.conftest import ROOT


def run_list(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert command.main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        pytest.param("metrics", set(METRICS), id="metrics"),
        pytest.param(
            "presets",
            {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")},
            id="presets",
        ),
        pytest.param("software", {"tensorflow-2.18"}, id="software"),
    ],
)
def test_a_list_contains_all_names(
    capsys: pytest.CaptureFixture[str], kind: str, names: set[str]
) -> None:
    listed = run_list(capsys, kind)

    assert all(name in listed for name in names)


def test_the_list_of_models_has_a_line_per_family(capsys: pytest.CaptureFixture[str]) -> None:
    listed = "\n" + run_list(capsys, "models")

    assert all(f"\n{name} " in listed for name in FAMILIES)


def test_a_word_filters_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_list(capsys, "models", "GPT-2").split()[0] == "gpt2"
    assert "model.nodes=" in run_list(capsys, "models", "fully connected")

    keys = run_list(capsys, "keys", "threads")
    assert "platform.threads=null" in keys
    assert "batch_size=" not in keys
    assert "bytes" in run_list(capsys, "metrics", "peak_memory")


def test_keys_with_the_same_name_are_listed_with_their_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = " ".join(run_list(capsys, "keys", "vocab_size").split()).split("model.vocab_size=")

    models = [line.rpartition("(model=")[2].rstrip(") ") for line in lines[1:]]

    assert len(models) > 1
    assert len(set(models)) == len(models)


#: Expected completions of a command line.
PROPOSED = {
    "paradnn tr": ["train"],
    "paradnn train model=ls": ["model=lstm"],
    "paradnn train -m precision=float32,b": ["precision=float32,bfloat16"],
    "paradnn train resume=": ["resume=false", "resume=retry", "resume=true"],
    "paradnn train tracking=o": ["tracking=offline"],
    "paradnn plan -m experiment=paper_": [
        "experiment=paper_cnn",
        "experiment=paper_fc",
        "experiment=paper_rnn",
    ],
    "paradnn train model=lstm model.v": ["model.vocab_size="],
    "paradnn train model.n": ["model.nodes="],
    "paradnn train data=images data.pa": ["data.path="],
    "paradnn list pre": ["presets"],
    "paradnn analysis heatm": ["heatmap"],
    "paradnn analysis heatmap --me": ["--metric"],
    "paradnn analysis heatmap --family fc,ls": ["fc,lstm"],
    "paradnn analysis heatmap --metric examples_per_second_l": ["examples_per_second_low"],
    "paradnn analysis sensitivity --log-scale b": ["both"],
    "paradnn analysis nothing --x": [],
    "paradnn sync --re": ["--repeats"],
    "paradnn stacks re": ["remove"],
    "paradnn completion z": ["zsh"],
    "paradnn ask model=ls": ["model=lstm"],
    "paradnn compare --min": ["--minutes"],
    "paradnn compare compile=gr": ["compile=graph"],
    "paradnn best --mar": ["--margin"],
    "paradnn best --for l": ["latency"],
    "paradnn best model=ls": ["model=lstm"],
    "paradnn ask --ver": ["--version-of", "--versions"],
    "paradnn zzz": [],
    "paradnn list metrics peak_mem": [name for name in METRICS if name.startswith("peak_mem")],
}


@pytest.mark.parametrize(("line", "proposed"), PROPOSED.items())
def test_a_command_line_is_completed(line: str, proposed: list[str]) -> None:
    assert completion.proposals(line) == proposed


def test_all_general_keys_are_proposed() -> None:
    found = set(completion.proposals("paradnn train "))
    general = {
        key
        for key in known_keys()
        if "." not in key and key not in ("model", "sweep", "largest", "tracking")
    }

    assert {f"{key}=" for key in general} <= found


def test_all_commands_are_proposed() -> None:
    assert completion.proposals("paradnn ") == sorted(COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_the_value_after_the_equals_sign(tmp_path: Path) -> None:
    """A real bash runs the script with the variables that readline sets."""
    (tmp_path / "paradnn").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paradnn "$@"\n')
    (tmp_path / "paradnn").chmod(0o755)
    lines = ["paradnn train model=ls", "paradnn train mode", "paradnn train -m precision=float32,b"]
    call = "COMP_LINE='{0}'; COMP_POINT=${{#COMP_LINE}}; _paradnn; printf '[%s]' \"${{COMPREPLY[@]}}\"; echo"
    script = "\n".join(['eval "$(paradnn completion bash)"', *map(call.format, lines)])
    environ = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""

    first, second, third = done.stdout.splitlines()
    assert first == "[lstm ]"
    assert "[mode=]" in second
    assert "[model=]" in second
    assert third == "[float32,bfloat16 ]"
