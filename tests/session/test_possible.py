"""A typing mistake is told before anything is measured or recorded; what only some points lack is an outcome."""

import re
import sys
from pathlib import Path

import pytest

from paradnn.config.data import ImageFiles
from paradnn.config.point import Platform, Point
from paradnn.core.errors import ConfigError
from paradnn.families.fc import FullyConnected
from paradnn.session.environments import HOSTS, require_hosts, require_possible
from paradnn.worker.process_group import KEY
from paradnn.workloads.channel import CHANNEL, Communication

HERE, NOWHERE = Point(FullyConnected()), Point(FullyConnected(), platform=Platform("tpu"))

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or any(Path("/dev").glob("accel*")) or Path("/dev/vfio").exists(), reason="may have a TPU"
)


@pytest.mark.parametrize(
    ("hosts", "key", "message"),
    [
        ("10.0.0.2:5000", "", "PARADNN_HOSTS_KEY='': PARADNN_HOSTS is set without it; give it the value"),
        ("node2", "x", "PARADNN_HOSTS=node2: 'node2' is no host:port; write what each server says"),
        ("node2:5000,", "x", "PARADNN_HOSTS=node2:5000,: '' is no host:port; write"),
        ("node2:70000", "x", "PARADNN_HOSTS=node2:70000: 'node2:70000' is no host:port; write"),
        ("[fe80::2%eth0]:5000", "x", "PARADNN_HOSTS=[fe80::2%eth0]:5000: '[fe80::2%eth0]:5000' is no host:port; write"),
        ("::1:5000", "x", "PARADNN_HOSTS=::1:5000: '::1:5000' is no host:port; write"),
        ("node2:5000,[2001:db8::3]:65535", "x", "hosts=4: this session has 3; "),
    ],
)
def test_hosts_that_were_given_wrongly_are_told_first(hosts: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_hosts([4], {HOSTS: hosts, KEY: key})


def test_where_some_points_have_their_hosts_the_others_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS, raising=False)
    two = Point(Communication(), CHANNEL, batch_size=1, hosts=2)
    require_possible([HERE, two])
    with pytest.raises(ConfigError, match="hosts=2: this session has 1"):
        require_possible([two])


def test_where_some_points_can_be_measured_the_others_are_outcomes(tmp_path: Path) -> None:
    require_possible([HERE, NOWHERE])
    with pytest.raises(ConfigError):
        require_possible([NOWHERE])
    require_possible([Point(FullyConnected(), data=ImageFiles(path=str(tmp_path)))])


def test_a_framework_that_was_imported_makes_no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ML_PLATFORM", "Tensorflow")  # as importing TensorFlow does
    with pytest.raises(ConfigError, match="this machine has no TPU"):
        require_possible([NOWHERE])
    monkeypatch.setenv("TPU_WORKER_ID", "0")  # as Cloud TPU machines do
    require_possible([NOWHERE])
