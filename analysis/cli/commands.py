"""Every sub-command, in the order of --help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.audit import AuditOptions, audit
from analysis.cli.command import Command, of_analysis
from analysis.cli.imports import IMPORTS
from analysis.cli.output import Output
from analysis.cli.report import ReportOptions, report
from analysis.cli.stored import ExportOptions, ImportOptions, export, import_bundle
from analysis.options import Selection, option
from analysis.registry import ANALYSES
from analysis.store.conditions import select
from analysis.summaries.boxplot import BoxplotOptions, boxplot
from analysis.summaries.breakdown import BreakdownOptions, breakdown
from analysis.summaries.channel import ChannelOptions, channel
from analysis.summaries.claims import ClaimsOptions, check_claims
from analysis.summaries.compare import CompareOptions, compare
from analysis.summaries.extrapolate import ExtrapolateOptions, extrapolate
from analysis.summaries.figure_of_merit import FigureOfMeritOptions, figure_of_merit
from analysis.summaries.frontier import FrontierOptions, frontier
from analysis.summaries.heatmap import HeatmapOptions, heatmap
from analysis.summaries.infeed import InfeedOptions, infeed
from analysis.summaries.latency import LatencyOptions, latency
from analysis.summaries.layers import LayersOptions, layers
from analysis.summaries.memory import MemoryOptions, memory
from analysis.summaries.parameters import ParametersOptions, parameters, read_models
from analysis.summaries.predict import PredictOptions, predict
from analysis.summaries.roofline import RooflineOptions, roofline
from analysis.summaries.runs import RunsOptions, runs
from analysis.summaries.scaling import ScalingOptions, scaling
from analysis.summaries.sensitivity import SensitivityOptions, sensitivity
from analysis.summaries.software import SoftwareOptions, software
from analysis.summaries.speedup import SpeedupOptions, speedup
from analysis.summaries.time_to_accuracy import TimeToAccuracyOptions, time_to_accuracy
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COMMANDS"]


@dataclass(frozen=True, kw_only=True)
class _TableOptions(ParametersOptions):
    """`parameters` of models that stand in files."""

    table: tuple[str, ...] = option(
        (),
        "CSV files of models instead of runs: columns family or model.name, parameters, model.*; --family and --where "
        "choose among them",
        metavar="FILE",
        several="words",
    )


def _models(options: _TableOptions, selection: Selection, output: Output) -> pd.DataFrame | None:
    """The models of --table; None without it."""
    if not options.table:
        return None
    if output.log:
        raise ConfigError("--log", "with --table", "a result in the store names the runs it rests on", "leave one out")
    frame = read_models(options.table)
    return select(frame[frame["family"].isin(selection.family)] if selection.family else frame, selection.where)


COMMANDS: tuple[Command, ...] = (
    *IMPORTS,
    *map(of_analysis, ANALYSES.values()),
    Command(
        RunsOptions,
        summary="what the store holds: runs by family, device and outcome",
        description="Count the runs of each model family on each device by outcome.",
        example="python -m analysis runs --unfinished",
        analyse=runs,
        columns=(),
        counts=True,
    ),
    Command(
        ExportOptions,
        summary="write chosen runs to a file: their frame as CSV or Parquet, or all of them as a .zip for others",
        description="CSV and Parquet have one row a run with params, metrics and tags; Parquet keeps types and units.\n"
        "A .zip holds the runs with their files and checksums, their sweeps and the ceilings they name:\n"
        "every command takes it as --store, and `import` logs it into a store.",
        example="python -m analysis export fc.parquet --family fc --outcome ok",
        act=export,
    ),
    Command(
        ImportOptions,
        summary="log the runs of a .zip that `export` wrote into a store",
        description="Log runs that were measured elsewhere, with their files, into a store. What is there is not\n"
        "logged again; the tag origin holds a run's id of before. To look at a .zip alone, give it as --store.",
        example="python -m analysis import results.zip",
        act=import_bundle,
        selects=False,
    ),
    Command(
        HeatmapOptions,
        summary="a metric over two hyperparameters, out of memory shown",
        description="Show the median of a metric over two hyperparameters, a map for each family on each device.\n"
        "Cells in which nothing ran say why. What varies besides is pooled and named; fix it with --where.",
        example="python -m analysis heatmap --x batch_size --y nodes --where model.layers=64 --figure map.png",
        analyse=heatmap,
        draws=True,
    ),
    Command(
        MemoryOptions,
        summary="where memory ends, and which size fills it fastest",
        description="Which points ran out of memory, for each family on each device: the smallest that did, the\n"
        "largest that fitted, what doubling a size adds to the odds, and points that contradict the others.",
        example="python -m analysis memory --device 'TPU v2' --figure memory.png",
        analyse=memory,
        draws=True,
    ),
    Command(
        PredictOptions,
        summary="every point of a space, measured or predicted with an interval, and where that extrapolates",
        description="Fit the step time of the measured runs and predict every point of the space they are part of,\n"
        "or of one that is named with --space. Points that were left out say how far to trust it. Others\n"
        "that speak of the whole space: sensitivity, heatmap, compare and claims with --predicted.",
        example="python -m analysis predict --family fc --figure map.png",
        analyse=predict,
        draws=True,
    ),
    Command(
        ExtrapolateOptions,
        summary="the step time of models on a device that only ran kernels, operation by operation",
        description="Predict the operations of a step from kernels that ran on a device (gemm, conv2d, elementwise)\n"
        "and add them up, with an interval. Products follow from the model's layers; what else a step does\n"
        "is read from the run's profile. Says what share of the profiled time is covered. Where the runs are\n"
        "of that very device, predicted steps stand beside measured ones.",
        example="python -m analysis extrapolate --run 3f2a91 --to 'Tesla V100'",
        analyse=extrapolate,
        draws=True,
    ),
    Command(
        FigureOfMeritOptions,
        summary="one number for each platform over a stated suite: the harmonic mean of its rates",
        description="The harmonic mean of a rate over the points that all sides measured, which is the rate of doing\n"
        "one after the other, and its ratio to a baseline's, with intervals. State the suite with --where and\n"
        "--family, and with --work how many examples of a family are a unit of work.",
        example="python -m analysis figure-of-merit --by device --baseline V100 --work fc=1e6 --work resnet50=1e4",
        analyse=figure_of_merit,
    ),
    Command(
        SensitivityOptions,
        summary="what a metric depends on: regression weights with intervals",
        description="Fit a metric on the hyperparameters by least squares, everything standardised, one fit for each\n"
        "model family on each device. A weight of +0.5: one standard deviation more of the hyperparameter\n"
        "brings half a standard deviation more of the metric. Constant and collinear columns are named.",
        example="python -m analysis sensitivity --family fc --log-scale both --figure weights.png",
        analyse=sensitivity,
        draws=True,
    ),
    Command(
        BoxplotOptions,
        summary="the spread of a metric over the models of each family, device or any other group",
        description="Box plots with the paper's percentiles: bar at the median, box from the 9th to the 91st,\n"
        "whiskers from the 2nd to the 98th, dots beyond. Replicates of a point count once.",
        example="python -m analysis boxplot --metric examples_per_second --by device,batch_size --figure boxes.png",
        analyse=boxplot,
        draws=True,
    ),
    Command(
        LayersOptions,
        summary="the layers of the stack in a session's wall clock, from the queue to recording, by launcher",
        description="Divide the wall clock of each session (a task of a launched sweep, a sweep, a point alone) into\n"
        "the scheduler's queue, the task's start, the framework's import, build, compile, warm-up, communication,\n"
        "input, computation, recording, and the rest: they add up to it.",
        example="python -m analysis layers --tag source=measured --figure layers.png",
        analyse=layers,
        draws=True,
    ),
    Command(
        _TableOptions,
        summary="the range of trainable parameters of each family, with real models as points",
        description="Trainable parameters of the distinct models of each family, whatever the outcome of their runs.\n"
        "Real models, such as resnet50, stand as points where there are runs of them.\n"
        "Parameters need no measurement: --table reads a list of models instead of the store's runs.",
        example="python -m analysis parameters --figure parameters.png",
        analyse=parameters,
        draws=True,
        read=_models,
    ),
    Command(
        RooflineOptions,
        summary="what limits each model, arithmetic or memory, and how near it comes to that limit",
        description="Place models, or one run's operations, under the roofline of their device.\n"
        "The ceilings are those that the runs carry as measured, else the specification's; where\n"
        "neither is known, the verdict is unknown.",
        example="python -m analysis roofline --device 'TPU v2' --figure roofline.png",
        analyse=roofline,
        draws=True,
    ),
    Command(
        SpeedupOptions,
        summary="how much faster A is than B, point by point, and what that depends on",
        description="Pair the points that A and B both measured. Gives the share of points where A wins, the\n"
        "geometric mean and the quartiles of the speedup, and which hyperparameters it depends on.\n"
        "With --operations it compares operation by operation, and gives the gain in memory bandwidth\n"
        "that this implies.",
        example="python -m analysis speedup --a 'device=TPU v2' --b device=V100 --colour nodes --figure speedup.png",
        analyse=speedup,
        draws=True,
    ),
    Command(
        CompareOptions,
        summary="A against B: each cell with interval and test, and a verdict for each family",
        description="Pair the points that two sides both measured: platforms, environments, versions or sweeps.\n"
        "A and B are conditions as in --where, several joined by ' & '. Each ratio has its interval,\n"
        "a test where there are three replicates on both sides, false discoveries held over all cells;\n"
        "each family has a verdict: A faster, B faster, no difference shown, or not enough data.",
        example="python -m analysis compare version.tensorflow=2.21.0 version.tensorflow=2.20.0 --figure compare.png",
        analyse=compare,
        draws=True,
    ),
    Command(
        ScalingOptions,
        summary="speed over device counts, with Amdahl's non-parallel fraction",
        description="Pair each point measured on several devices with the same point on one, and fit Amdahl's law:\n"
        "the fraction of the step that does not run in parallel, for each family, with its interval.",
        example="python -m analysis scaling --family fc --figure scaling.png",
        analyse=scaling,
        draws=True,
    ),
    Command(
        ChannelOptions,
        summary="latency and bandwidth of messages by transport and pattern, as lines over their size",
        description="Fit start-up time and bandwidth to the runs of model=channel, each transport and pattern by\n"
        "itself, in pieces where a protocol changes, with intervals; raw TCP and shared memory stand beside\n"
        "the others as floors.",
        example="python -m analysis channel --figure channel.png",
        analyse=channel,
        draws=True,
    ),
    Command(
        TimeToAccuracyOptions,
        summary="time, epochs and cost to an accuracy, over seeds, batch sizes and platforms",
        description="Score the runs with task=learn as MLPerf does: over seeds, without the fastest and the slowest.\n"
        "Gives time and epochs to the target with intervals for each setting, and platforms against each\n"
        "other over the settings that both have. --price adds what it costs.",
        example="python -m analysis time-to-accuracy --family fc --figure accuracy.png",
        analyse=time_to_accuracy,
        draws=True,
    ),
    Command(
        FrontierOptions,
        summary="what no other choice beats in cost, latency, throughput or accuracy, and which to choose",
        description="Put choices of platform and configuration that do the same work beside each other: cost against\n"
        "latency (a quantile of served queries, the median of closed runs), cost against accuracy of what\n"
        "learns; throughput in place of cost without prices. Each choice is on the frontier, beaten or, as\n"
        "far as the intervals say, undecided. With --limit it says which to take.",
        example="python -m analysis frontier --price V100=2 --limit latency_p99_ms=15 --figure frontier.png",
        analyse=frontier,
        draws=True,
    ),
    Command(
        LatencyOptions,
        summary="latency over the rate of queries, by policy, with the knee",
        description="A quantile of the latency over the rates of scenario=server, a curve for each policy and device:\n"
        "where its knee is, from which rate on queries were not served, and how latencies are distributed.",
        example="python -m analysis latency --where server.delay_ms=0 --figure latency.png",
        analyse=latency,
        draws=True,
    ),
    Command(
        InfeedOptions,
        summary="share of the step spent waiting for input, against the size of the model",
        description="Show which models wait for their input, how the wait falls with the size of the model, and the\n"
        "speedup that an input pipeline without cost would bring at most. Runs with data=images or\n"
        "data=text also say what free input did bring, and how many cores would feed the model.",
        example="python -m analysis infeed --family residual,bottleneck --against parameters",
        analyse=infeed,
        draws=True,
    ),
    Command(
        SoftwareOptions,
        summary="speedup of software versions, precisions and compile modes, with 90th percentiles",
        description="Pair every value of software.name or version.tensorflow, precision and compile with its\n"
        "baseline (the oldest version, float32, graph), and give the median and the 90th percentile of\n"
        "each family's speedups, with intervals. A 90th percentile has an upper end from 36 points on.",
        example="python -m analysis software --by version.tensorflow --baseline 2.18.0",
        analyse=software,
        draws=True,
    ),
    Command(
        ClaimsOptions,
        summary="claims about platforms, each supported, refuted or not enough data",
        description="Check claims over the runs: the fourteen observations of the paper, or those of a YAML file.\n"
        "A check is supported where the 95% interval of its number lies on the claimed side, refuted\n"
        "where it lies on the other, and undecided where it holds both. A claim is refuted where any\n"
        "check is, supported where all checks with data are; what has no data is named. Kinds of check\n"
        "and the layout of a file: analysis/claims/kinds.py and analysis/claims/observations.yaml.",
        example="python -m analysis claims --only 1,3 --as tpu=gpu",
        analyse=check_claims,
        draws=True,
        one_protocol=True,
    ),
    Command(
        BreakdownOptions,
        summary="where the step's time goes: categories and types of operations by family",
        description="Median share of the profiled step that each category and type of operation takes, over the\n"
        "models of a family. Profiles are taken with measure.profile=true.",
        example="python -m analysis breakdown --family fc --figure breakdown.png",
        analyse=breakdown,
        draws=True,
    ),
    Command(
        AuditOptions,
        summary="what may be concluded from results of other harnesses: hyperfine, pytest-benchmark, asv and others",
        description="Read result files of hyperfine, pytest-benchmark, asv, Google Benchmark, AIPerf, GuideLLM,\n"
        "vllm bench and LoadGen, and say what they show and what they cannot: one session a side carries\n"
        "no verdict, three or more a side do (--against).",
        example="python -m analysis audit before-*.json --against after-*.json",
        act=audit,
        selects=False,
    ),
    Command(
        ReportOptions,
        summary="every analysis the runs allow as one HTML page: figures, numbers, what is missing",
        description="Write one self-contained HTML page: what was measured where, every analysis that the runs can\n"
        "carry with its figure, its numbers in words and its table, comparisons, claims, and what is\n"
        "missing. Heterogeneous runs stand in populations of their own. Opens without network.",
        example="python -m analysis report --out report.html",
        act=report,
    ),
)
