"""The sub-command `audit`, which reads result files of other benchmark harnesses."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.audit.conclusions import AuditFinding, draw_conclusions
from analysis.audit.files import read_results
from analysis.lazy import pd
from analysis.options import Arguments, Selection, option
from analysis.result import AnalysisAnswer, AnswerVerdict, Result
from paradnn.cli.console import say
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.store.files import write_json

_MAX_FINDINGS_SHOWN = 20
_MAX_NAME_CHARS = 160
#: Verdict of a finding -> verdict of the answer. "different" has no direction, and so no verdict.
_VERDICTS: dict[str, AnswerVerdict] = {
    "faster": "faster",
    "slower": "slower",
    "equal": "equal",
    "undecided": "undecided",
    "not comparable": "undecided",
}
#: Text after the number of findings with a verdict.
_COUNT_TEXTS = {
    "faster": "in which the first is better",
    "slower": "in which the second is better",
    "equal": "equal",
    "different": "different",
    "undecided": "undecided",
    "not comparable": "not comparable",
}


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Arguments):
    """Options of `audit`: the result files to read, and the file to write."""

    files: tuple[str, ...] = option(
        text="result files of one side, one per session",
        metavar="FILE",
        positional=True,
        several="words",
    )
    against: tuple[str, ...] | None = option(
        None, "result files of a second side to compare with", metavar="FILE", several="words"
    )
    json: str | None = option(
        None, "write the answer and the findings to FILE, - for standard output", metavar="FILE"
    )


def audit(options: AuditOptions, selection: Selection) -> None:
    """Read result files of other harnesses, and report which conclusions they support.

    The harnesses are hyperfine, pytest-benchmark, asv, Google Benchmark, pyperf, JMH, Go,
    Criterion.rs, AIPerf, llama-bench, GuideLLM, vllm bench, SGLang, MLPerf (LoadGen and training
    logs) and nccl-tests.

    --against compares two sets of sessions. With fewer than three sessions per side, the interval
    is wider: it assumes that sessions scatter as much as usual.
    """
    both = sorted(set(options.files) & set(options.against or ()))
    if both:
        raise ConfigError(
            "--against", both[0], "is on both sides", "give two sides that share no file"
        )
    side = [results for name in options.files for results in read_results(Path(name))]
    other_side = [results for name in options.against or () for results in read_results(Path(name))]
    findings = list(draw_conclusions(side, other_side))
    result = Result(sources=(), numbers=pd.DataFrame(findings), answer=_answer(findings))
    if options.json == "-":
        print(json.dumps(result.as_json(), indent=1, allow_nan=False))
        return
    say(result.opening())
    for results in (*side, *other_side):
        say(f"{results.file}: {results.harness}, {len(results.series)} series")
    for finding in findings[:_MAX_FINDINGS_SHOWN]:
        if finding.about:
            say(f"  {_shortened(finding.about)}: {finding.sentence}")
        else:
            say(f"  {finding.sentence}")
    if len(findings) > _MAX_FINDINGS_SHOWN:
        say(f"  {len(findings) - _MAX_FINDINGS_SHOWN} more findings: --json FILE writes all")
    if options.json:
        write_json(Path(options.json), result.as_json())


def _shortened(name: str) -> str:
    """Return a name that fits a line of text: "..." replaces the middle of a long name."""
    if len(name) <= _MAX_NAME_CHARS:
        return name
    half = _MAX_NAME_CHARS // 2
    return f"{name[:half]} ... {name[-half:]}"


def _answer(findings: Sequence[AuditFinding]) -> AnalysisAnswer:
    """State the verdict of a single comparison, or count the comparisons by verdict.

    Args:
        findings: All findings. Those with a verdict are comparisons.
    """
    compared = [finding for finding in findings if finding.verdict]
    if len(compared) == 1:
        (only,) = compared
        return AnalysisAnswer(
            sentence=f"{_shortened(only.about)}: {only.sentence}",
            verdict=_VERDICTS.get(only.verdict),
            ratio=only.ratio,
            low=only.low,
            high=only.high,
            points=1,
            basis="the scatter between sessions",
        )
    if compared:
        counts = Counter(finding.verdict for finding in compared)
        parts = [
            f"{counts[verdict]} {text}" for verdict, text in _COUNT_TEXTS.items() if counts[verdict]
        ]
        sentence = f"Of {counted(len(compared), 'comparison')}: {', '.join(parts)}."
        return AnalysisAnswer(
            sentence=sentence, ahead=counts.get("faster", 0), points=len(compared)
        )
    series = sum(bool(finding.about) for finding in findings)
    sentence = f"Nothing is compared: {counted(series, 'finding')} on single sessions."
    return AnalysisAnswer(sentence=sentence, points=series)
