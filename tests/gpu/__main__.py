"""`python3 -m tests.gpu [--platform cpu]`: everything a first GPU machine should be asked, in under eight minutes.

Begins in the machine's own interpreter, makes an environment beside it (`tests.gpu.environment`) and goes on there. A
question that fails does not end it; one for which too little time is left is skipped. Prints a table and writes all
answers as JSON; the exit code is 1 where an answer was wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.gpu.environment import make_environment

ROOT = Path(__file__).resolve().parent.parent.parent
_INSIDE = "PARADNN_GPU_TESTS"


def main() -> int:
    """Ask everything that was chosen; 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu", help="cpu: rehearse it without a GPU")
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu" / "result.json")
    parser.add_argument("--folder", type=Path, default=ROOT / ".gpu", help="holds wheels/ and the environment")
    parser.add_argument("--seconds", type=float, default=450.0, help="no question begins that would last longer")
    parser.add_argument("--only", default="", help="questions whose name holds this")
    given = parser.parse_args()
    if _INSIDE not in os.environ:
        python = make_environment(given.folder.resolve() / "venv", given.folder.resolve() / "wheels")
        environ = {**os.environ, _INSIDE: "1", "PYTHONPATH": str(ROOT)}
        os.execve(python, [str(python), "-m", "tests.gpu", *sys.argv[1:]], environ)
    return _ask(given)


def _ask(given: argparse.Namespace) -> int:
    from rich.console import Console

    from tests.gpu.commands import Session
    from tests.gpu.questions import QUESTIONS

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    frameworks = [name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)]
    begin, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        session = Session(given.platform, frameworks, Path(folder), given.seconds)
        for question in QUESTIONS:
            if given.only not in question.name:
                continue
            row = _answer(question, session)
            rows.append(row)
            console.print(f"[{row['verdict']}] {row['question']} ({row['seconds']:.0f} s): {row['line']}", markup=False)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps({"platform": given.platform, "answers": rows}, indent=1, default=str))
    console.print(_table(rows))
    console.print(f"{time.monotonic() - begin:.0f} s; all answers are in {given.out}")
    return 1 if any(row["verdict"] == "FAILED" for row in rows) else 0


def _answer(question: Any, session: Any) -> dict[str, Any]:
    from tests.gpu.commands import Skipped, Wrong

    begin, details = time.monotonic(), {}
    try:
        if session.left < question.seconds:
            raise Skipped(f"takes some {question.seconds:.0f} s, {max(0, session.left):.0f} s are left")
        answer = question.ask(session)
        verdict, line, details = "ok", answer.line, answer.details
    except Skipped as error:
        verdict, line = "skipped", str(error)
    except Wrong as error:
        verdict, line, details = "FAILED", str(error.args[0]), error.args[1] if len(error.args) > 1 else {}
    except Exception as error:
        verdict, line = "FAILED", f"{type(error).__name__}: {error}"
        details = {"traceback": traceback.format_exc()}
    seconds = time.monotonic() - begin
    return {"question": question.name, "verdict": verdict, "seconds": seconds, "line": line, "details": details}


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for heading in ("question", "", "seconds", "answer"):
        table.add_column(heading, overflow="fold")
    colours = {"ok": "green", "skipped": "yellow", "FAILED": "red"}
    for row in rows:
        verdict = Text(row["verdict"], style=colours[row["verdict"]])
        table.add_row(row["question"], verdict, f"{row['seconds']:.0f}", Text(row["line"]))
    return table


if __name__ == "__main__":
    sys.exit(main())
