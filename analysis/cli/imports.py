"""The sub-commands that log what others published."""

from __future__ import annotations

from analysis.cli.command import Command
from analysis.cli.stored import (
    ArchiveOptions,
    DawnbenchOptions,
    DeepBenchOptions,
    RcpOptions,
    VidurOptions,
    import_archive,
    import_dawnbench,
    import_deepbench,
    import_mlperf_rcp,
    import_vidur,
)

__all__ = ["IMPORTS"]

IMPORTS: tuple[Command, ...] = (
    Command(
        ArchiveOptions,
        summary="log the published ParaDnn measurements (TPU v2, V100) as runs",
        description="Log the data files of the ParaDnn paper's artifact as runs, marked source=published.\n"
        "They are in github.com/Emma926/paradnn, folder scripts/data. What is there is not logged again.",
        example="python -m analysis import-archive ../paradnn-original/scripts/data",
        act=import_archive,
        selects=False,
    ),
    Command(
        DeepBenchOptions,
        summary="log DeepBench's published timings of kernels (V100, T4, MI25, Xeon Phi and others) as runs",
        description="Log the timings in DeepBench's spreadsheets as runs of kernels, marked source=published.\n"
        "They are in github.com/baidu-research/DeepBench, folder results. What is there is not logged again.",
        example="python -m analysis import-deepbench ../DeepBench/results",
        act=import_deepbench,
        selects=False,
    ),
    Command(
        VidurOptions,
        summary="log Vidur's published times of all-reduce and send/receive (A40, A100, H100) as runs of channels",
        description="Log the times of NCCL in Vidur's profiles as runs of model=channel, marked source=published,\n"
        "into an experiment of their own (vidur, unless --experiment names another). They are in\n"
        "github.com/microsoft/vidur, folder data/profiling/network. What is there is not logged again.",
        example="python -m analysis import-vidur ../vidur",
        act=import_vidur,
        selects=False,
    ),
    Command(
        DawnbenchOptions,
        summary="log DAWNBench's 69 training entries as runs that learn",
        description="Log the series of DAWNBench's training entries, with their curves, into an experiment of their\n"
        "own (dawnbench, unless --experiment names another). Times to the threshold are recomputed from\n"
        "the series, and those that fall below it later are listed. What is there is not logged again.",
        example="python -m analysis import-dawnbench ../dawn-bench-entries",
        act=import_dawnbench,
        selects=False,
    ),
    Command(
        RcpOptions,
        summary="log MLPerf's reference convergence points as runs",
        description="Log the reference convergence points of MLPerf Training and HPC, a run each, into an experiment\n"
        "of their own (mlperf-rcp, unless --experiment names another), and say of each benchmark which of its\n"
        "batch sizes decide. What is there is not logged again.",
        example="python -m analysis import-mlperf-rcp ../logging",
        act=import_mlperf_rcp,
        selects=False,
    ),
)
