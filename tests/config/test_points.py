"""What a point may be, in the words of a command line: a line for the first thing that is wrong,
and identities.
"""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from paradnn.config.groups import register_options
from paradnn.config.identity import as_params, digest, point_id, point_request, protocol_id
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure, Point, step_costs
from paradnn.config.price import load_prices
from paradnn.config.reading import read_point
from paradnn.config.settings import read_settings
from paradnn.config.space import plain
from paradnn.core.errors import ConfigError
from paradnn.core.schema import memory_bytes
from paradnn.core.workload import WORKLOADS
from paradnn.session.record import run_name
from paradnn.workloads.channel import bus_factor, transfer_metrics
from paradnn.workloads.generate import Generate
from paradnn.workloads.serve import Server

GROUPS = {"model", "data", "framework", "optimizer", "platform", "software"}
CHANNEL = "model=channel batch_size=1 mode=inference"
GPT = "model=gpt model.sequence_length=100 batch_size=4 mode=generate generate.prompt=60 generate.tokens=40"
DIGITS = "model=fc model.layers=2 model.nodes=32 model.input_size=64 model.output_size=10"
LEARN = f"{DIGITS} batch_size=64 task=learn data=digits measure.processes=1"
SERVER = "model=fc mode=inference scenario=server measure.timeout=1800"


def point(words: str) -> Point:
    """A point of `key=value` words; the choice of a group, such as model=fc, takes back what was
    said of it before.
    """
    config: dict[str, Any] = {}
    for word in shlex.split(words):
        key, _, text = word.partition("=")
        value = yaml.safe_load(text)
        group, *inner = (f"{key}.name" if key in GROUPS else key).split(".", 1)
        if inner:
            config[group] = ({} if key in GROUPS else config.get(group, {})) | {inner[0]: value}
        else:
            config[group] = value
    return read_point(config)


REFUSED = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
ROWS = [(base, words, message) for base, rows in REFUSED.items() for words, message in rows.items()]


@pytest.mark.parametrize(("base", "words", "message"), ROWS, ids=[row[1] for row in ROWS])
def test_what_cannot_be_is_one_line(base: str, words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        point(f"{base} {words}")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="speed=3: no such key"):
        read_settings({"speed": 3})
    for price in ("0", "-1", "nan", "inf", "cheap"):
        with pytest.raises(ConfigError, match="is not a positive price; write for example"):
            read_settings({"price": {"per_hour": {"V100": price}}})
        (table := tmp_path / "prices.yaml").write_text(f"per_hour: {{V100: '{price}'}}")
        with pytest.raises(
            ConfigError, match=f"^price={table}: .* is not a positive price; write for example"
        ):
            load_prices(str(table), "price")


TABLES = yaml.safe_load(Path(__file__).with_name("points.yaml").read_text())


def meant(words: str) -> str:
    return words.format(CHANNEL=CHANNEL, GPT=GPT, DIGITS=DIGITS, LEARN=LEARN, SERVER=SERVER)


@pytest.mark.parametrize(("words", "identity"), TABLES["identities"].items())
def test_points_are_those_of_before(words: str, identity: str) -> None:
    assert (
        point_id(point(f"{meant(words)} measure.min_seconds=1.0 measure.block_seconds=0.1"))
        == identity
    )
    assert not {"generate", "learn"} & set(point_request(point(meant(words))))


@pytest.mark.parametrize(("words", "more"), TABLES["same"])
def test_what_changes_nothing_makes_no_other_point(words: str, more: str) -> None:
    assert point_id(point(meant(words))) == point_id(point(f"{meant(words)} {more}"))


@pytest.mark.parametrize(("words", "others"), TABLES["others"].items())
def test_every_key_makes_another_point(words: str, others: list[str]) -> None:
    found = [point(meant(words)), *(point(f"{meant(words)} {more}") for more in others)]
    assert len({point_id(one) for one in found}) == len(found)
    if words == "{SERVER}":
        known = {more.partition("=")[0] for more in [*others, "server.batch=8"]} - {"scenario"}
        assert known == {f"server.{entry.name}" for entry in dataclasses.fields(Server)}, (
            "none is forgotten"
        )


