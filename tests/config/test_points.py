"""What a point may be, in the words of a command line: a line for the first thing that is wrong, and identities."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from paradnn.config.groups import store_options
from paradnn.config.identity import digest, point_id, protocol_id, request_of, texts
from paradnn.config.paths import CONFIG
from paradnn.config.point import Measure, Point, costs_of, read_point, read_settings
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
    """A point of `key=value` words; the choice of a group, such as model=fc, takes back what was said of it before."""
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


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="speed=3: no such key"):
        read_settings({"speed": 3})
    for price in ("0", "-1", "nan", "inf", "cheap"):
        with pytest.raises(ConfigError, match="is no price; write for example"):
            read_settings({"price": {"per_hour": {"V100": price}}})


#: Written down when there was no other key than these: stored points are the ones of today.
BEFORE = {
    "model=fc": "57f7f9f40bab5f25",
    "model=fc data=synthetic": "57f7f9f40bab5f25",
    "model=fc generate.prompt=64 generate.tokens=64": "57f7f9f40bab5f25",
    "model=fc platform.price_per_hour=3": "57f7f9f40bab5f25",
    "model=residual": "de4ed4255be4dcfe",
    "model=residual data=synthetic": "de4ed4255be4dcfe",
    "model=lstm": "d95fb7d27a4fc28e",
    "model=fc model.nodes=64": "5996aab90aa670df",
    "model=fc model.nodes=[64,64,64,64]": "5996aab90aa670df",
    "model=fc model.layers=1 model.nodes=8 batch_size=4": "403c55a03dcf42b8",
    DIGITS: "c7e7c4a3df9641cf",
    f"{DIGITS} task=step": "c7e7c4a3df9641cf",
}


@pytest.mark.parametrize(("words", "identity"), BEFORE.items())
def test_points_are_those_of_before(words: str, identity: str) -> None:
    assert point_id(point(f"{words} measure.min_seconds=1.0 measure.block_seconds=0.1")) == identity
    assert not {"generate", "learn"} & set(request_of(point(words)))


#: Words, and others that change nothing of the point.
SAME = [
    (CHANNEL, f"{CHANNEL} model.window=8 model.processes=5"),
    (CHANNEL, f"{CHANNEL} compile=xla"),
    (CHANNEL, f"{CHANNEL} hosts=1"),
    ("model=gemm batch_size=1 mode=inference", "model=gemm batch_size=1 mode=inference optimizer=adam"),
    ("model=fc mode=inference", "model=fc mode=inference scenario=closed"),
    (f"{SERVER} batch_size=8", f"{SERVER} batch_size=8 server.batch=8"),
    (LEARN, f"{LEARN} learn.schedule=constant learn.warmup_epochs=0"),
    ("model=residual model.blocks=3", "model=residual model.blocks=[3,3,3,3]"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_changes_nothing_makes_no_other_point(one: str, other: str) -> None:
    assert point_id(point(one)) == point_id(point(other))


_SERVED = "rate=50 latency_ms=1 percentile=90 confidence=0.9 min_seconds=1 min_queries=5 delay_ms=2 precision=0.1"
_READ = "threads=1 readers=2 shuffle=3 prefetch=4 cache=decoded path=/x augment=false examples=9 width=99 height=99"
#: Words of a point -> what makes another one of it each time.
OTHERS: dict[str, list[str]] = {
    CHANNEL: ["model.pattern=bandwidth", "model.pattern=bandwidth model.window=8", "model.port=5000", "hosts=2"],
    "model=gemm batch_size=1 mode=inference": ["model.transpose_a=true", "precision=bfloat16"],
    "model=fc": ["model.nodes=[64,64,64,32]", "model.nodes=64", "devices=2", "devices=4", "precision=bfloat16"],
    GPT: ["generate.prompt=50", "generate.tokens=39", "mode=inference generate.prompt=64 generate.tokens=64"],
    LEARN: ["learn.target=0.9", "seed=1", "learn.schedule=cosine"],
    SERVER: [f"server.{word}" for word in _SERVED.split()] + ["server.seed=1", "scenario=offline", "scenario=closed"],
    "model=residual data=images": [f"data.{word}" for word in _READ.split()],
}


@pytest.mark.parametrize("words", OTHERS)
def test_every_key_makes_another_point(words: str) -> None:
    found = [point(words), *(point(f"{words} {more}") for more in OTHERS[words])]
    assert len({point_id(one) for one in found}) == len(found)
    known = {word.partition("=")[0] for word in _SERVED.split()} | {"batch", "seed"}
    assert known == {entry.name for entry in dataclasses.fields(Server)}, "none is forgotten above"


def test_configurations_have_the_defaults_of_the_keys() -> None:
    scenarios = {name: type(work) for name, work in WORKLOADS.items() if work.key == "scenario"}
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (CONFIG / "scenario").glob("*.yaml")}
    assert set(files) == {"closed", *scenarios}
    for name, load in scenarios.items():
        assert files[name]["scenario"] == name
        assert files[name][name] == {entry.name: entry.default for entry in dataclasses.fields(load)}
    assert yaml.safe_load((CONFIG / "config.yaml").read_text())["generate"] == dataclasses.asdict(Generate())


@pytest.mark.parametrize(
    ("words", "params", "name"),
    [
        (f"{GPT}", {"generate.tokens": "40"}, "gpt 4x256 h4 t100 b4 float32 cpu generate 60+40"),
        (f"{LEARN} learn.target=0.9", {"learn.target": "0.9"}, "fc 2x32 "),
        (f"{SERVER} batch_size=4 server.rate=200", {"server.rate": "200.0", "server.batch": "4"}, "server 200/s"),
        (SERVER, {"scenario": "server"}, "server peak"),
        (f"{SERVER} server.rate=200 server.delay_ms=2", {"server.delay_ms": "2.0"}, "server 200/s delay 2 ms"),
        (f"{CHANNEL} hosts=2", {"hosts": "2"}, "2 hosts"),
        ("model=fc model.nodes=[64,64,64,32]", {}, "fc 64-64-64-32 "),
        ("model=fc framework=torch framework.compile=max-autotune", {}, "cpu max-autotune torch"),
    ],
)
def test_a_run_names_what_was_asked_for(words: str, params: dict[str, str], name: str) -> None:
    found = point(words)
    assert params.items() <= texts(request_of(found)).items()
    assert name in run_name(found)
    assert run_name(found).endswith(name) or name.endswith(" ")


def test_a_path_is_the_same_from_every_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert point("model=residual data=images data.path=set").data.path == str(tmp_path / "set")  # type: ignore[union-attr]


def test_a_transport_of_a_framework_brings_it() -> None:
    assert point(f"{CHANNEL} model.transport=gloo").framework.name == "torch"
    assert point(f"{CHANNEL} framework=torch model.transport=tcp").framework.name == "torch"
    assert point(f"{CHANNEL} model.transport=tcp").model.size == "tcp latency 1024 B"
    assert not point(f"{CHANNEL} measure.profile=true").measure.profile, "as measure=quick asks"


def test_messages_cost_bytes_and_no_work_and_their_metrics_follow_from_the_step_time() -> None:
    """By hand: a step of 2 ms, between 1.6 and 2.5."""
    costs = costs_of(point(f"{CHANNEL} model.bytes=12345"))
    assert (costs.flops_per_step, costs.parameters, costs.memory_lower_bound_bytes) == (0, 0, 12345)
    times = {"step_time_ms": 2.0, "step_time_low_ms": 1.6, "step_time_high_ms": 2.5}
    latency = transfer_metrics(point(f"{CHANNEL} model.bytes=1000").model, times)
    assert (latency["round_trip_us"], latency["transfer_us"], latency["transfer_high_us"]) == (2000, 1000, 1250)
    assert latency["sent_bytes_per_second"] == pytest.approx(1e6)
    of_window = point(f"{CHANNEL} model.pattern=bandwidth model.bytes=1000 model.window=50")
    window = transfer_metrics(of_window.model, times)
    assert window["messages_per_second"] == pytest.approx(25_000)
    assert (window["messages_per_second_low"], window["messages_per_second_high"]) == pytest.approx((20_000, 31_250))
    four = point(f"{CHANNEL} model.transport=gloo model.pattern=all_reduce model.bytes=4000 model.processes=4")
    assert transfer_metrics(four.model, {"step_time_ms": 2.0}) == pytest.approx(
        {"transfer_us": 2000, "messages_per_second": 500, "sent_bytes_per_second": 2e6, "bus_bytes_per_second": 3e6}
    )
    assert bus_factor("broadcast", 4) == 1.0


def test_a_quick_measurement_of_a_scenario_is_short() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        store_options()
        for words, seconds in ((["measure=quick"], 15), (["measure=quick", "server.min_seconds=40"], 40), ([], 600)):
            config = plain(compose("config", ["scenario=server", "mode=inference", *words]))
            assert read_point(config).workload.min_seconds == seconds


def test_a_protocol_is_that_of_before_unless_it_stops_at_an_interval() -> None:
    usual = Measure()
    keys = ("min_seconds", "min_blocks", "max_seconds", "block_seconds", "warmup_seconds")
    assert protocol_id(usual) == digest({key: getattr(usual, key) for key in keys})
    assert protocol_id(dataclasses.replace(usual, relative_interval=0.02)) != protocol_id(usual)
    assert protocol_id(dataclasses.replace(usual, reference=True)) == protocol_id(usual)


@pytest.mark.parametrize(
    ("text", "count"), [("8GiB", 8 * 2**30), ("500 MB", 500_000_000), ("1.5kib", 1536), (1000, 1000), ("auto", None)]
)
def test_memory_sizes(text: str | int, count: int | None) -> None:
    assert memory_bytes(text, "key") == count
