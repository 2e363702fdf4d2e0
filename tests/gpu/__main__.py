"""`python3 -m tests.gpu [--platform cpu]`: everything a first GPU machine should be asked, in under eight minutes.

Begins in the machine's own interpreter, makes an environment beside it (`tests.gpu.environment`) and goes on there. A
question that fails does not end it; one for which too little time is left is skipped. Prints a table and writes all
answers as JSON; the exit code is 1 where an answer was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
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
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu" / "wheels", help="what `make gpu-wheels` made")
    parser.add_argument("--folder", type=Path, default=ROOT / ".gpu", help="where the environment is made")
    parser.add_argument("--out", type=Path, help="default: result.json in that folder")
    parser.add_argument("--seconds", type=float, default=450.0, help="no question begins that would last longer")
    parser.add_argument("--only", default="", help="questions whose name holds this")
    given = parser.parse_args()
    if _INSIDE not in os.environ:
        python = make_environment(given.folder.resolve() / "venv", given.wheels.resolve())
        # A machine's frameworks may be on its path alone.
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, _INSIDE: "1", "PYTHONPATH": path}
        os.execve(python, [str(python), "-m", "tests.gpu", *sys.argv[1:]], environ)
    return _ask(given)


def _ask(given: argparse.Namespace) -> int:
    from rich.console import Console

    from paradnn.session.session import interruptible
    from tests.gpu.commands import Session
    from tests.gpu.questions import QUESTIONS

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    frameworks = [name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)]
    chosen = [question for question in QUESTIONS if given.only in question.name]
    if not frameworks or not chosen:
        print(
            f"no question's name holds {given.only!r}" if frameworks else "there is no JAX, PyTorch or TensorFlow here"
        )
        return 2
    result = Result(given.out or given.folder / "result.json", given.platform)
    result.save()  # so that an interrupted first question leaves a file, too
    with tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as folder:
        # Frameworks keep caches at home, which may be read-only or another's.
        os.environ["HOME"] = folder
        with contextlib.suppress(KeyboardInterrupt), interruptible():
            with Session(given.platform, frameworks, Path(folder), given.seconds) as session:
                for question in chosen:
                    row = _answer(question, session)
                    result.add(row)
                    line = f"[{row['verdict']}] {row['question']} ({row['seconds']:.0f} s): {row['line']}"
                    console.print(line, markup=False)
            result.save(complete=True)
    console.print(_table(result.rows))
    console.print(
        f"{'' if result.complete else 'interrupted after '}{result.seconds:.0f} s; answers are in {result.path}"
    )
    if not result.complete:
        return 130
    return 1 if any(row["verdict"] == "FAILED" for row in result.rows) else 0


class Result:
    """The answers, in a file that is whole after each of them."""

    def __init__(self, path: Path, platform: str) -> None:
        self.path, self.complete = path, False
        self.rows: list[dict[str, Any]] = []
        self._platform, self._start, self._begin = platform, time.time(), time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the first question."""
        return time.monotonic() - self._begin

    def add(self, row: dict[str, Any]) -> None:
        """One more answer."""
        self.rows.append(row)
        self.save()

    def save(self, complete: bool = False) -> None:
        """Write the file; `complete` once nothing more will be asked."""
        self.complete = complete
        content = {"platform": self._platform, "python": sys.version, "start": self._start, "seconds": self.seconds}
        content |= {"complete": complete, "answers": self.rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self.path.with_suffix(".part")
        made.write_text(json.dumps(content, indent=1, default=str))
        made.replace(self.path)  # whole at every moment


def _answer(question: Any, session: Any) -> dict[str, Any]:
    from tests.gpu.commands import Skipped, Wrong

    begin, details = time.monotonic(), {}
    try:
        if session.left < question.seconds:
            raise Skipped(f"takes some {question.seconds:.0f} s, {max(0, session.left):.0f} s are left")
        answer = question.ask(session)
        verdict, line, details = "ok", answer.line, answer.details
    except (Skipped, Wrong) as error:
        verdict = "skipped" if isinstance(error, Skipped) else "FAILED"
        line, details = str(error.args[0]), error.args[1] if len(error.args) > 1 else {}
    except Exception as error:  # a fault of the question: the others are asked all the same
        verdict, line = "FAILED", f"{type(error).__name__}: {error}"
        details = {"traceback": traceback.format_exc()}
    seconds = time.monotonic() - begin
    if verdict == "FAILED" and session.left <= 0:  # it was interrupted
        verdict, line = "skipped", f"the time was up: {line}"
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
