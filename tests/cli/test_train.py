"""The command line: help, and what wrong input gets."""

import re
import subprocess
import sys
from pathlib import Path

from paradnn.cli.help import known_keys
from tests.conftest import ROOT, Store, run


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
