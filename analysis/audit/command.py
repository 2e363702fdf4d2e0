"""The sub-command `audit`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.audit.conclusions import AuditFinding, draw_conclusions
from analysis.audit.files import read_results
from analysis.options import Arguments, Selection, option
from paradnn.cli.console import say
from paradnn.core.errors import ConfigError
from paradnn.store.files import write_json

_MAX_FINDINGS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Arguments):
    """Which files are read."""

    files: tuple[str, ...] = option(
        text="result files of one side, one per session",
        metavar="FILE",
        positional=True,
        several="words",
    )
    against: tuple[str, ...] | None = option(
        None, "result files of the other side", metavar="FILE", several="words"
    )
    json: str | None = option(None, "write the findings to FILE", metavar="FILE")


def audit(options: AuditOptions, selection: Selection) -> None:
    """Read result files of hyperfine, pytest-benchmark, asv, Google Benchmark, AIPerf, GuideLLM,
    vllm bench and LoadGen, and report what they show and what they cannot show. One session per
    side carries no verdict; three or more per side do (--against).
    """
    both = sorted(set(options.files) & set(options.against or ()))
    if both:
        raise ConfigError(
            "--against", both[0], "is on both sides", "give two sides that share no file"
        )
    side = [results for name in options.files for results in read_results(Path(name))]
    other_side = [results for name in options.against or () for results in read_results(Path(name))]
    for results in (*side, *other_side):
        say(f"{results.file}: {results.harness}, {len(results.series)} series")
    findings = list(draw_conclusions(side, other_side))
    for finding in findings[:_MAX_FINDINGS_SHOWN]:
        if finding.about:
            say(f"  {finding.about}: {finding.sentence}")
        else:
            say(f"  {finding.sentence}")
    if len(findings) > _MAX_FINDINGS_SHOWN:
        say(f"  {len(findings) - _MAX_FINDINGS_SHOWN} more findings: --json FILE writes all")
    if options.json:
        write_json(Path(options.json), [_as_json(finding) for finding in findings])


def _as_json(finding: AuditFinding) -> dict[str, Any]:
    """A finding as a JSON object; NaN becomes null."""
    row: dict[str, Any] = finding._asdict()
    for name, value in row.items():
        if isinstance(value, float) and math.isnan(value):
            row[name] = None
    return row
