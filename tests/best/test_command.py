"""`python -m paradnn.best`: real races of tiny points, and their records."""

import json
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paradnn.store.metrics import METRICS
from tests.conftest import TINY, Store, ctrl_c_after_records, run

#: Overrides of a tiny point, without the option that a race sets.
POINT = [entry for entry in TINY if "processes" not in entry]
#: The overrides without the batch size.
MODEL = [entry for entry in POINT if not entry.startswith("batch_size")]
RACE = "paradnn.best.__main__"


@dataclass(frozen=True)
class FinishedRace:
    """A race of eight candidates: batch sizes 4 and 3, one and two devices, CPU and TPU.

    Attributes:
        store: Store of its runs.
        answer: Content of its JSON file.
        output: Printed text.
    """

    store: Store
    answer: dict[str, Any]
    output: str

    @property
    def parent(self) -> dict[str, str]:
        """The run of the race."""
        [parent] = self.store.runs("sweep")
        return parent

    @property
    def candidates(self) -> dict[str, dict[str, Any]]:
        """The candidates of the answer, by their label."""
        return {candidate["candidate"]: candidate for candidate in self.answer["candidates"]}

    def race_metrics(self) -> dict[str, float]:
        """Return the metrics of the parent run."""
        recorded = self.store.values("latest_metrics", self.parent["run_id"])
        return {name: float(str(value)) for name, value in recorded.items()}


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> FinishedRace:
    folder = tmp_path_factory.mktemp("race")
    store = Store(folder)
    shutil.copy(empty_database, folder / "mlflow.db")
    file = folder / "answer.json"
    axes = ["batch_size=4,3", "devices=1,2", "platform=cpu,tpu"]
    options = ["--json", str(file), "--price", "3.6", "--epoch", "1000"]
    done = run([RACE, *options, "--margin", "100%", *axes, *MODEL], store)
    assert done.returncode == 0, done.stderr
    return FinishedRace(store=store, answer=json.loads(file.read_text()), output=done.stdout)


@pytest.mark.framework
def test_every_candidate_has_an_outcome(race: FinishedRace) -> None:
    outcomes = {label: candidate["outcome"] for label, candidate in race.candidates.items()}

    assert outcomes == {
        "batch_size=4 devices=1 platform=cpu": "ok",
        "batch_size=4 devices=2 platform=cpu": "ok",
        "batch_size=3 devices=1 platform=cpu": "ok",
        "batch_size=3 devices=2 platform=cpu": "invalid",
        "batch_size=4 devices=1 platform=tpu": "unavailable",
        "batch_size=4 devices=2 platform=tpu": "unavailable",
        "batch_size=3 devices=1 platform=tpu": "unavailable",
        "batch_size=3 devices=2 platform=tpu": "invalid",
    }


@pytest.mark.framework
def test_every_run_names_its_race(race: FinishedRace) -> None:
    points = race.store.runs()

    assert {point["mlflow.parentRunId"] for point in points} == {race.parent["run_id"]}
    assert {point["race"] for point in points} == {race.parent["sweep_id"]}


@pytest.mark.framework
def test_every_candidate_has_its_runs(race: FinishedRace) -> None:
    points = race.store.runs()

    for label, candidate in race.candidates.items():
        recorded = [point["run_id"] for point in points if point["candidate"] == label]
        if candidate["outcome"] == "ok":
            assert sorted(candidate["runs"]) == sorted(recorded)
        elif candidate["outcome"] == "unavailable":
            assert len(recorded) == 1
        else:
            assert recorded == []


@pytest.mark.framework
def test_values_of_the_best_candidate_follow_from_its_runs(race: FinishedRace) -> None:
    best = race.candidates[race.answer["best"]]
    rates = [
        float(str(race.store.values("latest_metrics", run_id)["examples_per_second"]))
        for run_id in best["runs"]
    ]

    assert len(rates) >= 2

    rate = statistics.geometric_mean(rates)
    assert best["metrics"]["examples_per_second"] == pytest.approx(rate)
    assert best["metrics"]["cost_per_million_examples"] == pytest.approx(1000 / rate, rel=1e-4)
    assert best["low"] < best["value"] < best["high"]


@pytest.mark.framework
def test_the_answer_is_printed_first_and_recorded(race: FinishedRace) -> None:
    first = race.output.splitlines()[0]

    assert first.startswith(f"{race.answer['best']} is fastest: ")
    assert first in race.parent["mlflow.note.content"]
    assert race.parent["best"] == race.answer["best"]
    assert race.parent["status"] == "FINISHED"

    file = race.store.files(race.parent["run_id"]) / "race.json"
    assert json.loads(file.read_text())["candidates"] == race.answer["candidates"]


