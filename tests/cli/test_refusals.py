"""Invalid command lines.

The command prints one line with the remedy, exits with code 2 and creates no store. If only some
points of a sweep cannot be measured, that is an outcome of those points and not an error.
"""

import re
import shlex
from pathlib import Path

import pytest

from paradnn.config.data import ImageFiles
from paradnn.config.point import Platform, Point
from paradnn.core.errors import ConfigError
from paradnn.families.fc import FullyConnected
from paradnn.session.environments import HOSTS, require_hosts, require_possible
from paradnn.worker.process_group import KEY
from paradnn.workloads.channel import CHANNEL, Communication
from tests.conftest import TINY, Store, run

WITHOUT_TPU = not any(Path("/dev").glob("accel*")) and not Path("/dev/vfio").exists()
#: Pairs of a command line and the start of its error line; {point} is replaced by a tiny point.
REJECTED = [
    ("trian", "trian: unknown command; did you mean train? choose one of train, watch, plan"),
    ("analysis hetmap", "COMMAND=hetmap: no such choice; did you mean heatmap? choose one of "),
    ("analysis runs --famly fc", "unrecognized arguments: --famly fc; did you mean --family? "),
    ("train model=LSTM", "model=LSTM: no such option; did you mean lstm? choose one of "),
    ("train Batch_Size=3", "Batch_Size=3: no such key; did you mean batch_size? "),
    ("stacks mkae x", "command=mkae: no such choice; did you mean make? choose one of list, make"),
    (
        "analysis memory --figure x.png",
        ("unrecognized arguments: --figure x.png; python -m analysis memory --help shows how"),
    ),
    (
        "analysis sensitivity --interactoins",
        "unrecognized arguments: --interactoins; did you mean --interactions? python -m analysis ",
    ),
    (
        "analysis latency --metric x",
        "unrecognized arguments: --metric x; python -m analysis latency --help shows how",
    ),
    ("watch --intervall 2", "unrecognized arguments: --intervall 2; did you mean --interval? "),
    ("watch --interval 0", "--interval=0: must be positive"),
    ("watch --store /nowhere/mlflow.db", "no tracking store at "),
    (
        "list modles",
        "list=modles: no such kind; did you mean models? choose one of models, presets",
    ),
    (
        "list keys batchsize",
        "no keys with 'batchsize'; did you mean batch_size? paradnn list keys shows all",
    ),
    ("list hydra", "list=hydra: no such kind"),
    ("completion tcsh", "completion=tcsh: no such shell; choose one of bash, zsh, fish"),
    ("sync /nowhere", "/nowhere: no such folder"),
    (
        "ui --store sqlite:////nowhere/mlflow.db",
        "no tracking store at sqlite:////nowhere/mlflow.db: measure first",
    ),
    ("ui --store http://me:secret@127.0.0.1:1", "cannot open http://***@127.0.0.1:1"),
    ("ui --store /none", "no tracking store at /none"),
    ("plan -m modl=fc", "modl=fc: no such key; did you mean model"),
    ("plan experiment=paper_fc", "experiment=paper_fc: describes a sweep; add -m"),
    ("plan plan.hosts=0", "plan.hosts=0"),
    ("plan plan.hosts=1,many", "plan.hosts=many"),
    ("plan plan.out=/no/such/folder/x.csv", "plan.out"),
    ("plan plan.when=now", "plan.when=now: no such key; keys of plan"),
    ("plan {point} platform=gpu", "platform=gpu: "),
    (
        "plan -m {point} platform.cores=4095",
        "platform.cores=4095: core 4095 is outside this process's affinity mask",
    ),
    (
        "plan mode=inference scenario=server",
        "server.rate=peak: cannot be planned, because the number of rates that the search tries",
    ),
    (
        "plan batch_size=largest",
        ("batch_size=largest: is a search, which only paradnn train runs; give numbers here"),
    ),
    (
        "plan task=learn",
        "task=learn: cannot be planned, because the number of epochs of a training is unknown",
    ),
    ("ceilings platform.threads=0", "platform.threads=0"),
    ("ceilings framework.name=torch", "framework.name=torch"),
    ("ceilings nothing=1", "nothing=1"),
    ("ceilings compile=fast", "compile=fast"),
    ("ceilings -m platform.threads=1,2", ""),
    (
        "ceilings experiment=quick",
        "experiment=quick: is a sweep, but this command measures the peak performance of one platform",
    ),
    ("train nodes=64", "nodes=64: no such key; did you mean model.nodes?"),
    ("train resume=again", "resume=again: no such choice; choose one of true, false, retry"),
    ("train model.nodez=1", "model.nodez=1: no such key; did you mean model.nodes?"),
    ("train +model.x=3", "model.x=3: no such key; keys of model: name, layers"),
    ("train model.nodes=1,2", "model.nodes=1,2: several values are a sweep; add -m"),
    (
        "train hydra/job_logging=nope",
        "hydra/job_logging=nope: no such option; did you mean none? choose one of def",
    ),
    ("train software.python=/nope", "software.python=/nope: does not run"),
    ("train tracking.uri=http://me:secret@127.0.0.1:9", "tracking.uri=http://***@127.0.0.1:9: "),
    (
        "train tracking.uri=sqlite:////proc/x/y.db",
        "tracking.uri=sqlite:////proc/x/y.db: /proc/x cannot be created",
    ),
    (
        "train -m model=fc,rnn model.nodes=8",
        "model.nodes=8: no such key; keys of model=rnn are name, layers",
    ),
    (
        "train experiment=paper_gan",
        "experiment=paper_gan: no such option; did you mean paper_cnn or paper_rnn? cho",
    ),
    (
        "train model=/nets/a.onnx",
        "model=/nets/a.onnx: is a file, not a family; write model=onnx model.path=/nets/a.onnx "
        "framework=onnxruntime",
    ),
    (
        "train -m model=fc,net.PT2",
        "model=net.PT2: is a file, not a family; write model=exported model.path=net.PT2",
    ),
    ("train model=null", "model=null: no such option; choose one of alexnet, "),
    ("train framework=2", "framework=2: no such option; choose one of jax, litert, "),
    (
        "train 'model.layers=${foo}'",
        "model.layers: Interpolation key 'foo' not found; write a value, or ${KEY} with the name",
    ),
    ("ui --port x", "--port=x: expects a whole number; for example, write --port 5"),
    ("gate --base", "--base: needs a value; python -m paradnn.compare.gate --help shows how"),
    ("train ~model", "~model: a group cannot be removed; choose one of alexnet, "),
    ("train batch=64", "batch=64: no such key; did you mean batch_size or server.batch? "),
    ("train -m model=fc,lstn", "model=lstn: no such option; did you mean lstm? choose one of "),
    (
        "train model=lstm model.nodes=64",
        "model.nodes=64: is not a key of model=lstm, whose keys are model.layers, ",
    ),
    (
        "train data.path=/tmp",
        "data.path=/tmp: is not a key of data=synthetic, which has no keys; it belongs to data=",
    ),
    ("train server.rate=5", "server.rate=5: is a key of scenario=server; add scenario=server"),
    (
        "train -m mode=inference scenario=single_stream,offline offline.min_seconds=3",
        "offline.min_seconds=3: is a key of scenario=offline only; run a separate comm",
    ),
    ("train modle=fc", "modle=fc: no such key; did you mean model? "),
    ("train --batch_size 64", "--batch_size: keys are written without dashes: batch_size=64"),
    ("train --multirum batch_size=64,128", "--multirum: no such option; did you mean --multirun? "),
    ("train --cfg jobs", "--cfg=jobs: no such choice; choose one of job, hydra, all"),
    ("train --cfg model=fc", "--cfg: needs a value; choose one of job, hydra, all"),
    ("train --config-dir --cfg job", "--config-dir: needs a value; write --config-dir VALUE"),
    ("train model=glob(r*)", "model=glob(r*): several values are a sweep; add -m"),
    ("train -m model=glob(zzz*)", "model=glob(zzz*): matches no option; choose among "),
    ("train -m experiment=glob(*)", "experiment=candle,"),
    (
        "train -m hydra/sweeper=optuna",
        "hydra/sweeper=optuna: is not a sweeper that ParaDnn supports",
    ),
    ("train -m hydra.sweeper.params=x", "hydra.sweeper.params=x: is not a mapping of axes"),
    (
        "train batch_size=64, 128",
        "batch_size=64, 128: values must not be separated by spaces; write batch_size=64,128",
    ),
    (
        "train batch_size=64,",
        "batch_size=64,: values must not be separated by spaces; write batch_size=64",
    ),
    ("train lstm", "lstm: is not an override; write key=value, such as batch_size=64"),
    ("train sweep.plan=zzz", "sweep.plan=zzz: is internal; omit it"),
    (
        "train -m hydra/launcher=slurm",
        "hydra/launcher=slurm: is not a launcher that can start ParaDnn; ",
    ),
    (
        "train hydra/launcher=joblib",
        "hydra/launcher=joblib: starts the processes of a sweep, but this command has no sweep; add -m",
    ),
    (
        "train -m hydra/launcher=joblib hydra/sweeper=basic",
        "hydra/launcher=joblib: cannot be combined with hydra/sweeper=basic; omit hydra/sweeper=basic",
    ),
    (
        "train -m sweep.drivers=2 batch_size=8,16",
        "sweep.drivers=2: no launcher starts the drivers, and PARADNN_SWEEP is not set; add "
        "hydra/launcher",
    ),
    (
        "train measure.processes=8 measure.max_processes=4 measure.relative_interval=0.02",
        "measure.max_processes=4:",
    ),
    (
        "train -m experiment=quick,paper_fc",
        "experiment=quick,paper_fc: only one experiment can run",
    ),
    (
        "train -m sweep.points=9",
        (
            "sweep.points=9: ends an adaptive sweep, but this sweep measures all points; add sweep.desi"
        ),
    ),
    ("train -m sweep.error=0.1", "sweep.error=0.1: ends an adaptive sweep"),
    ("train -m sweep.design=adaptive sweep.error=-1", "sweep.error=-1.0: must be at least 0.001"),
    ("train -m sweep.design=adaptive sweep.points=0", "sweep.points=0: must be at least 1"),
    (
        "train -m sweep.design=adaptive sweep.minutes=soon",
        "sweep.minutes=soon: expects a finite number",
    ),
    (
        "train -m sweep.design=clever",
        "sweep.design=clever: no such choice; choose one of grid, adaptive",
    ),
    ("train sweep.design=adaptive", "sweep.design=adaptive: describes a sweep; add -m"),
    (
        "train -m batch_size=largest,64",
        "batch_size=largest,64: combines a search with fixed sizes; give either",
    ),
    (
        "train -m batch_size=largest sweep.design=adaptive",
        "batch_size=largest: is a search, which an adaptive sweep cannot contain",
    ),
    ("train batch_size=large", "batch_size=large: expects a whole number"),
    ("train batch_size=largest largest.step_ms=-1", "largest.step_ms=-1.0: must be at least"),
    (
        "train largest.of=model.width",
        "largest.of=model.width: is not a size of model=fc; choose one of model.layers, ",
    ),
    (
        "train largest.of=model.nodes batch_size=largest",
        "batch_size=largest: is a search, which only paradnn train runs",
    ),
    (
        "compare compile=graph compile=fast",
        "compile=fast: no such choice; choose one of graph, xla, eager",
    ),
    (
        "compare framework=jax framework=mxnet",
        "framework=mxnet: no such option; choose one of jax, litert,",
    ),
    (
        "compare batch_size=256 compile=graph",
        "sides=fc 4x1024 b256 float32 cpu: is the configuration of both sides",
    ),
    (
        "train model=resnet50 data=images data.path=/nope",
        "data.path=/nope: there is no such file or folder; give a",
    ),
    (
        "train -m model=resnet50 data=images data.path=/,/nope",
        "data.path=/nope: there is no such file or folder",
    ),
    (
        "train platform.cores=9999",
        ("platform.cores=9999: core 9999 is outside this process's affinity mask; choose from 0"),
    ),
    (
        "train model=channel hosts=2",
        "hosts=2: this session has 1 host; list the other hosts in PARADNN_HOSTS",
    ),
    (
        "train -m model=residual data=images,synthetic data.examples=8",
        "data.examples=8: is not a key of data=images,synthetic, which has no keys",
    ),
    (
        "train elsewhere=/etc",
        (
            "elsewhere=/etc: supports only forward passes of inference engines, not a training "
            "step of framework=tensorflow; set mode=inference, and framework to one of "
        ),
    ),
    (
        "train framework=onnxruntime mode=inference elsewhere=/etc",
        "elsewhere=/etc: is a folder with other files; name a new",
    ),
    ("train learn.target=0.9", "learn.target=0.9: is a key of task=learn; add task=learn"),
    (
        "train -m model.nodes=32,64 batch_size=1,2,3 sweep.zip=[model.nodes,batch_size]",
        (
            "sweep.zip=model.nodes,batch_size: the axes have different numbers of values: "
            "model.nodes has 2, batch_size has 3; give"
        ),
    ),
    (
        "train -m model.nodes=32,64 batch_size=1,2 sweep.zip=[model.nodes,seed]",
        (
            "sweep.zip=seed: is not an axis of this sweep; choose from its axes: model.nodes, batch_size"
        ),
    ),
    (
        "train -m model.nodes=32,64 batch_size=1,2 sweep.zip=[seed,replicate]",
        (
            "sweep.zip=seed: is not an axis of this sweep; choose from its axes: model.nodes, batch_size"
        ),
    ),
    (
        (
            "train -m model.nodes=32,64 batch_size=1,2 "
            "sweep.zip=[[model.nodes,batch_size],[batch_size,seed]]"
        ),
        "sweep.zip=batch_size: is listed more than once; list each axis once",
    ),
    (
        "train -m model.nodes=32,64 batch_size=1,2 sweep.zip=[model.nodes,8]",
        "sweep.zip=['model.nodes', 8]: expects a list of keys, or a list of such lists",
    ),
    (
        "train -m model.nodes=32,64 batch_size=1,2 sweep.zip=model.nodes",
        "sweep.zip=model.nodes: expects a list of keys, or a list of such lists",
    ),
    ("train -m 'batch_size=interval(1,9)'", "batch_size=interval(1,9): is a continuous range"),
    (
        "train -m 'batch_size=range(1,20000000)'",
        "batch_size=range(1,20000000): has more than 1,000,000 values",
    ),
    (
        "train -m 'batch_size=range(1,2000)' 'model.nodes=range(1,2000)'",
        "sweep=3,996,001 points: is more than 1,000,000",
    ),
    ("train -m sweep.order=given,random", "sweep.order=given,random: cannot be an axis of a sweep"),
    ("train -m experiment=paper_fc model=lstm", "model=lstm: is not a family of this experiment"),
    ("train -m learning=zzz", "learning=zzz: "),
    ("train -m sweep.plan=zzz", "sweep.plan=zzz: "),
    ("plan -m learning=zzz", "learning=zzz: "),
    ("plan -m sweep.plan=zzz", "sweep.plan=zzz: "),
    ("ceilings learning=zzz", "learning=zzz: "),
    ("ceilings sweep.plan=zzz", "sweep.plan=zzz: "),
    ("compare compile=graph compile=xla -- learning=zzz", "learning=zzz: "),
    ("compare compile=graph compile=xla -- sweep.plan=zzz", "sweep.plan=zzz: "),
]
REJECTED += [
    (f"plan plan.hosts={5000 * '9'}", "plan.hosts=99"),
    *(
        (f"{command} model.nodes={3000 * '['}{3000 * ']'}", f"model.nodes={100 * '['}")
        for command in ("train", "plan -m", "compare model.nodes=1")
    ),
]
TPU_ERROR = "platform=tpu: this machine has no TPU"
if WITHOUT_TPU:
    REJECTED += [
        ("train -m platform=tpu batch_size=4,8", TPU_ERROR),
        ("ceilings platform=tpu", TPU_ERROR),
    ]


