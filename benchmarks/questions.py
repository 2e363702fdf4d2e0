"""Twelve questions that users ask, with the answers as printed: docs/validation/questions.md.

    python -m paradnn.train -m experiment=quick           # the demo store
    python -m analysis import-archive --store archive.db  # the published archive
    python -m benchmarks.questions --demo mlflow.db --archive archive.db

The program fails if an answer contradicts an independent source.
"""

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT

PAGE = ROOT / "docs" / "validation" / "questions.md"
_BEGIN = "<!-- answers -->"
_END = "<!-- end of answers -->"


@dataclass(frozen=True)
class Question:
    """A question, the command that answers it, and what the answer must state.

    Attributes:
        text: The question.
        words: The command after `python -m analysis`.
        stores: The stores that it reads: "demo", "archive" or both.
        pattern: Regular expression that a right answer matches.
        reason: Independent source that confirms the answer.
    """

    text: str
    words: tuple[str, ...]
    stores: tuple[str, ...]
    pattern: str
    reason: str


_DEMO = ("demo",)
_ARCHIVE = ("archive",)
QUESTIONS = (
    Question(
        "Which batch size is faster on this machine?",
        ("compare", "batch_size=64", "batch_size=512", "--family", "fc"),
        _DEMO,
        r"^batch_size=512 is [\d.]+x faster than batch_size=64",
        "in every pair of runs of the demo, the throughput is higher at a batch size of 512",
    ),
    Question(
        "What limits my models?",
        ("roofline",),
        _DEMO,
        "none by memory bandwidth",
        "the arithmetic intensities of all points exceed the ridge point",
    ),
    Question(
        "What does the speed of FC models depend on?",
        ("sensitivity", "--family", "fc", "--metric", "examples_per_second", "--log-scale", "both"),
        _DEMO,
        r"^Throughput of fc depends most on nodes: 0\.\d+x per doubling",
        "a wider model needs more FLOPs per example, so throughput falls with the number of nodes",
    ),
    Question(
        "Does any model run out of memory?",
        ("memory",),
        _DEMO,
        "^None of 16",
        "all runs of the demo have the outcome ok",
    ),
    Question(
        "How much of the time goes into measuring?",
        ("overhead",),
        _DEMO,
        "of the wall time of 16 points",
        "the recorded phases of the 16 runs add up to the same share",
    ),
    Question(
        "Which platform is faster on the published models?",
        ("compare", "device=V100", "device=TPU v2"),
        _ARCHIVE,
        r"^TPU v2 is 2\.78x faster than V100 .* ahead on 136 of 176 points",
        "pandas computes the same geometric mean and count from the published pairs",
    ),
    Question(
        "And over a suite that runs all models equally often?",
        ("figure-of-merit", "--by", "device", "--baseline", "V100", "--where", "mode=train"),
        _ARCHIVE,
        r"^TPU v2 is 0\.579x as fast as V100",
        "the ratio of the harmonic means is the same; "
        "the largest models dominate and are faster on the V100",
    ),
    Question(
        "How many published points wait for their input?",
        ("infeed",),
        _ARCHIVE,
        "^98 of 230 points",
        "the published files have the same number of infeed shares above 10%",
    ),
    Question(
        "What does the TPU's rate depend on?",
        ("sensitivity", "--family", "fc", "--device", "TPU v2", "--log-scale", "both"),
        _ARCHIVE,
        r"^FLOP rate of fc depends most on nodes: [1-9][\d.]*x per doubling",
        "in Figure 2 of the paper, utilization also rises with nodes and batch size",
    ),
    Question(
        "Do small models prefer the TPU and large ones the GPU?",
        ("claims", "--only", "8"),
        _ARCHIVE,
        "supported: share of points in which platform.name=tpu beats .* parameters<1e6",
        "in Figure 8 of the paper, small FC models are faster on the TPU",
    ),
    Question(
        "Does the TPU's lead grow with the batch size?",
        ("claims", "--only", "7"),
        _ARCHIVE,
        "supported: speedup of platform.name=tpu over platform.name=gpu rises with batch_size",
        "in Figure 8 of the paper, the TPU's lead also grows with the batch size",
    ),
    Question(
        "How much faster than this machine is a V100?",
        ("compare", "device=V100", "device!=V100", "--where", "device!=TPU v2"),
        ("demo", "archive"),
        r"^V100 is [\d.]+x faster than (?!device)",
        "the six FC points of the demo are also among the published points",
    ),
)


def answer(question: Question, stores: dict[str, Path]) -> str:
    """Return what the command prints.

    Raises:
        RuntimeError: If the command fails, or its answer does not match the pattern.
    """
    words = list(question.words)
    for name in question.stores:
        words += ["--store", str(stores[name])]
    done = subprocess.run(
        [sys.executable, "-m", "analysis", *words],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    text = done.stdout.strip()
    if done.returncode or not re.search(question.pattern, text, re.MULTILINE):
        raise RuntimeError(f"{shlex.join(words)}: {text}{done.stderr}")
    return text


def section(question: Question, text: str) -> str:
    """Return a section of the page: the question, the command and the first lines."""
    stores = [f"--store {name}.db" for name in question.stores]
    command = " ".join(["python -m analysis", shlex.join(question.words), *stores])
    lines = [line[:300] for line in text.splitlines() if line.strip()][:3]
    if question.words[0] == "claims":
        answer_text, _, _ = text.partition("\n\n")
        lines = [
            line for line in answer_text.splitlines() if not line.endswith("more line: see --all")
        ]
    indented = "\n".join(f"    {line}" for line in lines)
    return (
        f"## {question.text}\n\n```sh\n{command}\n```\n\n{indented}\n\nCheck: {question.reason}.\n"
    )


def main() -> None:
    """Ask the questions and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, required=True, help="store of experiment=quick")
    parser.add_argument("--archive", type=Path, required=True, help="store of import-archive")
    given = parser.parse_args()
    stores = {"demo": given.demo.resolve(), "archive": given.archive.resolve()}
    sections = [section(question, answer(question, stores)) for question in QUESTIONS]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    body = "\n".join(sections)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{body}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