@pytest.mark.framework
def test_a_race_records_its_size_and_the_lead_of_its_winner(race: FinishedRace) -> None:
    metrics = race.race_metrics()

    assert metrics["race_candidates"] == 8
    assert metrics["race_processes"] == sum(point["outcome"] == "ok" for point in race.store.runs())
    assert metrics["race_lead_low"] < metrics["race_lead"] < metrics["race_lead_high"]


@pytest.mark.framework
def test_a_race_records_all_declared_metrics(race: FinishedRace) -> None:
    declared = {name for name in METRICS if name.startswith("race_")}

    assert {name for name in race.race_metrics() if not name.startswith("points")} == declared


@pytest.mark.framework
def test_an_invalid_candidate_is_printed_with_its_problem(race: FinishedRace) -> None:
    problem = "invalid: devices=2: does not divide batch_size=3"

    assert f"batch_size=3 devices=2 platform=cpu: {problem}" in race.output


@pytest.mark.framework
def test_the_time_of_an_epoch_is_printed_on_request(race: FinishedRace) -> None:
    assert "epoch" in race.output


@pytest.mark.framework
def test_an_interrupted_race_prints_the_best_so_far(store: Store, tmp_path: Path) -> None:
    options = ["--json", str(tmp_path / "answer.json")]

    with ctrl_c_after_records(2):
        done = run([RACE, *options, "compile=graph,eager,xla", *POINT], store)

    assert done.returncode == 130, done.stderr

    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["interrupted"]
    assert answer["verdict"] == "undecided"
    assert done.stdout.startswith(f"undecided: {answer['best']} ")
    assert "not measured, the time ran out" not in done.stdout
    assert "not measured: the race was interrupted" in done.stdout
    assert "; 1 not measured" not in done.stdout
    assert "interrupted; all finished measurements are recorded" in done.stderr

    [parent] = store.runs("sweep")
    assert parent["status"] == "KILLED"


@pytest.mark.framework
def test_a_race_without_a_measurable_candidate_has_no_answer(store: Store) -> None:
    done = run(
        [RACE, "model.nodes=2000000,3000000", "model.layers=2", *POINT[2:]],
        store,
    )

    assert done.returncode == 1
    assert done.stdout.startswith("no answer: every candidate is excluded.")
    assert {point["outcome"] for point in store.runs()} == {"oom_predicted"}
    assert "model.nodes=2000000: oom_predicted: needs at least " in done.stdout


#: Two valid candidates.
TWO_CANDIDATES = "model=fc compile=graph,xla"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            "model=fc",
            "candidates=model=fc: is only one candidate; give a key several values",
            id="one candidate",
        ),
        pytest.param(
            "model=fc seed=range(0,1000)",
            "candidates=1,000: exceeds the maximum of 500 candidates; give fewer",
            id="too many candidates",
        ),
        pytest.param(
            "model=fc compile=graph,fast",
            "compile=fast: no such choice; choose one of graph, xla, eager",
            id="misspelled value",
        ),
        pytest.param(
            "model=fc batch_size=4,8 devices=1,3",
            "devices=3: does not divide batch_size=",
            id="value that is never valid",
        ),
        pytest.param(
            "model=fc compile=fast,faster", "compile=fast: no such choice", id="no valid value"
        ),
        pytest.param(
            "modle=fc compile=graph,xla",
            "modle=fc: no such key; did you mean model?",
            id="misspelled key",
        ),
        pytest.param(
            "model=fc mode=train,inference",
            "mode=inference,train: selects different kinds of work",
            id="two kinds of work",
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --for cost",
            "--for=cost: needs a price, but none is known; add --price",
            id="no price",
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --price -1",
            "--price=-1: is not a positive price",
            id="negative price",
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --price nowhere", "--price=nowhere: ", id="missing price table"
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --p99 20ms",
            "--p99=20ms: limits the time of single steps, which is recorded only in inference; add mode=inference",
            id="p99 of a training",
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --p99 soon", "--p99=soon: is not a time", id="p99 not a time"
        ),
        pytest.param(
            f"{TWO_CANDIDATES} --memory much",
            "--memory=much: is not a memory size",
            id="memory not a size",
        ),
    ],
)
def test_invalid_input_prints_one_line(words: str, message: str, store: Store) -> None:
    done = run([RACE, *words.split()], store)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