@pytest.mark.parametrize(
    ("words", "line"), [pytest.param(words, line, id=words[:60]) for words, line in REJECTED]
)
def test_invalid_command_lines_print_one_line(words: str, line: str, tmp_path: Path) -> None:
    command = words.replace("{point}", " ".join(TINY))
    done = run(
        ["paradnn.__main__", *shlex.split(command)],
        Store(tmp_path),
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    assert not list(tmp_path.iterdir()), "a rejected command must not create a store"


requires_no_tpu = pytest.mark.skipif(not WITHOUT_TPU, reason="this machine may have a TPU")
CPU_POINT = Point(FullyConnected())
TPU_POINT = Point(FullyConnected(), platform=Platform("tpu"))


@pytest.mark.parametrize(
    ("hosts", "key", "message"),
    [
        pytest.param(
            "10.0.0.2:5000",
            "",
            "PARADNN_HOSTS_KEY='': is required if PARADNN_HOSTS is set; set it to the value",
            id="no key",
        ),
        pytest.param(
            "node2",
            "x",
            "PARADNN_HOSTS=node2: 'node2' is not HOST:PORT; list the address on which",
            id="no port",
        ),
        pytest.param(
            "node2:5000,",
            "x",
            "PARADNN_HOSTS=node2:5000,: '' is not HOST:PORT; list",
            id="trailing comma",
        ),
        pytest.param(
            "node2:70000",
            "x",
            "PARADNN_HOSTS=node2:70000: 'node2:70000' is not HOST:PORT; list",
            id="port above 65535",
        ),
        pytest.param(
            "node2:0", "x", "PARADNN_HOSTS=node2:0: 'node2:0' is not HOST:PORT; list", id="port 0"
        ),
        pytest.param(
            "[fe80::2%eth0]:5000",
            "x",
            "PARADNN_HOSTS=[fe80::2%eth0]:5000: '[fe80::2%eth0]:5000' is not HOST:PORT; list",
            id="IPv6 zone",
        ),
        pytest.param(
            "::1:5000",
            "x",
            "PARADNN_HOSTS=::1:5000: '::1:5000' is not HOST:PORT; list",
            id="IPv6 without brackets",
        ),
        pytest.param(
            "node2:5000,[2001:db8::3]:65535",
            "x",
            "hosts=4: this session has 3 hosts; ",
            id="too few hosts",
        ),
    ],
)
def test_invalid_hosts_are_reported(hosts: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_hosts([4], {HOSTS: hosts, KEY: key})


def test_points_without_hosts_are_outcomes_if_other_points_can_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(HOSTS, raising=False)
    two = Point(Communication(), CHANNEL, batch_size=1, hosts=2)
    require_possible([CPU_POINT, two])
    with pytest.raises(ConfigError, match="hosts=2: this session has 1 host; "):
        require_possible([two])


@requires_no_tpu
def test_points_without_a_device_are_outcomes_if_other_points_can_be_measured(
    tmp_path: Path,
) -> None:
    require_possible([CPU_POINT, TPU_POINT])
    with pytest.raises(ConfigError):
        require_possible([TPU_POINT])

    require_possible([Point(FullyConnected(), data=ImageFiles(path=str(tmp_path)))])


@requires_no_tpu
def test_environment_variables_of_tensorflow_do_not_imply_a_tpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TPU_ML_PLATFORM", "Tensorflow")  # as importing TensorFlow does
    with pytest.raises(ConfigError, match="this machine has no TPU"):
        require_possible([TPU_POINT])

    monkeypatch.setenv("TPU_WORKER_ID", "0")  # as Cloud TPU machines do
    require_possible([TPU_POINT])
