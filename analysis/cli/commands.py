"""Every sub-command, in the order of --help."""

from __future__ import annotations

from analysis.audit import AuditOptions, audit
from analysis.cli.command import Command, of_analysis
from analysis.cli.imports import IMPORTS
from analysis.cli.report import ReportOptions, report
from analysis.cli.stored import ExportOptions, ImportOptions, export, import_bundle
from analysis.registry import ANALYSES

__all__ = ["COMMANDS"]


_STORE = (
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
        ReportOptions,
        summary="every analysis the runs allow as one HTML page: figures, numbers, what is missing",
        description="Write one self-contained HTML page: what was measured where, every analysis that the runs can\n"
        "carry with its figure, its numbers in words and its table, comparisons, claims, and what is\n"
        "missing. Heterogeneous runs stand in populations of their own. Opens without network.",
        example="python -m analysis report --out report.html",
        act=report,
    ),
)
COMMANDS = tuple(sorted((*IMPORTS, *_STORE, *map(of_analysis, ANALYSES.values())), key=lambda one: one.name))
