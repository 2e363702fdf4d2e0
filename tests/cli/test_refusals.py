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
