"""Sweeps: sizes of presets, fast composition compared with Hydra's, samples, and zipped axes."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from paradnn.cli.help import help_text
from paradnn.cli.overrides import as_axes
from paradnn.config import tasks
from paradnn.config.hydra_releases import VERSION_BASE, register_resolver
from paradnn.config.identity import point_id
from paradnn.config.reading import read_point
from paradnn.config.space import Plan, expand, plain
from paradnn.core.errors import ConfigError
from tests.conftest import ROOT

#: Name, number of points and number of families of each preset.
PRESETS = [
    ("paper_fc", 9720, 1),
    ("paper_cnn", 2160, 2),
    ("paper_rnn", 2160, 3),
    ("quick", 16, 6),
    ("modern_lm", 960, 1),
    ("modern_vit", 512, 1),
    ("real", 7, 6),
    ("kernels", 289, 3),
    ("extrapolation", 46, 14),
    ("generation", 18, 1),
]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    """Initialize Hydra with the configurations of this repository."""
    register_resolver("paradnn_help", help_text)
    with initialize_config_dir(str(ROOT / "conf"), **VERSION_BASE):
        yield


def plan_of(*arguments: str) -> Plan:
    """Return the plan of a sweep with these command-line overrides."""
    fixed = [
        entry for entry in arguments if entry.startswith("sweep.zip") or not {",", "("} & set(entry)
    ]
    master: DictConfig = compose("config", overrides=fixed, return_hydra_config=True)
    return expand(GlobalHydra.instance().config_loader(), master, list(arguments), {})


@pytest.mark.parametrize(("experiment", "points", "families"), PRESETS)
def test_presets_compose_to_the_stated_number_of_distinct_points(
    experiment: str, points: int, families: int
) -> None:
    read = [read_point(config) for config in plan_of(f"experiment={experiment}").configs()]
    assert len(read) == points
    assert len({point_id(point) for point in read}) == points

    per_family = [
        len([point for point in read if point.model.name == name])
        for name in {point.model.name for point in read}
    ]
    assert len(per_family) == families

    if experiment.startswith("paper"):
        assert set(per_family) == {points // families}


def test_points_of_a_swept_batch_size_equal_those_read_from_configurations() -> None:
    server = ["scenario=server", "server.rate=100", "mode=inference", "measure=quick"]
    for axes in (
        [*server, "batch_size=8,16"],
        ["devices=1,2", "batch_size=2,4"],
        ["devices=2", "parallel=data,model", "batch_size=2,4"],
        ["batch_size=1,2", "seed=0,1"],
    ):
        plan = plan_of("model=fc", "model.nodes=8,16", *axes)
        assert list(tasks._points(plan)) == [read_point(config) for config in plan.configs()]
        assert len({point.batch_size for point in tasks._points(plan)}) == 2

    with pytest.raises(ConfigError, match="devices=2: does not divide batch_size=3"):
        list(tasks._points(plan_of("model=fc", "devices=2", "batch_size=2,3")))


def test_a_list_as_the_name_of_a_family_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no such"):
        list(tasks._points(plan_of("++model.name=[]", "model.layers=1,2")))


def test_no_two_points_of_the_tour_differ_only_in_their_threads() -> None:
    """With two such points, a comparison with a third one would be ambiguous.

    The section of the report would then be empty.
    """
    read = [read_point(config) for config in plan_of("experiment=tour").configs()]
    without_threads = {
        point_id(replace(point, platform=replace(point.platform, threads=None))) for point in read
    }

    assert len(without_threads) == len(read) == 64


def test_a_model_without_normalization_has_a_separate_learning_rate() -> None:
    """The model selects the learning rate, and the command line overrides it."""
    plan = plan_of("model=fc,squeezenet", "optimizer=rmsprop,sgd", "sweep.order=given")
    rates = [config["optimizer"]["learning_rate"] for config in plan.configs()]

    assert rates == [0.1, 0.1, 0.001, 0.001]

    overridden = plan_of("model=fc,squeezenet", "optimizer.learning_rate=0.5")
    assert {config["optimizer"]["learning_rate"] for config in overridden.configs()} == {0.5}


def test_the_fast_composition_equals_that_of_hydra() -> None:
    axes = {
        "model": ["fc", "fc"],
        "precision": ["float32", "bfloat16"],
        "model.nodes": ["32", "64"],
        "measure": ["quick", "standard"],
        "optimizer.learning_rate": ["0.1", "1e-3"],
        "+framework.env.TF_ENABLE_ONEDNN_OPTS": ["0", "1"],
    }
    plan = plan_of(
        *(f"{key}={','.join(dict.fromkeys(values))}" for key, values in axes.items()),
        "sweep.order=given",
    )
    combinations = itertools.product(*(dict.fromkeys(values) for values in axes.values()))
    expected = [
        plain(
            compose(
                "config",
                overrides=[f"{key}={value}" for key, value in zip(axes, choice, strict=True)],
            )
        )
        for choice in combinations
    ]
    found = list(plan.configs())

    assert [read_point(config) for config in found] == [read_point(config) for config in expected]
    assert len(found) == 32


TWO_AXES = ("model.nodes=range(1,30)", "batch_size=1,2")


def test_random_order_has_the_same_points() -> None:
    given_order = list(plan_of(*TWO_AXES, "sweep.order=given").points)
    shuffled = list(plan_of(*TWO_AXES).points)

    assert shuffled != given_order
    assert sorted(map(str, shuffled)) == sorted(map(str, given_order))


def test_random_order_is_reproducible() -> None:
    assert list(plan_of(*TWO_AXES).points) == list(plan_of(*TWO_AXES).points)


def test_a_key_of_a_swept_model_is_an_axis_with_one_value() -> None:
    arguments = as_axes(
        ["-m", "model=lstm,gru", "model.embedding_size=4", "batch_size=8", "model.vocab_size=2,4"]
    )
    assert arguments[2:] == [
        "model.embedding_size=choice(4)",
        "batch_size=8",
        "model.vocab_size=2,4",
    ]
    assert {
        read_point(config).model.embedding_size for config in plan_of(*arguments[1:]).configs()
    } == {4}

    [blocks] = as_axes(["model.blocks=[1,2,3,4]", "-m"])[:1]
    read = [read_point(config) for config in plan_of("model=residual", blocks).configs()]

    assert [point.model.blocks for point in read] == [(1, 2, 3, 4)]
    assert as_axes(["model.nodes=8"]) == ["model.nodes=8"]


def test_a_family_selects_part_of_a_preset_and_axes_extend_it() -> None:
    plan = plan_of("experiment=quick", "model=fc,lstm", "precision=float32,bfloat16")
    read = [read_point(config) for config in plan.configs()]

    assert {point.model.name for point in read} == {"fc", "lstm"}
    assert len(read) == 2 * (6 + 2)


@pytest.mark.parametrize("count", [7, 50, 300])
def test_a_sample_is_spread_evenly_over_every_axis(count: int) -> None:
    read = [
        read_point(config)
        for config in plan_of("experiment=paper_fc", f"sweep.sample={count}").configs()
    ]
    assert len({point_id(point) for point in read}) == count

    if count >= 50:
        assert {point.model.layers for point in read} == {4, 8, 16, 32, 64, 128}
        assert {point.batch_size for point in read} == {2**power for power in range(6, 15)}
        for times in (
            Counter(point.model.layers for point in read),
            Counter(point.batch_size for point in read),
        ):
            assert max(times.values()) - min(times.values()) <= 3, (
                "all values must be about equally frequent"
            )


@pytest.mark.parametrize("count", [2, 40, 5003])
def test_a_sample_has_points_of_every_grid(count: int) -> None:
    grids = [
        {"model": "fc", "model.nodes": "range(32,532)", "batch_size": "range(1,11)"},
        {"model": "lstm", "batch_size": "1,2"},
        {"model": "gru"},
        {"model": "residual", "batch_size": "1,2"},
    ]
    master: DictConfig = compose(
        "config", overrides=[f"sweep.sample={count}"], return_hydra_config=True
    )
    master.sweep.grids = grids
    plan = expand(GlobalHydra.instance().config_loader(), master, [], {})
    times = Counter(plan.bases[base]["model"]["name"] for base, _ in plan.points)

    assert times.total() == count
    assert len(times) == min(count, len(grids)), (
        "each grid must have a point if there are enough points"
    )

    if count == 40:
        assert times["fc"] == 37, "the other points must be proportional to the sizes of the grids"


def test_zipped_axes_vary_together() -> None:
    sizes = (
        "model.nodes=32,64,128",
        "batch_size=4,8,16",
        "precision=float32,bfloat16",
        "model.layers=1,2",
    )
    zipped = plan_of(*sizes, "sweep.zip=[model.nodes,batch_size]", "sweep.order=given")
    found = [
        (point.model.nodes, point.batch_size, point.precision, point.model.layers)
        for point in map(read_point, zipped.configs())
    ]
    pairs = [(32, 4), (64, 8), (128, 16)]
    others = itertools.product(("float32", "bfloat16"), (1, 2))

    assert found == [(*pair, *other) for pair, other in itertools.product(pairs, others)]

    two_zips = plan_of(
        *sizes, "sweep.zip=[[batch_size,model.nodes],[precision,model.layers]]", "sweep.order=given"
    )
    assert [(*point.values(),) for _, point in two_zips.points] == [
        (size, nodes, precision, layers)
        for nodes, size in pairs
        for precision, layers in (("float32", 1), ("bfloat16", 2))
    ]
    assert len(plan_of(*sizes, "sweep.zip=[model.nodes,batch_size]", "sweep.sample=5").points) == 5


def test_zipped_axes_may_choose_models() -> None:
    plan = plan_of(
        "model=fc,lstm,gru", "batch_size=1,2,3", "sweep.zip=[model,batch_size]", "sweep.order=given"
    )

    assert [(point.model.name, point.batch_size) for point in map(read_point, plan.configs())] == [
        ("fc", 1),
        ("lstm", 2),
        ("gru", 3),
    ]


def test_zipped_axes_do_not_change_grids_without_them() -> None:
    preset = plan_of(
        "experiment=quick", "precision=float32,bfloat16", "sweep.zip=[model.filters,precision]"
    )

    assert len(preset.points) == 6 * 2 + 2 * 2 + 3 * 2 * 2
