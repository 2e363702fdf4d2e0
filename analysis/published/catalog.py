"""The sources of published measurements; each has a command `import-NAME`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedSource:
    """A source of published measurements.

    Attributes:
        name: Name of the source, of its command and of its file in `data`.
        experiment: Default experiment into which the runs are logged.
        unit: Noun for the entries that the progress line counts, in the plural.
        summary: One line for the list of commands: what the command does.
        origin: Place of publication.
        folder: The folder that the user must give, if the license of the source does not allow
            shipping it; empty for a source that comes with the package.
        next_step: A sentence with a command that reads the runs; empty for none.
    """

    name: str
    experiment: str
    unit: str
    summary: str
    origin: str
    folder: str = ""
    next_step: str = ""


SOURCES = (
    PublishedSource(
        name="archive",
        experiment="paradnn",
        unit="runs",
        summary="log the published ParaDnn measurements (TPU v2, V100) as runs",
        origin="github.com/Emma926/paradnn",
    ),
    PublishedSource(
        name="deepbench",
        experiment="paradnn",
        unit="runs",
        summary=(
            "log DeepBench's published timings of kernels (V100, T4, MI25, Xeon Phi and others) "
            "as runs"
        ),
        origin="github.com/baidu-research/DeepBench",
    ),
    PublishedSource(
        name="vidur",
        experiment="vidur",
        unit="runs",
        summary=(
            "log Vidur's published times of all-reduce and send/receive (A40, A100, H100) as runs "
            "of channels"
        ),
        origin="github.com/microsoft/vidur",
        next_step="Fit them: python -m analysis channel",
    ),
    PublishedSource(
        name="tiny",
        experiment="mlperf-tiny",
        unit="runs",
        summary=(
            "log MLPerf Tiny v1.3's results (microcontrollers, phones, RISC-V) as runs of inference"
        ),
        origin="github.com/mlcommons/tiny_results_v1.3",
        next_step=(
            "Look at them: python -m analysis boxplot --by device --metric examples_per_second"
        ),
    ),
    PublishedSource(
        name="layers",
        experiment="layers",
        unit="runs",
        summary=(
            "log published times by type of layer (AlexNet and VGG-16 on Jetson TK1 and TX1) as "
            "profiled runs"
        ),
        origin="Lu et al. 2017",
        next_step="Look at them: python -m analysis breakdown",
    ),
    PublishedSource(
        name="dawnbench",
        experiment="dawnbench",
        unit="series",
        summary="log DAWNBench's 69 training entries as trainings toward an accuracy",
        origin="github.com/stanford-futuredata/dawn-bench-entries",
        folder="clone of stanford-futuredata/dawn-bench-entries",
        next_step="Score them: python -m analysis time-to-accuracy",
    ),
)
