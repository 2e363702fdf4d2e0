"""What no command takes, as it is typed: one line with the remedy, exit code 2, and no store is made."""

import shlex
from pathlib import Path

import pytest

from tests.conftest import TINY, Store, run

WITHOUT_TPU = not any(Path("/dev").glob("accel*")) and not Path("/dev/vfio").exists()
POINT = " ".join(TINY)
REFUSED = [
    ("trian", "trian: did you mean train? choose one of train, watch, plan"),
    ("analysis hetmap", "COMMAND=hetmap: no such choice; did you mean heatmap? choose one of "),
    ("analysis runs --famly fc", "unrecognized arguments: --famly fc; did you mean --family? "),
    ("train model=LSTM", "model=LSTM: no such option; did you mean lstm? choose one of "),
    ("train Batch_Size=3", "Batch_Size=3: no such key; did you mean batch_size? "),
    ("stacks mkae x", "command=mkae: no such choice; did you mean make? choose one of list, make"),
    ("watch --intervall 2", "unrecognized arguments: --intervall 2; did you mean --interval? "),
    ("watch --interval 0", "--interval=0: must be positive"),
    ("watch --store /nowhere/mlflow.db", "no tracking store at "),
    ("list modles", "list=modles: no such kind; did you mean models? choose one of models, presets"),
    ("list keys batchsize", "no keys with 'batchsize'; did you mean batch_size? paradnn list keys shows all"),
    ("list hydra", "list=hydra: no such kind"),
    ("sync /nowhere", "/nowhere: no such folder"),
    ("ui --store sqlite:////nowhere/mlflow.db", "no tracking store at sqlite:////nowhere/mlflow.db: measure first"),
    ("ui --store http://me:secret@127.0.0.1:1", "cannot open http://***@127.0.0.1:1"),
    ("ui --store /none", "no tracking store at /none"),
    ("plan -m modl=fc", "modl=fc: no such key; did you mean model"),
    ("plan experiment=paper_fc", "experiment=paper_fc: describes a sweep; add -m"),
    ("plan plan.hosts=0", "plan.hosts=0"),
    (f"plan plan.hosts={5000 * '9'}", "plan.hosts=99"),
    ("plan plan.hosts=1,many", "plan.hosts=many"),
    ("plan plan.out=/no/such/folder/x.csv", "plan.out"),
    ("plan plan.when=now", "plan.when=now: no such key; keys of plan"),
    (f"plan {POINT} platform=gpu", "platform=gpu: "),
    (f"plan -m {POINT} platform.cores=4095", "platform.cores=4095: core 4095 is none that this process may use"),
    ("plan mode=inference scenario=server", "server.rate=peak: has no forecast: how many rates a search tries"),
    ("plan batch_size=largest", "batch_size=largest: is what python -m paradnn.train searches for; give numbers here"),
    ("plan task=learn", "task=learn: has no forecast: how many epochs a training takes is not known before"),
    ("ceilings platform.threads=0", "platform.threads=0"),
    ("ceilings framework.name=torch", "framework.name=torch"),
    ("ceilings nothing=1", "nothing=1"),
    ("ceilings compile=fast", "compile=fast"),
    ("ceilings -m platform.threads=1,2", ""),
    ("ceilings experiment=quick", "experiment=quick: is a sweep; give each platform a command of its own"),
    ("train nodes=64", "nodes=64: no such key; did you mean model.nodes?"),
    ("train resume=again", "resume=again: no such choice; choose one of true, false, retry"),
    ("train model.nodez=1", "model.nodez=1: no such key; did you mean model.nodes?"),
    ("train +model.x=3", "model.x=3: no such key; keys of model: name, layers"),
    ("train model.nodes=1,2", "model.nodes=1,2: several values are a sweep; add -m"),
    ("train hydra/job_logging=nope", "hydra/job_logging=nope: no such option; did you mean none? choose one of def"),
    ("train software.python=/nope", "software.python=/nope: does not run"),
    ("train tracking.uri=sqlite:////proc/x/y.db", "tracking.uri=sqlite:////proc/x/y.db: /proc/x cannot be made"),
    ("train -m model=fc,rnn model.nodes=8", "model.nodes=8: no such key; keys of model=rnn are name, layers"),
    ("train experiment=paper_gan", "experiment=paper_gan: no such option; did you mean paper_cnn or paper_rnn? cho"),
    ("train -m model=fc,lstn", "model=lstn: no such option; did you mean lstm? choose one of "),
    ("train model=lstm model.nodes=64", "model.nodes=64: no key of model=lstm, whose keys are model.layers, model."),
    ("train data.path=/tmp", "data.path=/tmp: no key of data=synthetic, which has none; it belongs to data=cifar10"),
    ("train server.rate=5", "server.rate=5: is a key of scenario=server; add scenario=server"),
    ("train -m mode=inference scenario=single_stream,offline offline.min_seconds=3", "offline.min_seconds=3: is a"),
    ("train modle=fc", "modle=fc: no such key; did you mean model? "),
    ("train --batch_size 64", "--batch_size: keys are written without dashes: batch_size=64"),
    ("train --multirum batch_size=64,128", "--multirum: no such option; did you mean --multirun? "),
    ("train --cfg jobs", "--cfg=jobs: no such choice; choose one of job, hydra, all"),
    ("train batch_size=64, 128", "batch_size=64, 128: values stand without blanks between them: batch_size=64,128"),
    ("train batch_size=64,", "batch_size=64,: values stand without blanks between them: batch_size=64"),
    ("train lstm", "lstm: is no override; write key=value, such as batch_size=64"),
    ("train sweep.plan=zzz", "sweep.plan=zzz: is internal; leave it out"),
    ("train hydra/launcher=slurm", "hydra/launcher=slurm: nothing is launched; start the same command on every hos"),
    ("train measure.processes=8 measure.max_processes=4 measure.relative_interval=0.02", "measure.max_processes=4:"),
    ("train -m experiment=quick,paper_fc", "experiment=quick,paper_fc: one experiment at a time"),
    ("train -m sweep.points=9", "sweep.points=9: ends an adaptive sweep, and this one measures all; add sweep.desi"),
    ("train -m sweep.error=0.1", "sweep.error=0.1: ends an adaptive sweep"),
    ("train -m sweep.design=adaptive sweep.error=-1", "sweep.error=-1.0: must be at least 0.001"),
    ("train -m sweep.design=adaptive sweep.points=0", "sweep.points=0: must be at least 1"),
    ("train -m sweep.design=adaptive sweep.minutes=soon", "sweep.minutes=soon: expects a finite number"),
    ("train -m sweep.design=clever", "sweep.design=clever: no such choice; choose one of grid, adaptive"),
    ("train sweep.design=adaptive", "sweep.design=adaptive: describes a sweep; add -m"),
    ("train -m batch_size=largest,64", "batch_size=largest,64: is a search and a number; give one of them"),
    ("train -m batch_size=largest sweep.design=adaptive", "batch_size=largest: is no axis of an adaptive sweep"),
    ("train batch_size=large", "batch_size=large: expects a whole number"),
    ("train batch_size=largest largest.step_ms=-1", "largest.step_ms=-1.0: must be at least"),
    ("train largest.of=model.width", "largest.of=model.width: is no size of model=fc; choose one of model.layers, "),
    ("train largest.of=model.nodes batch_size=largest", "batch_size=largest: is what python -m paradnn.train searches"),
    ("compare compile=graph compile=fast", "compile=fast: no such choice; choose one of graph, xla, eager"),
    ("compare framework=jax framework=mxnet", "framework=mxnet: no such option; choose one of jax, litert,"),
    ("compare batch_size=256 compile=graph", "sides=fc 4x1024 b256 float32 cpu: is the same point on both"),
    *(
        (f"{command} {word}", f"{word}: ")
        for command in ("train -m", "plan -m", "ceilings", "compare compile=graph compile=xla --")
        for word in ("learning=zzz", "sweep.plan=zzz")
    ),
    ("train model=resnet50 data=images data.path=/nope", "data.path=/nope: there is no such file or folder; give a"),
    *(
        (f"{command} model.nodes={3000 * '['}{3000 * ']'}", f"model.nodes={100 * '['}")
        for command in ("train", "plan -m", "compare model.nodes=1")
    ),
    ("train -m model=resnet50 data=images data.path=/,/nope", "data.path=/nope: there is no such file or folder"),
    ("train platform.cores=9999", "platform.cores=9999: core 9999 is none that this process may use; choose of 0"),
    ("train model=channel hosts=2", "hosts=2: this session has 1; docs/clusters.md says how points come to have"),
]
TPU = "platform=tpu: this machine has no TPU"
REFUSED += [("train -m platform=tpu batch_size=4,8", TPU), ("ceilings platform=tpu", TPU)] * WITHOUT_TPU


@pytest.mark.parametrize(("words", "line"), REFUSED, ids=[f"{words[:60]}" for words, _ in REFUSED])
def test_what_no_command_takes_is_one_line(words: str, line: str, tmp_path: Path) -> None:
    done = run(["paradnn.__main__", *shlex.split(words)], Store(tmp_path), MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "no store was made"
