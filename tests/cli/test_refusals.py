"""Command lines that every command rejects.

Each gives one line with the remedy and exit code 2, and creates no store. A feature that only some
points lack is an outcome of those points.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from paradnn.config.data import ImageFiles
from paradnn.config.point import Platform, Point
from paradnn.core.errors import ConfigError
from paradnn.families.fc import FullyConnected
from paradnn.session.environments import HOSTS, require_hosts, require_possible
from paradnn.worker.process_group import KEY
from paradnn.workloads.channel import CHANNEL, Communication
from tests.conftest import TINY, Store, run

WITHOUT_TPU = not any(Path("/dev").glob("accel*")) and not Path("/dev/vfio").exists()
TABLE = Path(__file__).with_name("refusals.yaml")
REFUSED = [
    (words.format(point=" ".join(TINY)), line)
    for words, line in yaml.safe_load(TABLE.read_text()).items()
]
REFUSED += [
    (f"plan plan.hosts={5000 * '9'}", "plan.hosts=99"),
    *(
        (f"{command} model.nodes={3000 * '['}{3000 * ']'}", f"model.nodes={100 * '['}")
        for command in ("train", "plan -m", "compare model.nodes=1")
    ),
]
TPU = "platform=tpu: this machine has no TPU"
REFUSED += [
    ("train -m platform=tpu batch_size=4,8", TPU),
    ("ceilings platform=tpu", TPU),
] * WITHOUT_TPU


@pytest.mark.parametrize(("words", "line"), REFUSED, ids=[f"{words[:60]}" for words, _ in REFUSED])
def test_what_no_command_takes_is_one_line(words: str, line: str, tmp_path: Path) -> None:
    done = run(
        ["paradnn.__main__", *shlex.split(words)],
        Store(tmp_path),
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    assert not list(tmp_path.iterdir()), "no store was made"


NO_TPU = pytest.mark.skipif(not WITHOUT_TPU, reason="may have a TPU")
HERE = Point(FullyConnected())
NOWHERE = Point(FullyConnected(), platform=Platform("tpu"))


@pytest.mark.parametrize(
    ("hosts", "key", "message"), yaml.safe_load(TABLE.with_name("hosts.yaml").read_text())
)
def test_hosts_that_were_given_wrongly_are_told_first(hosts: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_hosts([4], {HOSTS: hosts, KEY: key})


def test_where_some_points_have_their_hosts_the_others_are_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(HOSTS, raising=False)
    two = Point(Communication(), CHANNEL, batch_size=1, hosts=2)
    require_possible([HERE, two])
    with pytest.raises(ConfigError, match="hosts=2: this session has 1"):
        require_possible([two])


@NO_TPU
def test_where_some_points_can_be_measured_the_others_are_outcomes(tmp_path: Path) -> None:
    require_possible([HERE, NOWHERE])
    with pytest.raises(ConfigError):
        require_possible([NOWHERE])
    require_possible([Point(FullyConnected(), data=ImageFiles(path=str(tmp_path)))])


@NO_TPU
def test_a_framework_that_was_imported_makes_no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ML_PLATFORM", "Tensorflow")  # as importing TensorFlow does
    with pytest.raises(ConfigError, match="this machine has no TPU"):
        require_possible([NOWHERE])
    monkeypatch.setenv("TPU_WORKER_ID", "0")  # as Cloud TPU machines do
    require_possible([NOWHERE])
