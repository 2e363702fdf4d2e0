"""The command line: help, and what wrong input gets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from paradnn import train
from paradnn.cli.help import known_keys
from tests.conftest import ROOT, Store, environment, run


def test_help_explains_every_key_and_group() -> None:
    text = run(["paradnn.train", "--help"]).stdout
    hidden = {"sweep.plan", "sweep.grids"}
    names = [key for key in known_keys() if not key.endswith(".name") and key not in hidden]
    for key in names:
        if any(other.startswith(f"{key}.") for other in names):
            continue
        if key in {path.name for path in (ROOT / "conf").iterdir()}:
            continue
        assert re.search(rf"^\s+{re.escape(key)}=", text, re.M), key
    for folder in (ROOT / "conf").iterdir():
        if folder.is_dir() and folder.name != "hydra":
            for option in folder.glob("*.yaml"):
                assert option.stem in text
    assert "Traceback" not in text


def test_every_configuration_says_how_to_run_it() -> None:
    for path in (ROOT / "conf").rglob("*.yaml"):
        first = [line for line in path.read_text().splitlines()[:2] if "python -m paradnn." in line]
        assert first, path
        assert first[0].startswith("# ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nodes=64", "nodes=64: no such key; did you mean model.nodes?"),
        ("resume=again", "resume=again: no such choice; choose one of true, false, retry"),
        ("model.nodez=1", "model.nodez=1: no such key; did you mean model.nodes?"),
        ("+model.x=3", "model.x=3: no such key; keys of model: name, layers"),
        ("model.nodes=0", "model.nodes=0: must be at least 1; choose a larger value"),
        ("precision=nothing", "precision=nothing: no such choice; choose one of float32, bfloat16, float16"),
        ("model=foo", "model=foo: no such option; choose one of "),
        ("model.nodes=1,2", "model.nodes=1,2: several values are a sweep; add -m"),
        ("model.nodes=[1", "model.nodes"),
        ("experiment=quick", "experiment=quick: describes a sweep; add -m"),
        ("hydra/job_logging=nope", "hydra/job_logging=nope: no such option; did you mean none? choose one of default"),
        ("model=null", "Config group override must be a string or a list"),
        ("software.python=/nope", "software.python=/nope: does not run"),
        ("tracking.uri=sqlite:////proc/x/y.db", "tracking.uri=sqlite:////proc/x/y.db: /proc/x cannot be made"),
        ("-m model=fc,rnn model.nodes=8", "model.nodes=8: no such key; keys of model=rnn are name, layers"),
        ("experiment=paper_gan", "experiment=paper_gan: no such option; did you mean paper_cnn or paper_rnn? choose"),
        ("-m model=fc,lstn", "model=lstn: no such option; did you mean lstm? choose one of "),
        (
            "model=lstm model.nodes=64",
            "model.nodes=64: no key of model=lstm, whose keys are model.layers, model.embedding_size, "
            "model.sequence_length, model.vocab_size; it belongs to model=fc",
        ),
        ("data.path=/tmp", "data.path=/tmp: no key of data=synthetic, which has none; it belongs to data=cifar10, dat"),
        ("server.rate=5", "server.rate=5: is a key of scenario=server; add scenario=server"),
        ("scenario=server", "mode=train: scenario=server is for inference; set mode=inference"),
        (
            "scenario=server mode=inference batch_size=4 server.batch=8",
            "server.batch=8: is what batch_size=4 says; leave it out, and set batch_size=8",
        ),
        (
            "-m mode=inference scenario=single_stream,offline offline.min_seconds=3",
            "offline.min_seconds=3: is a key of scenario=offline alone; give each scenario a command of its own",
        ),
        ("model=gemm task=learn", "task=learn: model=gemm trains nothing; leave it out, or choose another model"),
        ("modle=fc", "modle=fc: no such key; did you mean model? "),
        ("--batch_size 64", "--batch_size: keys are written without dashes: batch_size=64"),
        ("--multirum batch_size=64,128", "--multirum: no such option; did you mean --multirun? "),
        ("--cfg jobs", "--cfg=jobs: no such choice; choose one of job, hydra, all"),
        ("batch_size=64, 128", "batch_size=64, 128: values stand without blanks between them: batch_size=64,128"),
        ("batch_size=64,", "batch_size=64,: values stand without blanks between them: batch_size=64"),
        ("lstm", "lstm: is no override; write key=value, such as batch_size=64"),
        ("sweep.plan=zzz", "sweep.plan=zzz: is internal; leave it out"),
        ("hydra/launcher=slurm", "hydra/launcher=slurm: nothing is launched; start the same command on every host"),
        (
            "measure.processes=8 measure.max_processes=4 measure.relative_interval=0.02",
            "measure.max_processes=4: is less than measure.processes=8; raise it",
        ),
        ("-m experiment=quick,paper_fc", "experiment=quick,paper_fc: one experiment at a time"),
        ("-m sweep.points=9", "sweep.points=9: ends an adaptive sweep, and this one measures all; add sweep.design"),
        ("-m sweep.error=0.1", "sweep.error=0.1: ends an adaptive sweep"),
        ("-m sweep.design=adaptive sweep.error=-1", "sweep.error=-1.0: must be at least 0.001"),
        ("-m sweep.design=adaptive sweep.points=0", "sweep.points=0: must be at least 1"),
        ("-m sweep.design=adaptive sweep.minutes=soon", "sweep.minutes=soon: expects a finite number"),
        ("-m sweep.design=clever", "sweep.design=clever: no such choice; choose one of grid, adaptive"),
        ("sweep.design=adaptive", "sweep.design=adaptive: describes a sweep; add -m"),
        ("-m batch_size=largest,64", "batch_size=largest,64: is a search and a number; give one of them"),
        ("-m batch_size=largest sweep.design=adaptive", "batch_size=largest: is no axis of an adaptive sweep"),
        ("batch_size=large", "batch_size=large: expects a whole number"),
        ("batch_size=largest largest.step_ms=-1", "largest.step_ms=-1.0: must be at least"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment(Store(tmp_path)).items():
        monkeypatch.setenv(name, value)
    for name in ("argv", "orig_argv"):
        monkeypatch.setattr(sys, name, ["paradnn.train", *arguments.split()])
    assert train.main() == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    if message != "model.nodes":  # the grammar's own words for a bracket that is left open
        assert lines[0].startswith(f"error: {message}")
    assert not (tmp_path / "mlflow.db").exists()


def test_an_interpreter_without_the_framework_is_named(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    done = run(["paradnn.train", f"software.python={python}"], Store(tmp_path))
    assert done.returncode == 2
    assert (
        f"framework.name=tensorflow: tensorflow is not installed in {python}; run {python} -m pip install"
        in done.stderr
    )
    assert not (tmp_path / "mlflow.db").exists()


def test_a_closed_address_is_no_store(store: Store) -> None:
    given = "tracking.uri=http://user:secret@127.0.0.1:9"
    done = run(["paradnn.train", given], store, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert done.returncode == 2
    assert done.stderr.startswith("error: tracking.uri=http://***@127.0.0.1:9: ")
    assert "secret" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