def test_configurations_have_the_defaults_of_the_keys() -> None:
    scenarios = {name: type(work) for name, work in WORKLOADS.items() if work.key == "scenario"}
    files = {
        path.stem: yaml.safe_load(path.read_text()) for path in (CONFIG / "scenario").glob("*.yaml")
    }
    assert set(files) == {"closed", *scenarios}
    for name, load in scenarios.items():
        assert files[name]["scenario"] == name
        assert files[name][name] == {
            entry.name: entry.default for entry in dataclasses.fields(load)
        }
    assert yaml.safe_load((CONFIG / "config.yaml").read_text())["generate"] == dataclasses.asdict(
        Generate()
    )


@pytest.mark.parametrize(("words", "key", "value", "name"), TABLES["names"])
def test_a_run_names_what_was_asked_for(words: str, key: str, value: str, name: str) -> None:
    found = point(meant(words))
    assert as_params(point_request(found))[key] == value
    assert name in run_name(found)
    assert run_name(found).endswith(name) or name.endswith(" ")


def test_a_path_is_the_same_from_every_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert point("model=residual data=images data.path=set").data.path == str(tmp_path / "set")  # type: ignore[union-attr]


def test_a_transport_of_a_framework_brings_it() -> None:
    assert point(f"{CHANNEL} model.transport=gloo").framework.name == "torch"
    assert point(f"{CHANNEL} framework=torch model.transport=tcp").framework.name == "torch"
    assert point(f"{CHANNEL} model.transport=tcp").model.size == "tcp latency 1024 B"
    assert not point(f"{CHANNEL} measure.profile=true").measure.profile, "as measure=quick asks"


def test_messages_cost_bytes_and_no_work_and_their_metrics_follow_from_the_step_time() -> None:
    """By hand: a step of 2 ms, between 1.6 and 2.5."""
    costs = step_costs(point(f"{CHANNEL} model.bytes=12345"))
    assert (costs.flops_per_step, costs.parameters, costs.memory_lower_bound_bytes) == (0, 0, 12345)
    times = {"step_time_ms": 2.0, "step_time_low_ms": 1.6, "step_time_high_ms": 2.5}
    latency = transfer_metrics(point(f"{CHANNEL} model.bytes=1000").model, times)
    assert (latency["round_trip_us"], latency["transfer_us"], latency["transfer_high_us"]) == (
        2000,
        1000,
        1250,
    )
    assert latency["sent_bytes_per_second"] == pytest.approx(1e6)
    of_window = point(f"{CHANNEL} model.pattern=bandwidth model.bytes=1000 model.window=50")
    window = transfer_metrics(of_window.model, times)
    assert window["messages_per_second"] == pytest.approx(25_000)
    assert (window["messages_per_second_low"], window["messages_per_second_high"]) == pytest.approx(
        (20_000, 31_250)
    )
    four = point(
        f"{CHANNEL} model.transport=gloo model.pattern=all_reduce model.bytes=4000 model.processes=4"
    )
    assert transfer_metrics(four.model, {"step_time_ms": 2.0}) == pytest.approx(
        {
            "transfer_us": 2000,
            "messages_per_second": 500,
            "sent_bytes_per_second": 2e6,
            "bus_bytes_per_second": 3e6,
        }
    )
    assert bus_factor("broadcast", 4) == 1.0


def test_a_quick_measurement_of_a_scenario_is_short() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        register_options()
        for words, seconds in (
            (["measure=quick"], 15),
            (["measure=quick", "server.min_seconds=40"], 40),
            ([], 600),
        ):
            config = plain(compose("config", ["scenario=server", "mode=inference", *words]))
            assert read_point(config).workload.min_seconds == seconds


def test_a_protocol_is_that_of_before_unless_it_stops_at_an_interval() -> None:
    usual = Measure()
    keys = ("min_seconds", "min_blocks", "max_seconds", "block_seconds", "warmup_seconds")
    assert protocol_id(usual) == digest({key: getattr(usual, key) for key in keys})
    assert protocol_id(dataclasses.replace(usual, relative_interval=0.02)) != protocol_id(usual)
    assert protocol_id(dataclasses.replace(usual, reference=True)) == protocol_id(usual)


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GiB", 8 * 2**30), ("500 MB", 500_000_000), ("1.5kib", 1536), (1000, 1000), ("auto", None)],
)
def test_memory_sizes(text: str | int, count: int | None) -> None:
    assert memory_bytes(text, "key") == count
