"""A kind of work: what a point does with its model, from the keys that ask for it to the words that
are said of it.

Each kind is one file or folder in `paradnn/workloads`, or a module behind an entry point of the
group `paradnn.workloads`. Its class is a frozen dataclass whose fields are its options; the module
holds one object of it:

    @dataclass(frozen=True)
    class Idle(Workload):
        name, key, group = "idle", "task", "idle"      # asked for by task=idle, with keys idle.seconds and so on
        seconds: float = option(1.0, "how long it does nothing", low=0.0)

        def measure(self, run: PointRun) -> None: ...

    IDLE = Idle()

Driver and worker both import it: it needs the standard library alone, and imports the rest within
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from paradnn.core.errors import ConfigError
from paradnn.core.metric import Metric
from paradnn.core.registry import Registry
from paradnn.core.schema import read

# What a kind of work is given, for its annotations: it is made on the floors above, which are not
# imported.
if TYPE_CHECKING:
    from paradnn.config.outcome import PointResult as PointResult
    from paradnn.config.point import Point as Point
    from paradnn.core.layers import Costs as Costs
    from paradnn.core.messages import Answer as Answer
    from paradnn.families import Model as Model
    from paradnn.session.measured import Measured as Measured
    from paradnn.worker.point import PointRun as PointRun
else:
    PointResult = Point = Costs = Answer = Model = Measured = PointRun = Any

#: The keys that say which kind of work a point is, and what they say where they ask for none in
#: particular.
DEFAULT_KEYS: Mapping[str, str] = {"mode": "train", "task": "step", "scenario": "closed"}
#: In this order they decide; a family of models may have a kind of work of its own.
_DECIDE = ("scenario", "task", "model", "mode")
AnyMessage = TypeVar("AnyMessage", bound="WorkloadMessage")


class PointEnded(Exception):
    """A point ends here, with an outcome of its own; the text says why in one line."""

    outcome: str


class UnavailableError(PointEnded):
    """The device or software that the point asks for is not there."""

    outcome = "unavailable"


@contextmanager
def refused(what: str, *errors: type[Exception], remedy: str = "") -> Iterator[None]:
    """UnavailableError where one of these is raised: its first line says why."""
    try:
        yield
    except errors as error:
        line = (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
        raise UnavailableError(f"{what}: {line}{remedy}") from error


def expect(*rows: tuple[Any, ...]) -> None:
    """Raise ConfigError for the first row (key, value, the one it must have, why, and what to do if
    not to set that) that has another value.
    """
    for key, value, usual, reason, *remedy in rows:
        if value != usual:
            raise ConfigError(key, value, reason, *remedy or [f"set {key}={str(usual).lower()}"])


class WorkloadMessage:
    """What a kind of work sends from worker to driver beside what all do, in its answer or as news
    meanwhile: a frozen dataclass. of: its name there.
    """

    of: ClassVar[str]


def sent(answers: Iterable[Any], kind: type[AnyMessage]) -> list[AnyMessage]:
    """What processes sent of one kind, in their answers."""
    return [answer.work for answer in answers if isinstance(answer.work, kind)]


@dataclass(frozen=True)
class MetricSnapshot:
    """Metrics as they were at a step, such as an epoch, at a time in Unix milliseconds."""

    step: int
    time: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ResultText:
    """What came of the work, for a person: clauses, the most telling first, under a heading of one
    word; replaces: whether nothing is said of the timed steps beside it; verdict: of a line of
    progress, for the headline.
    """

    heading: str
    clauses: Sequence[str]
    replaces: bool = False
    verdict: str = ""


class Workload:
    """One kind of work, with its options. What a kind leaves as it is here, it has in common with a
    step. name: the value of `key` that asks for it. place: in lists. group: below which its own
    keys stand, "": it has none.
    """

    name: ClassVar[str]
    place: ClassVar[int] = 100
    key: ClassVar[str]
    group: ClassVar[str] = ""
    #: Why a point whose other keys say something else is refused, as in "scenario=server is for
    #: inference".
    reason: ClassVar[str] = "has no such"
    #: Metrics of its own (`paradnn.core.metric`), and what its worker sends.
    declares: ClassVar[tuple[Metric, ...]] = ()
    parts: ClassVar[tuple[type[WorkloadMessage], ...]] = ()
    #: What is shown of a run in one number, by metric with its unit, the most telling first; and
    #: rates of its steps.
    headlines: ClassVar[Mapping[str, str]] = {}
    rates: ClassVar[Mapping[str, str]] = {}
    #: Metrics that choices of platform are judged by: cost, what takes its place without prices,
    #: and what it brings.
    judged_by: ClassVar[tuple[str, ...]] = (
        "cost_per_million_examples",
        "examples_per_second",
        "latency_p50_ms",
    )
    #: Phases of its own, each with the one after which it comes; those of them that may be
    #: disturbed, in words.
    phases: ClassVar[Mapping[str, str]] = {}
    disturbed: ClassVar[Mapping[str, str]] = {}
    #: Inputs that it alone takes, by name (`data=...`).
    inputs: ClassVar[Mapping[str, type[Any]]] = {}
    #: Keys, dotted, that came later, with what was always meant; what its keys are with
    #: measure=quick.
    later: ClassVar[Mapping[str, Any]] = {}
    brief: ClassVar[Mapping[str, Any]] = {}
    #: Whether its worker keeps how far it is in a file (`checkpoint` of the request), from where
    #: another goes on; whether a timed step is the same one with any of its keys; whether a profile
    #: of it shows every product; whether it is timed in blocks alone, so that two points can take
    #: turns.
    resumes: ClassVar[bool] = False
    same_step: ClassVar[bool] = True
    profiled_whole: ClassVar[bool] = True
    by_turns: ClassVar[bool] = False

    @property
    def mode(self) -> str:
        """What is done with the model: train, inference, or a word of its own."""
        return "inference"

    @property
    def unit(self) -> str:
        """What is done in one timed step."""
        return "forward pass"

    @property
    def names(self) -> tuple[str, ...]:
        """The values of its key that ask for it."""
        return (self.name,)

    def keys(self) -> dict[str, Any]:
        """What says in a stored point which work it is, and with which options."""
        words: dict[str, Any] = {**DEFAULT_KEYS, "mode": self.mode}
        words |= {self.key: self.name} if self.key in ("task", "scenario") else {}
        return words | ({self.group: asdict(self)} if self.group else {})  # type: ignore[call-overload]

    def of(self, config: Mapping[str, Any]) -> Self:
        """With the options that a composed configuration, or a request, gives it; raises
        ConfigError.
        """
        if self.group:
            return read(type(self), config.get(self.group, {}), self.group)
        return self

    def check_model(self, model: Model) -> None:
        """Raises ConfigError where a model cannot do this work, whatever else the point is."""

    def check_keys(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError where another key asks for other work, as task=learn with
        mode=inference does.
        """
        for key, value in self.keys().items():
            if key in DEFAULT_KEYS and (asked := config.get(key, value)) != value:
                raise ConfigError(
                    key, asked, f"{self.key}={self.name} {self.reason}", f"set {key}={value}"
                )

    def left_out(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError where a configuration that asks for other work sets keys of this one
        all the same.
        """

    def fitted(self, point: Point) -> Point:
        """The point in the one way that stands for it; raises ConfigError."""
        return point

    def check(self, point: Point) -> None:
        """Raises ConfigError where model and input cannot do this work."""

    def meeting(self, point: Point) -> tuple[str, int]:
        """How many processes of a point can be on several hosts, after the key that says so; raises
        ConfigError.
        """
        reason = "is for messages between processes: devices that share a step are of one host"
        raise ConfigError("hosts", point.hosts, reason, "set hosts=1, or model=channel")

    def of_process(self, replicate: int, process: int) -> Self:
        """As one of several processes of a replicate does it, from 0."""
        return self

    def open(self, run: PointRun) -> None:
        """Open the devices, in as many processes as hold them."""
        run.open_devices()

    def measure(self, run: PointRun) -> None:
        """Build, compile, warm up and measure; what is known is noted in `run`, and stands however
        this ends.
        """
        raise NotImplementedError

    def elsewhere(self) -> Callable[..., None] | None:
        """What serves a process of the point on another host, where it can have some: see
        `workloads.channel`.
        """
        return None

    def request(self, point: Point) -> dict[str, Any]:
        """What the worker must be given beside the point; DataError where it cannot be."""
        return {}

    def progress(self, news: WorkloadMessage) -> str:
        """What the terminal shows of news that the worker sent while it worked."""
        return ""

    def history(self, news: Sequence[WorkloadMessage]) -> list[MetricSnapshot]:
        """Metrics that have a value for each of the worker's news."""
        return []

    def ended(self, result: PointResult) -> bool:
        """Whether it came to an end of its own: what did not, may go on another time."""
        return True

    def named(self, point: Point) -> list[str]:
        """What the name of a run says of it, beside model, size, batch and platform."""
        words = [self.mode] if self.mode != DEFAULT_KEYS["mode"] else []
        return words + ([point.data.name] if point.data.name != "synthetic" else [])

    def cost_keys(self) -> dict[str, int]:
        """Which of its options decide what a timed step costs (`Model.costs`)."""
        return {}

    def has_steps(self, outcome: str, last: Answer | None) -> bool:
        """Whether the timed steps count, where a point ended so."""
        return outcome == "ok"

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Metrics of its own; `known` are those of every point, and of the timed steps where these
        count.
        """
        return {}

    def tags(self, measured: Measured) -> dict[str, str]:
        """Tags of its own."""
        return {}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        """Files of its own: raw values, a figure."""
        return {}

    def contradictions(self, costs: Costs, answer: Answer) -> list[str]:
        """What in the answer of a process contradicts the arithmetic, a line each."""
        return []

    def words(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        """What came of it; None for a run of another kind."""
        return None

    def refuse_forecast(self) -> None:
        """Raises ConfigError where nobody knows how long it takes before it is measured."""

    def forecast(self, points: Any, step: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds, (points, draws), of its phases in planned points
        (`paradnn.forecast.table.Table`), 0 in those of other kinds; `step` are seconds of a step,
        `known` those of other phases.
        """
        return {}


#: Every kind of work by name.
WORKLOADS: Registry[Workload] = Registry(Workload, "paradnn.workloads")


def usual() -> Workload:
    """The kind whose metrics all others have beside their own: timed steps."""
    return WORKLOADS[DEFAULT_KEYS["task"]]


def asked_for(config: Mapping[str, Any]) -> Workload:
    """The kind of work that a composed configuration, a request or a row of params asks for, at its
    defaults.
    """
    model = config.get("model")
    said = {**config, "model": model.get("name") if isinstance(model, Mapping) else model}
    return next(
        (work for work, key, names in _asked() if said.get(key, DEFAULT_KEYS.get(key)) in names),
        next(iter(WORKLOADS.values())),
    )


@cache
def _asked() -> list[tuple[Workload, str, tuple[str, ...]]]:
    """All kinds in the order in which they are asked for, with what asks."""
    return [
        (work, key, work.names) for key in _DECIDE for work in WORKLOADS.values() if work.key == key
    ]


def part_called(name: object) -> type[WorkloadMessage] | None:
    """What a kind of work sends under a name; None for none."""
    return next(
        (part for work in WORKLOADS.values() for part in work.parts if part.of == name), None
    )


@cache
def choices(key: str) -> tuple[str, ...]:
    """What a key of USUAL can say: nothing in particular first."""
    names = (name for work in WORKLOADS.values() if work.key == key for name in work.names)
    return tuple(dict.fromkeys([DEFAULT_KEYS[key], *names]))


@cache
def key_groups() -> Mapping[str, Workload]:
    """The kinds of work that have keys of their own, by the name below which these stand."""
    return {work.group: work for work in WORKLOADS.values() if work.group}


def option_names(work: Workload) -> Iterable[str]:
    """The dotted keys of a kind of work."""
    # type: ignore[arg-type]
    if work.group:
        return (f"{work.group}.{entry.name}" for entry in fields(work))
    return ()
