"""Lists of names that contain a word, and completions that a real shell proposes."""

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


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert command.main(words) == 0
    return capsys.readouterr().out


def test_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(f"\n{name} " in "\n" + listed(capsys, "models") for name in FAMILIES)
    assert all(name in listed(capsys, "metrics") for name in METRICS)
    presets = {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    assert all(name in listed(capsys, "presets") for name in presets)
    assert "tensorflow-2.18" in listed(capsys, "software")


def test_a_word_filters_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "models", "GPT-2").split()[0] == "gpt2"
    assert "model.nodes=" in listed(capsys, "models", "fully connected")
    keys = listed(capsys, "keys", "threads")
    assert "platform.threads=null" in keys
    assert "batch_size=" not in keys
    assert "bytes" in listed(capsys, "metrics", "peak_memory")


def test_keys_of_the_same_name_state_their_model(capsys: pytest.CaptureFixture[str]) -> None:
    lines = " ".join(listed(capsys, "keys", "vocab_size").split()).split("model.vocab_size=")

    models = [line.rpartition("(model=")[2].rstrip(") ") for line in lines[1:]]

    assert len(models) > 1
    assert len(set(models)) == len(models)


#: The completions of a line.
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
def test_completions(line: str, proposed: list[str]) -> None:
    assert completion.proposals(line) == proposed


def test_every_key_is_proposed_for_its_model() -> None:
    found = set(completion.proposals("paradnn train "))
    general = {
        key
        for key in known_keys()
        if "." not in key and key not in ("model", "sweep", "largest", "tracking")
    }
    assert {f"{key}=" for key in general} <= found
    assert completion.proposals("paradnn ") == sorted(COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_the_value_after_the_sign(tmp_path: Path) -> None:
    """Run the script in a real bash, with the variables that readline sets."""
    (tmp_path / "paradnn").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paradnn "$@"\n')
    (tmp_path / "paradnn").chmod(0o755)
    lines = ["paradnn train model=ls", "paradnn train mode", "paradnn train -m precision=float32,b"]
    ask = "COMP_LINE='{0}'; COMP_POINT=${{#COMP_LINE}}; _paradnn; printf '[%s]' \"${{COMPREPLY[@]}}\"; echo"
    script = "\n".join(['eval "$(paradnn completion bash)"', *map(ask.format, lines)])
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
