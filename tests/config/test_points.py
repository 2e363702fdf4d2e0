"""Points that are read from overrides: one-line errors, identities, defaults and run names."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from paradnn.config.groups import register_options
from paradnn.config.hydra_releases import VERSION_BASE
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
    """Read a point from space-separated `key=value` overrides.

    Choosing a group, such as model=fc, discards earlier options of that group.
    """
    config: dict[str, Any] = {}
    for word in shlex.split(words):
        key, _, text = word.partition("=")
        value = yaml.safe_load(text)
        if key in GROUPS:
            config[key] = {"name": value}
            continue
        group, dot, option = key.partition(".")
        if dot:
            config[group] = {**config.get(group, {}), option: value}
        else:
            config[group] = value
    return read_point(config)


#: Per set of common overrides: pairs of further overrides and the start of the error message.
REJECTED = {
    "": [
        ("model=fc model.nodes=0", "model.nodes=0: must be at least 1; choose a larger value"),
        (
            "model=fc model.nodes=x",
            "model.nodes=x: expects a whole number; for example, write model.nodes=64",
        ),
        ("model=fc model.nodes=true", "model.nodes=true: expects a whole number"),
        ("model=fc model.layers=2 model.nodes=[8,0]", "model.nodes=0: must be at least 1"),
        ("model=fc model.layers=2 model.nodes=[8,x]", "model.nodes=x: expects a whole number"),
        (
            "model=fc model.nodes=[8,4]",
            "model.layers=4: model.nodes lists 2 layers: [8, 4]; set model.layers=2",
        ),
        ("model=fc model.nods=3", "model.nods=3: no such key; did you mean nodes?"),
        ("model=foo", "model.name=foo: no such family; choose one of fc, residual"),
        ("model=residual model.blocks=[1,2]", "model.blocks=[1, 2]: expects 1, 3 or 4 numbers"),
        (
            "model=gpt model.width=100 model.heads=12",
            "model.width=100: is not a multiple of model.heads=12; for example, write",
        ),
        (
            "model=transformer model.heads=7",
            "model.width=512: is not a multiple of model.heads=7; for example, write 511",
        ),
        (
            "model=vit model.image_size=225",
            "model.image_size=225: is not a multiple of model.patch=16; for example, write",
        ),
        (
            "model=fc framework.compile=max-autotune",
            "framework.compile=max-autotune: is a mode of torch.compile, which this point does not use; set",
        ),
        (
            "model=fc framework.compile=most",
            "framework.compile=most: no such choice; choose one of default, reduce",
        ),
        ("model=fc batch_size=-1", "batch_size=-1: must be at least 1"),
        (
            "model=fc batch_size=1180591620717411303424",
            "batch_size=1180591620717411303424: must be at most",
        ),
        (
            "model=fc precision=nothing",
            "precision=nothing: no such choice; choose one of float32, bfloat16, float16",
        ),
        ("model=fc measure.min_seconds=.nan", "measure.min_seconds=nan: expects a finite number"),
        ("model=fc measure.memory_limit=lots", "measure.memory_limit=lots: is not a memory size"),
        ("model=fc measure.predict_oom=maybe", "measure.predict_oom=maybe: expects true or false"),
        ("model=fc measure=3", "measure=3: expects a group of keys"),
        ("model=fc measure.reference=0.3", "measure.reference=0.3: must be at most 0.2"),
        ("model=fc seed=-1", "seed=-1: must be at least 0"),
        ("model=fc seed=2147483648", "seed=2147483648: must be at most 2147483647"),
        (
            "model=fc batch_size=4 devices=3",
            "devices=3: does not divide batch_size=4; set batch_size to a multiple of 3",
        ),
        (
            "model=fc batch_size=6 devices=2 hosts=2",
            "hosts=2: does not divide batch_size=6; choose a batch_size that is a multiple of "
            "hosts x devices = 4",
        ),
        (
            "model=fc devices=2 parallel=pipeline",
            "parallel=pipeline: is not possible: Keras does not divide a model's layers among "
            "devices; set parallel=data or parallel=model",
        ),
        (
            "model=fc devices=2 parallel=tensor",
            "parallel=tensor: no such choice; choose one of data, model",
        ),
        (
            "model=fc devices=2 hosts=2 parallel=model",
            "hosts=2: is not possible with parallel=model, which divides the weights among "
            "devices of one host; set hosts=1 or parallel=data",
        ),
        (
            "model=fc mode=inference hosts=2",
            "hosts=2: needs training, in which hosts exchange gradients; set mode=train or hosts=1",
        ),
        (
            "model=residual data=images hosts=2",
            "data=images: is for one device, and this point has 2; use devices=1 hosts=1",
        ),
        (
            "model=fc data=images",
            "data=images: model=fc does not accept images; choose another model, or data=synth",
        ),
        ("model=lstm data=images", "data=images: model=lstm does not accept images"),
        (
            "model=residual data=jpeg",
            "data.name=jpeg: no such choice; choose one of synthetic, images",
        ),
        (
            "model=residual data=images data.thread=1",
            "data.thread=1: no such key; did you mean threads?",
        ),
        (
            "model=residual data=synthetic data.threads=1",
            "data.threads=1: no such key; keys of data: name",
        ),
        ("model=residual data=images data.width=15", "data.width=15: must be at least 16"),
        ("model=residual data=images data.height=15", "data.height=15: must be at least 16"),
        (
            "model=residual data=images data.cache=all",
            "data.cache=all: no such choice; choose one of none, encoded",
        ),
        ("model=fc platform.price_per_hour=0", "platform.price_per_hour=0"),
        (
            "model=fc 'framework.env={\"AWS_SECRET\":x}'",
            "framework.env.AWS_SECRET=x: is not an environment variable of a framework",
        ),
        (
            "model=fc platform.cores=0-x",
            "platform.cores=0-x: is not understood; write numbers and ranges",
        ),
        (
            "model=fc platform.cores=3-1",
            "platform.cores=3-1: does not name a core; write the smaller number first",
        ),
        ("model=fc platform.cores=-1", "platform.cores=-1: must be at least 0"),
        (
            "model=fc platform.cores=0-1 devices=2 batch_size=4",
            "platform.cores=0-1: supports only one device, but devices=2; omit platform.cores",
        ),
        (
            "model=fc 'software.requirements=[--index-url=http://127.0.0.1]'",
            (
                "software.requirements=--index-url=http://127.0.0.1: is not understood; write a "
                "package with its version"
            ),
        ),
        (
            "model=fc 'software.requirements=[keras @ http://127.0.0.1/k.whl]'",
            "software.requirements=keras @ http://127.0.0.1/k.whl: is not understood",
        ),
        (
            "model=fc software.requirements=[./keras.whl]",
            "software.requirements=./keras.whl: is not understood",
        ),
        (
            "model=fc software.requirements=[keras==3] software.python=/bin/py",
            (
                "software.python=/bin/py: cannot be combined with the requirements of "
                "software=current; give either the interpreter or the requirements"
            ),
        ),
        (
            "model=fc software.requirements=[keras==3] software.python_version=three",
            "software.python_version=three: is not understood; for example, write '3.11'",
        ),
        (
            "model=fc software.requirements=[keras==3] software.python_version=3.1",
            "software.python_version=3.1: expects a line of text; quote it",
        ),
        (
            "model=fc software.python_version=\"'3.11'\"",
            "software.python_version=3.11: applies only to a stack with requirements; give "
            "software.requirements too",
        ),
        (
            "model=fc batch_size=4 mode=inference task=judge data=digits",
            "task=judge: needs a trained model, but model=fc has random weights",
        ),
        (
            (
                "model=onnx model.path=/bin/sh framework=onnxruntime batch_size=4 "
                "mode=inference task=judge"
            ),
            "data=synthetic: has no held-out examples, which task=judge needs",
        ),
    ],
    "model=endpoint batch_size=1 mode=inference": [
        (
            "endpoint.url=http://me:secret@here/v1",
            (
                "endpoint.url=http://***@here/v1: is not understood; write http://host:port/v1, "
                "without a password"
            ),
        ),
        (
            "endpoint.url=ftp://here",
            "endpoint.url=ftp://here: is not understood; write http://host:port/v1",
        ),
        (
            "endpoint.rate=peak",
            (
                "endpoint.rate=peak: needs a time limit; set endpoint.first_token_ms, "
                "endpoint.token_ms or"
            ),
        ),
        (
            "endpoint.rate=fast",
            "endpoint.rate=fast: no such choice; choose one of null, peak, a number",
        ),
        (
            "batch_size=4",
            (
                "batch_size=4: model=endpoint has no batch; omit it, and set "
                "endpoint.concurrency or endpoint.rate"
            ),
        ),
        ("precision=bfloat16", "precision=bfloat16: is decided by the server of model=endpoint"),
        (
            "mode=train",
            "mode=train: model=endpoint sends requests to a server, and cannot train",
        ),
        (
            "measure.keep_trace=true",
            (
                "measure.keep_trace=true: model=endpoint runs no operations that could be profiled; "
                "set measure.keep_trace=false"
            ),
        ),
        (
            "endpoint.min_seconds=900",
            (
                "endpoint.min_seconds=900.0: must be less than measure.timeout=600; lower it, "
                "or raise measure.timeout"
            ),
        ),
    ],
    "batch_size=1 mode=inference": [
        (
            "model=gemm mode=train",
            "mode=train: model=gemm cannot be trained; set mode=inference",
        ),
        (
            "model=gemm batch_size=8",
            "batch_size=8: model=gemm has no batch; omit it, and set model.n",
        ),
        ("model=sparse_gemm batch_size=8", "batch_size=8: model=sparse_gemm has no batch"),
        (
            "model=elementwise batch_size=8",
            "batch_size=8: model=elementwise has no batch; omit it, and set",
        ),
        (
            "model=conv2d batch_size=2 devices=2",
            "devices=2: model=conv2d is for one device; set devices=1",
        ),
        ("model=gemm data=images", "data=images: model=gemm does not accept images"),
        ("model=gemm model.m=0", "model.m=0: must be at least 1"),
        ("model=gemm model.n=2147483648", "model.n=2147483648: must be at most 2147483647"),
        (
            "model=gemm model.m=1073741824 model.n=1073741824 model.k=4",
            "model.m=1073741824: makes the operation need 9.22e+18 FLOP with",
        ),
        ("model=conv2d model.stride=0", "model.stride=0: must be at least 1"),
        (
            "model=conv2d model.kernel=[1,2,3]",
            "model.kernel=[1, 2, 3]: expects 1 or 2 numbers; for example, write",
        ),
        (
            "model=conv2d model.width=4 model.kernel=[3,7]",
            "model.kernel=[3, 7]: a filter of width 7 does not fit",
        ),
        ("model=rnn_kernel model.steps=0", "model.steps=0: must be at least 1"),
        ("model=rnn_kernel model.cell=rnn", "model.cell=rnn: no such choice"),
        ("model=elementwise model.operations=257", "model.operations=257: must be at most 256"),
        ("model=sparse_gemm model.density=1.5", "model.density=1.5: must be at most 1.0"),
        ("model=sparse_gemm model.density=-0.1", "model.density=-0.1: must be at least 0.0"),
        (
            "model=sparse_gemm model.density=0.0",
            "model.density=0.0: makes all elements of the ",
        ),
    ],
    CHANNEL: [
        ("model.transport=rdma", "model.transport=rdma: no such choice; choose one of tcp, grpc"),
        (
            "model.transport=tcp model.pattern=all_reduce",
            "model.pattern=all_reduce: model.transport=tcp does not support",
        ),
        (
            "model.transport=gloo model.bytes=1023",
            "model.bytes=1023: model.transport=gloo sends float32 numbers of 4 bytes each",
        ),
        ("model.bytes=0", "model.bytes=0: must be at least 1"),
        (
            (
                "model.transport=tensorflow model.pattern=all_reduce model.processes=4 "
                "model.port=65533"
            ),
            "model.port=65533: ",
        ),
        (
            "framework=jax model.transport=gloo",
            "framework=jax: model.transport=gloo requires framework=torch",
        ),
        ("batch_size=2", "batch_size=2: model=channel has no batch; omit it, and set model.bytes"),
        ("precision=bfloat16", "precision=bfloat16: model=channel sends bytes"),
        ("mode=train", "mode=train"),
        ("devices=2", "devices=2"),
        (
            "measure.keep_trace=true",
            "measure.keep_trace=true: model=channel has no operations to profile",
        ),
        (
            "hosts=3",
            ("hosts=3: does not divide the 2 processes of model=channel; choose a divisor of 2"),
        ),
        (
            "hosts=2 model.transport=gloo model.pattern=broadcast model.processes=3",
            "hosts=2: does not divide the 3",
        ),
        (
            "hosts=2 software=mine software.python=/bin/py",
            "hosts=2: cannot be combined with software.python=/bin/py, because",
        ),
    ],
    GPT: [
        (
            "generate.prompt=61",
            "generate.tokens=40: with generate.prompt=61 exceeds the model's 100 positions",
        ),
        ("generate.prompt=0", "generate.prompt=0: must be at least 1; choose a larger value"),
        ("generate.tokens=0", "generate.tokens=0: must be at least 1; choose a larger value"),
        ("generate.token=1", "generate.token=1: no such key; did you mean tokens?"),
        (
            "mode=inference",
            "generate.prompt=60: needs mode=generate; omit it, or set mode=generate",
        ),
        (
            "model=fc",
            (
                "mode=generate: model=fc cannot generate tokens; choose model=gpt or "
                "model=llama, or mode=inference"
            ),
        ),
        ("model=gemm", "mode=generate: model=gemm cannot generate tokens"),
        ("devices=2", "devices=2: mode=generate is for one device; set devices=1"),
        ("scenario=server", "mode=generate: scenario=server is for inference; set mode=inference"),
        ("task=learn data=digits", "mode=generate: task=learn trains; set mode=train"),
    ],
    LEARN: [
        ("model.name=fc hosts=2", "hosts=2: is possible only for training steps and for messages"),
        (
            "task=step",
            "data=digits: is the input of task=learn; add task=learn, or use data=synthetic",
        ),
        (
            "data=synthetic",
            "data=synthetic: has no held-out examples, which task=learn needs; choose one of",
        ),
        (
            "model.input_size=100",
            "model.input_size=100: differs from the 64 values of each example of data=digits; set",
        ),
        (
            "model.output_size=5",
            "model.output_size=5: is less than the 10 classes of data=digits; set model.output_size=10",
        ),
        ("model=lstm", "data=digits: model=lstm is not a classifier; choose another model"),
        (
            "model=residual model.image_size=30",
            "model.image_size=30: is not a multiple of 8, the height and width",
        ),
        ("mode=inference", "mode=inference: task=learn trains; set mode=train"),
        ("batch_size=2000", "batch_size=2000: exceeds the 1,438 training examples of data=digits"),
        (
            "measure.processes=5",
            (
                "measure.processes=5: task=learn trains once; set measure.processes=1; to repeat "
                "the training, sweep seed"
            ),
        ),
        (
            "learn.epochs=3 learn.warmup_epochs=3",
            "learn.warmup_epochs=3: must be less than learn.epochs=3; lower it, or raise",
        ),
        ("learn.target=0", "learn.target=0.0: must be at least 0.001"),
        ("learn.target=97", "learn.target=97.0: must be at most 1.0"),
        (
            "data=cifar10 model.input_size=3072",
            "data.path=null: data=cifar10 reads files from disk; set it to the path of the files",
        ),
    ],
    SERVER: [
        ("mode=train", "mode=train: scenario=server is for inference; set mode=inference"),
        ("devices=2", "devices=2: scenario=server is for one device; set devices=1"),
        (
            "scenario=sever",
            "scenario=sever: no such choice; did you mean server? choose one of closed, ",
        ),
        ("server.rate=fast", "server.rate=fast: no such choice; choose one of peak, a number"),
        ("server.rate=null", "server.rate=null: no such choice; choose one of peak, a number"),
        (
            "server.batch=8",
            "server.batch=8: differs from batch_size=256, which sets the largest batch; omit it, and set batch_size=8",
        ),
        ("server.rate=0", "server.rate=0.0: must be at least 0.001"),
        (
            "server.speed=1",
            "server.speed=1: no such key; did you mean seed? keys of server: rate, latency_ms",
        ),
        (
            "server.min_seconds=60 measure.timeout=60",
            "server.min_seconds=60.0: must be less than measure.timeout=60",
        ),
        (
            "server.rate=0.01",
            (
                "server.rate=0.01: makes server.min_queries=100 take 10,000 s, longer than "
                "measure.timeout=1800; raise the rate or"
            ),
        ),
        (
            "model=gemm",
            "scenario=server: model=gemm is a single operation, which cannot serve queries",
        ),
        ("model=residual data=images", "data=images: in scenario=server, the input of the queries"),
    ],
}


@pytest.mark.parametrize(
    ("base", "words", "message"),
    [
        pytest.param(base, words, message, id=words[:60])
        for base, cases in REJECTED.items()
        for words, message in cases
    ],
)
def test_an_invalid_point_raises_a_one_line_error(base: str, words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        point(f"{base} {words}")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_rejected() -> None:
    with pytest.raises(ConfigError, match="speed=3: no such key"):
        read_settings({"speed": 3})


invalid_prices = pytest.mark.parametrize(
    "price",
    [
        pytest.param("0", id="zero"),
        pytest.param("-1", id="negative"),
        pytest.param("nan", id="not a number"),
        pytest.param("inf", id="infinite"),
        pytest.param("cheap", id="text"),
    ],
)


@invalid_prices
def test_an_invalid_price_among_the_settings_is_rejected(price: str) -> None:
    with pytest.raises(ConfigError, match="is not a positive price; for example, write"):
        read_settings({"price": {"per_hour": {"V100": price}}})


@invalid_prices
def test_an_invalid_price_in_a_table_is_rejected(price: str, tmp_path: Path) -> None:
    table = tmp_path / "prices.yaml"
    table.write_text(f"per_hour: {{V100: '{price}'}}")

    with pytest.raises(
        ConfigError, match=f"^price={table}: .* is not a positive price; for example, write"
    ):
        load_prices(str(table), "price")


# These identities were stored before some keys existed. New keys must not change them.
@pytest.mark.parametrize(
    ("words", "identity"),
    [
        pytest.param("model=fc", "57f7f9f40bab5f25", id="model=fc"),
        pytest.param("model=fc data=synthetic", "57f7f9f40bab5f25", id="model=fc data=synthetic"),
        pytest.param(
            "model=fc generate.prompt=64 generate.tokens=64",
            "57f7f9f40bab5f25",
            id="model=fc generate.prompt=64 generate.tokens=64",
        ),
        pytest.param(
            "model=fc platform.price_per_hour=3",
            "57f7f9f40bab5f25",
            id="model=fc platform.price_per_hour=3",
        ),
        pytest.param("model=residual", "de4ed4255be4dcfe", id="model=residual"),
        pytest.param(
            "model=residual data=synthetic", "de4ed4255be4dcfe", id="model=residual data=synthetic"
        ),
        pytest.param("model=lstm", "d95fb7d27a4fc28e", id="model=lstm"),
        pytest.param("model=fc model.nodes=64", "5996aab90aa670df", id="model=fc model.nodes=64"),
        pytest.param(
            "model=fc model.nodes=[64,64,64,64]",
            "5996aab90aa670df",
            id="model=fc model.nodes=[64,64,64,64]",
        ),
        pytest.param(
            "model=fc model.layers=1 model.nodes=8 batch_size=4",
            "403c55a03dcf42b8",
            id="model=fc model.layers=1 model.nodes=8 batch_size=4",
        ),
        pytest.param(DIGITS, "c7e7c4a3df9641cf", id="DIGITS"),
        pytest.param(f"{DIGITS} task=step", "c7e7c4a3df9641cf", id="DIGITS task=step"),
    ],
)
def test_new_keys_do_not_change_stored_identities(words: str, identity: str) -> None:
    assert point_id(point(f"{words} measure.min_seconds=1.0 measure.block_seconds=0.1")) == identity
    assert not {"generate", "learn"} & set(point_request(point(words)))


@pytest.mark.parametrize(
    ("words", "added_words"),
    [
        pytest.param(
            CHANNEL, "model.window=8 model.processes=5", id="model.window=8 model.processes=5"
        ),
        pytest.param(CHANNEL, "compile=xla", id="compile=xla"),
        pytest.param(CHANNEL, "hosts=1", id="hosts=1"),
        pytest.param(
            "model=gemm batch_size=1 mode=inference", "optimizer=adam", id="optimizer=adam"
        ),
        pytest.param("model=fc mode=inference", "scenario=closed", id="scenario=closed"),
        pytest.param(f"{SERVER} batch_size=8", "server.batch=8", id="server.batch=8"),
        pytest.param(
            LEARN,
            "learn.schedule=constant learn.warmup_epochs=0",
            id="learn.schedule=constant learn.warmup_epochs=0",
        ),
        pytest.param("model=fc model.layers=0", "model.nodes=64", id="softmax regression"),
        pytest.param("model=fc", "parallel=model", id="parallel=model on one device"),
        pytest.param("model=fc devices=2", "parallel=data", id="parallel=data is the default"),
        pytest.param(
            "model=residual model.blocks=3", "model.blocks=[3,3,3,3]", id="model.blocks=[3,3,3,3]"
        ),
    ],
)
def test_keys_without_effect_do_not_change_the_identity(words: str, added_words: str) -> None:
    assert point_id(point(words)) == point_id(point(f"{words} {added_words}"))


def test_model_parallel_devices_get_the_whole_batch() -> None:
    model_parallel = point("model=fc devices=2 parallel=model batch_size=3")
    data_parallel = point("model=fc devices=2 batch_size=4")
    one_device = point("model=fc batch_size=3")

    assert (model_parallel.replicas, data_parallel.replicas) == (1, 2)
    assert run_name(model_parallel) == f"{run_name(one_device)} x2 model parallel"
    assert step_costs(model_parallel) == step_costs(one_device)

    weight_bytes = 4 * step_costs(one_device).parameters
    assert step_costs(data_parallel).memory_lower_bound_bytes > 2 * weight_bytes


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        pytest.param(
            CHANNEL,
            [
                "model.pattern=bandwidth",
                "model.pattern=bandwidth model.window=8",
                "model.port=5000",
                "hosts=2",
            ],
            id="channel",
        ),
        pytest.param(
            "model=gemm batch_size=1 mode=inference",
            ["model.transpose_a=true", "precision=bfloat16"],
            id="gemm",
        ),
        pytest.param(
            "model=fc",
            [
                "model.nodes=[64,64,64,32]",
                "model.nodes=64",
                "devices=2",
                "devices=2 parallel=model",
                "devices=4",
                "precision=bfloat16",
            ],
            id="fc",
        ),
        pytest.param(
            GPT,
            [
                "generate.prompt=50",
                "generate.tokens=39",
                "mode=inference generate.prompt=64 generate.tokens=64",
            ],
            id="generation",
        ),
        pytest.param(LEARN, ["learn.target=0.9", "seed=1", "learn.schedule=cosine"], id="training"),
        pytest.param(
            SERVER,
            [
                "scenario=offline",
                "scenario=closed",
                "server.rate=50",
                "server.latency_ms=1",
                "server.percentile=90",
                "server.confidence=0.9",
                "server.min_seconds=1",
                "server.min_queries=5",
                "server.delay_ms=2",
                "server.precision=0.1",
                "server.seed=1",
            ],
            id="server",
        ),
        pytest.param(
            "model=residual data=images",
            [
                "data.threads=1",
                "data.readers=2",
                "data.shuffle=3",
                "data.prefetch=4",
                "data.cache=decoded",
                "data.path=/x",
                "data.augment=false",
                "data.examples=9",
                "data.width=99",
                "data.height=99",
            ],
            id="images",
        ),
    ],
)
def test_every_key_changes_the_identity(words: str, variants: list[str]) -> None:
    points = [point(words), *(point(f"{words} {variant}") for variant in variants)]
    assert len({point_id(entry) for entry in points}) == len(points)

    if words == SERVER:
        keys = {variant.partition("=")[0] for variant in [*variants, "server.batch=8"]}
        assert keys - {"scenario"} == {
            f"server.{entry.name}" for entry in dataclasses.fields(Server)
        }, "the variants must cover every key of the server"


def test_scenario_files_have_the_defaults_of_the_dataclasses() -> None:
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


# An expected name that ends in a space is part of the run's name; any other is its end.
@pytest.mark.parametrize(
    ("words", "key", "value", "name"),
    [
        pytest.param(
            GPT,
            "generate.tokens",
            "40",
            "gpt 4x256 h4 t100 b4 float32 cpu generate 60+40",
            id="generation",
        ),
        pytest.param(f"{LEARN} learn.target=0.9", "learn.target", "0.9", "fc 2x32 ", id="target"),
        pytest.param(
            f"{SERVER} batch_size=4 server.rate=200",
            "server.rate",
            "200.0",
            "server 200/s",
            id="rate",
        ),
        pytest.param(
            f"{SERVER} batch_size=4 server.rate=200",
            "server.batch",
            "4",
            "server 200/s",
            id="batch of the server",
        ),
        pytest.param(SERVER, "scenario", "server", "server peak", id="peak"),
        pytest.param(
            f"{SERVER} server.rate=200 server.delay_ms=2",
            "server.delay_ms",
            "2.0",
            "server 200/s delay 2 ms",
            id="delay",
        ),
        pytest.param(f"{CHANNEL} hosts=2", "hosts", "2", "2 hosts", id="hosts"),
        pytest.param(
            "model=fc model.nodes=[64,64,64,32]",
            "model.nodes",
            "[64, 64, 64, 32]",
            "fc 64-64-64-32 ",
            id="layers of different width",
        ),
        pytest.param(
            (
                "model=fc software=mine 'software.requirements=[keras==3]' "
                "software.python_version=\"'3.11'\""
            ),
            "software.python_version",
            "3.11",
            "cpu mine",
            id="software",
        ),
        pytest.param(
            "model=endpoint batch_size=1 endpoint.model=small",
            "endpoint.model",
            "small",
            "cpu small 128+64 x1",
            id="served model",
        ),
        pytest.param(
            "model=endpoint batch_size=1 endpoint.url=http://old:8000/v1",
            "endpoint.url",
            "http://old:8000/v1",
            "cpu 128+64 x1 old:8000",
            id="server",
        ),
        pytest.param(
            "model=fc platform.threads=2", "platform.threads", "2", "cpu threads=2", id="threads"
        ),
        pytest.param(
            "model=fc optimizer=adam", "optimizer.name", "adam", "cpu adam", id="optimizer"
        ),
        pytest.param(
            "model=fc framework=torch framework.compile=max-autotune",
            "framework.compile",
            "max-autotune",
            "cpu max-autotune torch",
            id="torch.compile",
        ),
    ],
)
def test_the_name_of_a_run_contains_its_settings(
    words: str, key: str, value: str, name: str
) -> None:
    found = point(words)
    assert as_params(point_request(found))[key] == value
    assert name in run_name(found)
    assert run_name(found).endswith(name) or name.endswith(" ")


def test_a_relative_path_is_resolved_against_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert point("model=residual data=images data.path=set").data.path == str(tmp_path / "set")  # type: ignore[union-attr]


def test_a_transport_of_a_framework_selects_the_framework() -> None:
    assert point(f"{CHANNEL} model.transport=gloo").framework.name == "torch"
    assert point(f"{CHANNEL} framework=torch model.transport=tcp").framework.name == "torch"
    assert point(f"{CHANNEL} model.transport=tcp").model.size == "tcp latency 1024 B"
    assert not point(f"{CHANNEL} measure.profile=true").measure.profile, (
        "measure=quick sets profile=true, which a channel ignores"
    )


def test_messages_cost_only_bytes() -> None:
    costs = step_costs(point(f"{CHANNEL} model.bytes=12345"))

    assert (costs.flops_per_step, costs.parameters, costs.memory_lower_bound_bytes) == (0, 0, 12345)


#: A step of 2 ms, with interval. Expected values of transfers are computed by hand.
STEP_TIMES = {"step_time_ms": 2.0, "step_time_low_ms": 1.6, "step_time_high_ms": 2.5}


def test_a_round_trip_takes_a_step() -> None:
    latency_point = point(f"{CHANNEL} model.bytes=1000")

    latency = transfer_metrics(latency_point.model, STEP_TIMES)

    assert (latency["round_trip_us"], latency["transfer_us"], latency["transfer_high_us"]) == (
        2000,
        1000,
        1250,
    )
    assert latency["sent_bytes_per_second"] == pytest.approx(1e6)


def test_a_step_sends_a_window_of_messages() -> None:
    window_point = point(f"{CHANNEL} model.pattern=bandwidth model.bytes=1000 model.window=50")

    bandwidth = transfer_metrics(window_point.model, STEP_TIMES)

    assert bandwidth["messages_per_second"] == pytest.approx(25_000)
    assert (
        bandwidth["messages_per_second_low"],
        bandwidth["messages_per_second_high"],
    ) == pytest.approx((20_000, 31_250))


def test_an_all_reduce_has_a_bus_bandwidth() -> None:
    all_reduce = point(
        f"{CHANNEL} model.transport=gloo model.pattern=all_reduce model.bytes=4000 model.processes=4"
    )

    assert transfer_metrics(all_reduce.model, {"step_time_ms": 2.0}) == pytest.approx(
        {
            "transfer_us": 2000,
            "messages_per_second": 500,
            "sent_bytes_per_second": 2e6,
            "bus_bytes_per_second": 3e6,
        }
    )


def test_a_broadcast_sends_every_byte_once() -> None:
    assert bus_factor("broadcast", 4) == 1.0


def test_a_quick_measurement_of_a_scenario_is_short() -> None:
    with initialize_config_dir(str(CONFIG), **VERSION_BASE):
        register_options()
        for words, seconds in (
            (["measure=quick"], 15),
            (["measure=quick", "server.min_seconds=40"], 40),
            ([], 600),
        ):
            config = plain(compose("config", ["scenario=server", "mode=inference", *words]))
            assert read_point(config).workload.min_seconds == seconds


def test_only_a_target_interval_changes_the_stored_protocol_identity() -> None:
    default = Measure()
    keys = ("min_seconds", "min_blocks", "max_seconds", "block_seconds", "warmup_seconds")

    assert protocol_id(default) == digest({key: getattr(default, key) for key in keys})
    assert protocol_id(dataclasses.replace(default, relative_interval=0.02)) != protocol_id(default)
    assert protocol_id(dataclasses.replace(default, reference=True)) == protocol_id(default)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("8GiB", 8 * 2**30, id="binary unit"),
        pytest.param("500 MB", 500_000_000, id="decimal unit after a space"),
        pytest.param("1.5kib", 1536, id="fraction in lower case"),
        pytest.param(1000, 1000, id="bytes"),
        pytest.param("auto", None, id="auto"),
    ],
)
def test_memory_sizes_are_read_in_bytes(text: str | int, count: int | None) -> None:
    assert memory_bytes(text, "key") == count
