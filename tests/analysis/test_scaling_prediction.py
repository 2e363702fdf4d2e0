"""Steps over several devices predicted from a channel: planted ones are found again, a free channel loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.analyses.extrapolate import stated_model
from analysis.analyses.scaling import ScalingOptions, ScalingResult, scaling
from analysis.cli.answer import answer
from analysis.options import Selection
from analysis.scaling_hosts import seconds_at
from paradnn.errors import ConfigError, NotEnoughData
from paradnn.families import model_of
from paradnn.forecast.communication.channels import channels, choose_channel, link_of
from paradnn.forecast.communication.data_parallel import exchange_seconds
from tests.analysis.planted import grid, runs

#: us, and us a byte: 50 us and 1 GB/s.
ALPHA, BETA = 50.0, 1e-3
SIZES = 2.0 ** np.arange(6, 24)
POINTS = grid(nodes=(256, 1024), layers=(2, 4), batches=(64, 128, 256))
MODEL = {"model.input_size": 100, "model.output_size": 10}


def messages(
    factor: float = 1.0, noise: float = 0.0, pattern: str = "latency", seed: int = 3, **columns: Any
) -> pd.DataFrame:
    """Runs of model=channel over one line; one that is free has times that nobody could measure."""
    times = factor * (ALPHA + BETA * SIZES) * np.exp(noise * np.random.default_rng(seed).standard_normal(len(SIZES)))
    given = {"model.transport": "tcp", "model.pattern": pattern, "transfer_us": times, "family": "channel"}
    return runs(pd.DataFrame({"model.bytes": SIZES.astype("int64")}), **given, **columns)


def link(size: float) -> float:
    return (ALPHA + BETA * size) / 1e6


def alone(nodes: int, layers: int, batch: float) -> float:
    """Seconds of one device: a start and so much for each example."""
    return 1e-3 + 1e-8 * batch * layers * nodes**1.5


def trained(counts: tuple[int, ...] = (1, 2, 4)) -> pd.DataFrame:
    """Every point on so many devices: alone with its part of the batch, and what a ring takes."""
    parts = []
    for count in counts:
        seconds = []
        for nodes, layers, batch in POINTS.to_numpy(dtype="int64").tolist():
            work = model_of(
                {"name": "fc", "nodes": nodes, "layers": layers, "input_size": 100, "output_size": 10}
            ).layer_work()
            size = sum(layer.gradient_bytes for layer in work)
            seconds.append(alone(nodes, layers, batch / count) + exchange_seconds("ring", count, size, link))
        speed = POINTS["batch_size"].to_numpy(dtype=float) / np.array(seconds)
        parts.append(runs(POINTS, devices=count, examples_per_second=speed, **MODEL))
    return pd.concat(parts, ignore_index=True)


def store(*parts: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True)


def test_messages_stand_beside_steps_of_any_protocol() -> None:
    """Two protocols of steps, a third of messages: the larger group of steps is predicted from them all the same."""
    steps = trained(counts=(1, 2))
    quick = trained(counts=(1, 2)).head(9).assign(protocol_id="quick")
    quick["examples_per_second"] *= 1.1
    frame = store(steps, quick, messages(protocol_id="messages"))
    frame["run_id"] = [f"{run}-{place}" for place, run in enumerate(frame["run_id"])]
    frame["start_time"] = pd.Timestamp("2026-11-22", tz="UTC")
    options = ScalingOptions(channel="tcp latency")
    result = answer(scaling, frame, options, Selection())
    assert len(result.table) == len(POINTS)
    assert f"Of these {len(steps) + 9} runs, {len(steps)} of one protocol were taken" in result.text()


def test_planted_steps_are_predicted() -> None:
    result = scaling(store(trained(), messages()), ScalingOptions(channel="tcp latency"))
    assert isinstance(result, ScalingResult)
    table = result.table
    assert len(table) == 2 * len(POINTS)
    # A line through two batches is the truth itself; the smallest parts are beyond the batches that one device ran.
    np.testing.assert_allclose(table["predicted_ms"], table["measured_ms"], rtol=1e-6)
    assert set(table.loc[table["batch_size"] == 256, "alone_from"]) == {"measured"}
    assert "off by 0% in the median" in result.text()
    assert "of the measured step" in result.text()
    assert len(result.figure().axes) == 3
    assert set(result.sources) >= set(messages()["run_id"])


def test_devices_of_other_hosts_are_predicted_from_one_of_this() -> None:
    frame = trained()
    frame["hosts"] = frame["devices"]
    table = scaling(store(frame, messages()), ScalingOptions(channel="tcp latency")).table
    np.testing.assert_allclose(table["predicted_ms"], table["measured_ms"], rtol=1e-6)
    assert table["hosts"].tolist() == table["devices"].tolist()


def test_weak_scaling_has_predictions_and_no_pairs() -> None:
    """Every device of a model has the same batch, so that no point was measured on one and on more."""
    frame = trained((1, 2))
    frame = frame[frame["batch_size"] / frame["devices"] == np.where(frame["model.nodes"] == 256, 64, 128)]
    result = scaling(store(frame, messages()), ScalingOptions(channel="tcp latency"))
    assert isinstance(result, ScalingResult)
    assert result.pairs is None
    np.testing.assert_allclose(result.table["predicted_ms"], result.table["measured_ms"], rtol=1e-6)
    assert set(result.table["alone_from"]) == {"measured"}
    assert "predicted over tcp latency" in result.text()
    assert len(result.figure().axes) == 1
    assert set(result.sources) >= set(frame["run_id"]) | set(messages()["run_id"])


def test_noise_in_the_channel_is_in_the_interval() -> None:
    """The planted step is within its interval, which is wider than nothing and no wider than the noise explains."""
    table = scaling(store(trained(), messages(noise=0.1)), ScalingOptions(channel="tcp latency")).table
    assert (
        (table["predicted_ms_low"] <= table["measured_ms"]) & (table["measured_ms"] <= table["predicted_ms_high"])
    ).all()
    width = (table["predicted_ms_high"] - table["predicted_ms_low"]) / table["exchange_ms"]
    assert (width > 0.02).all()
    assert (width < 0.4).all()


def test_a_channel_for_free_gives_perfect_weak_scaling() -> None:
    """The null. Strong scaling then loses what does not shrink with the batch, and nothing else."""
    frame = store(trained((1,)), messages(factor=1e-12))
    options = ScalingOptions(channel="tcp latency", hosts=("1", "2", "64", "1024"))
    result = scaling(frame, options)
    assert result.table["efficiency"].to_numpy() == pytest.approx(1.0)
    assert len(result.table) == 4 * len(POINTS)
    assert len(result.figure().axes) == 1
    strong = scaling(frame, ScalingOptions(channel="tcp latency", hosts=("2",), scaling="strong")).table
    expected = [
        alone(nodes, layers, batch) / (2 * alone(nodes, layers, batch / 2))
        for nodes, layers, batch in strong[["model.nodes", "model.layers", "batch_size"]]
        .to_numpy(dtype="int64")
        .tolist()
    ]
    np.testing.assert_allclose(strong["efficiency"], expected, rtol=1e-6)


def test_hosts_lose_what_the_ring_takes() -> None:
    result = scaling(store(trained((1,)), messages()), ScalingOptions(channel="tcp latency", hosts=("1", "8", "512")))
    for row in result.table.assign(family="fc", **MODEL).to_dict("records"):
        model = stated_model(row)
        computing = alone(row["model.nodes"], row["model.layers"], row["batch_size"] / row["devices"])
        size = sum(layer.gradient_bytes for layer in model.layer_work())
        sent = exchange_seconds("ring", row["devices"], size, link)
        assert row["predicted_ms"] == pytest.approx(1e3 * (computing + sent))
        assert row["efficiency"] == pytest.approx(computing / (computing + sent))
    text = result.text()
    assert "fc: weak scaling over tcp latency (ring), on paper, of 12 points measured on one" in text
    assert "on 1: 100% (100% to 100%) of the speed of 1 without loss" in text


def test_strong_scaling_ends_with_the_examples() -> None:
    frame = store(trained((1,)), messages())
    text = scaling(frame, ScalingOptions(channel="tcp latency", hosts=("128",), scaling="strong")).text()
    assert "Left out: 4 steps with fewer examples than devices." in text
    assert "beyond those measured on one" in text
    with pytest.raises(NotEnoughData, match="fewer examples than devices"):
        scaling(frame, ScalingOptions(channel="tcp latency", hosts=("512",), scaling="strong"))


def test_an_all_reduce_stands_for_its_own_processes() -> None:
    """Four processes that were measured: predictions on four are these times themselves."""
    (fit,) = channels(messages(pattern="all_reduce", **{"model.processes": 4}))
    made = link_of(fit)
    assert made.processes == 4
    for size in (4096.0, 1e6):
        assert exchange_seconds("ring", 4, size, made.links[0]) == pytest.approx((ALPHA + BETA * size) / 1e6)


def test_a_links_interval_covers_the_planted_line() -> None:
    """At the smallest message, one between, and one ten times as large as any that was measured: 95% are to be held."""
    held = []
    for seed in range(200):
        (channel,) = channels(messages(noise=0.05, seed=seed))
        if channel.fit and len(channel.fit.pieces) == 1:
            ends = [[one(size) for one in link_of(channel).links] for size in (64.0, 65536.0, 1e8)]
            held.append(
                [low <= link(size) <= high for (_, low, high), size in zip(ends, (64.0, 65536.0, 1e8), strict=True)]
            )
    assert len(held) > 190
    assert ((np.mean(held, axis=0) > 0.9) & (np.mean(held, axis=0) < 0.99)).all()


def test_a_name_means_the_same_whatever_else_the_store_holds() -> None:
    """With all words or fewer, as long as one channel fits; where several do, they are listed."""
    parts = [messages(pattern="all_reduce", **{"model.processes": count, "model.window": 64}) for count in (2, 4)]
    parts[1]["run_id"] += "four"
    two, both = channels(parts[0]), channels(store(*parts))
    for name in ("tcp all_reduce", "tcp all_reduce, 2 processes", "tcp all_reduce, window 64, 2 processes"):
        assert link_of(choose_channel(two, name)).processes == 2
    for count in (2, 4):
        assert link_of(choose_channel(both, f"tcp all_reduce, {count} processes, window 64")).processes == count
    for found, name, message in (
        (
            both,
            "tcp all_reduce",
            "--channel=tcp all_reduce: fits 2 channels of these runs; choose one of "
            "'tcp all_reduce, 2 processes'; 'tcp all_reduce, 4 processes'",
        ),
        (two, "tcp all_reduce, 4 processes", "--channel=tcp all_reduce, 4 processes: is no fitted channel"),
        (two, "tcp", "--channel=tcp: is no fitted channel of these runs; there are 'tcp all_reduce'"),
    ):
        with pytest.raises(ConfigError) as caught:
            choose_channel(found, name)
        assert str(caught.value).startswith(message)


def test_alone_is_measured_between_and_beyond() -> None:
    seconds = pd.Series([1.0, 1.5, 2.5], index=[8.0, 16.0, 32.0])
    assert [seconds_at(seconds, batch) for batch in (16, 24, 4, 64)] == pytest.approx([1.5, 2.0, 0.75, 4.5])
    # Never better than in proportion, nor slower than a larger batch.
    assert seconds_at(pd.Series([1.0, 4.0], index=[8.0, 16.0]), 4) == 0.5
    assert seconds_at(pd.Series([1.0, 0.9], index=[8.0, 16.0]), 4) == 1.0
    assert seconds_at(seconds[:1], 4) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel": "grpc latency"}, "--channel=grpc latency: is no fitted channel of these runs; there are 'tcp lat"),
        ({"hosts": ("2",)}, "--hosts=2: needs to know what messages cost; name a --channel"),
        ({"algorithm": "tree"}, "--algorithm=tree: needs to know what messages cost; name a --channel"),
        ({"channel": "tcp latency", "scaling": "strong"}, "--scaling=strong: says how --hosts share the batch; name"),
        ({"hosts": ("2", "x"), "channel": "tcp latency"}, "--hosts=x: is no number of hosts from 1 to 100,000; write"),
        ({"hosts": ("0",), "channel": "tcp latency"}, "--hosts=0: is no number of hosts from 1 to 100,000; write"),
        ({"hosts": ("100001",), "channel": "tcp latency"}, "--hosts=100001: is no number of hosts from 1 to 100,000;"),
    ],
)
def test_what_cannot_be_asked_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scaling(store(trained(), messages()), ScalingOptions(**options))
    assert str(caught.value).startswith(message)


def test_sizes_that_make_no_model_are_one_line() -> None:
    for column, value in (("model.input_size", "x"), ("model.layers", "auto")):
        steps = trained((1,)).astype({column: "str"})
        steps.loc[3, column] = value
        with pytest.raises(ConfigError, match="model"):
            scaling(store(steps, messages()), ScalingOptions(channel="tcp latency", hosts=("2",), pool=True))
    endless = messages().assign(transfer_us=lambda runs: runs["transfer_us"].where(runs.index > 3, np.inf))
    assert len(scaling(store(trained((1,)), endless), ScalingOptions(channel="tcp latency", hosts=("2",))).table) == 12


def test_without_messages_or_trainings_there_is_nothing_to_say() -> None:
    with pytest.raises(NotEnoughData, match="no run measured messages"):
        scaling(trained(), ScalingOptions(channel="tcp latency"))
    with pytest.raises(NotEnoughData, match="no training step was measured on one device"):
        scaling(store(trained((2,)), messages()), ScalingOptions(channel="tcp latency", hosts=("2",)))
