"""Compare the tables of every analysis on the published archive at two commits.

    python -m benchmarks.golden BASE [--head COMMIT] [--keep FOLDER]

Each commit imports the archive into its own store and writes `--csv` of the same commands. Rows are
matched by the columns that hold the same values in both tables. Numbers may differ by 1e-9 of their
size. The exit code is 1 if anything differs.
"""

import argparse
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import environment
from paradnn.core.scratch import Scratch
from paradnn.platform.commits import WORKING_TREE, Checkout, checkouts

_TOLERANCE = 1e-9
#: Columns of identifiers, which differ between any two stores.
_IDENTITIES = ("run_id", "parent_run_id", "artifact_uri")
#: Earlier name of an analysis, by its present name.
_FORMER_NAMES = {"compare-published": "beside"}
#: File -> arguments of `python -m analysis`. Analyses without published inputs (`channel`,
#: `latency`, `time-to-accuracy`, `extrapolate`, `overhead`) report missing data at both commits.
COMMANDS = {
    "boxplot": "boxplot --metric examples_per_second --by device,batch_size",
    "boxplot-nodes": "boxplot --metric flops_per_second --by nodes --device 'TPU v2'",
    "breakdown": "breakdown --family fc",
    "changes": "changes --metric examples_per_second",
    "channel": "channel",
    "claims": "claims",
    "compare": "compare device=V100 'device=TPU v2'",
    "compare-published": "compare-published --platform-of V100",
    "extrapolate": "extrapolate --to H200 --examples 50000 --epochs 90 --nodes 100",
    "figure-of-merit": "figure-of-merit --by device --baseline V100 --where mode=train",
    "frontier": "frontier --price V100=2 --price 'TPU v2=4'",
    "heatmap": "heatmap --x batch_size --y nodes --where model.layers=64 --device V100",
    "infeed": "infeed",
    "latency": "latency",
    "memory": "memory --device 'TPU v2'",
    "overhead": "overhead",
    "parameters": "parameters --device V100",
    "predict": "predict --family fc --device V100",
    "roofline": "roofline --device 'TPU v2'",
    "roofline-gpu": "roofline --device V100",
    "runs": "runs",
    "scaling": "scaling --family fc",
    "sensitivity": "sensitivity --family fc --device 'TPU v2' --log-scale both",
    "sensitivity-gpu": "sensitivity --family fc --device V100",
    "software": "software --by framework.name",
    "speedup": "speedup --a 'device=TPU v2' --b device=V100",
    "time-to-accuracy": "time-to-accuracy",
    "whatif": "whatif --bandwidth 2 --device V100",
}


def write_tables(checkout: Checkout, folder: Path) -> dict[str, str]:
    """Write the tables of one commit as CSV files.

    Returns:
        File name without its ending -> first line of the answer or of the error.
    """
    folder.mkdir(parents=True)
    done = _analysis("import-archive", checkout, folder)
    if done.returncode:
        sys.exit(f"{checkout.label}: import-archive failed: {done.stderr}")
    answers = {}
    for name, command in COMMANDS.items():
        words = f"{command} --csv {folder / name}.csv"
        done = _analysis(words, checkout, folder)
        if "invalid choice" in done.stderr and name in _FORMER_NAMES:
            done = _analysis(words.replace(name, _FORMER_NAMES[name], 1), checkout, folder)
        lines = (done.stdout or done.stderr).strip().splitlines()
        answers[name] = lines[0] if lines else "(nothing printed)"
    return answers


def _analysis(words: str, checkout: Checkout, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "analysis", *shlex.split(words)]
    return subprocess.run(
        command,
        cwd=checkout.tree,
        env=environment(folder),
        text=True,
        capture_output=True,
        check=False,
    )


def differences(base: Path, head: Path) -> Iterator[str]:
    """Yield the differences between two tables in CSV files; a file may be absent."""
    present = [path.is_file() for path in (base, head)]
    if not all(present):
        if any(present):
            yield "written only at the base" if present[0] else "written only at the head"
        return
    old = pd.read_csv(base)
    new = pd.read_csv(head)
    for name in old.columns.difference(new.columns):
        yield f"column {name}: removed"
    for name in new.columns.difference(old.columns):
        yield f"column {name}: added"
    if len(old) != len(new):
        yield f"{len(old)} rows, then {len(new)}"
        return
    common = [name for name in old if name in new and name not in _IDENTITIES]
    keys = [name for name in common if _counts(old[name]) == _counts(new[name])]
    if keys and not old[keys].equals(new[keys]):
        old = old.sort_values(keys, kind="stable", ignore_index=True)
        new = new.sort_values(keys, kind="stable", ignore_index=True)
        if old[keys].equals(new[keys]):
            yield "the same rows in another order"
    for column in common:
        yield from _column_difference(str(column), old[column], new[column])


def _counts(column: pd.Series) -> Counter[str]:
    return Counter(column.astype("str").fillna(""))


def _column_difference(name: str, old: pd.Series, new: pd.Series) -> Iterator[str]:
    is_number = all(pd.api.types.is_numeric_dtype(column) for column in (old, new))
    if not is_number:
        texts = [column.astype("str").fillna("") for column in (old, new)]
        changed = (texts[0] != texts[1]).to_numpy()
        if changed.any():
            first = int(np.flatnonzero(changed)[0])
            yield f"column {name}: {changed.sum()} of {len(old)}: {old[first]!r}, then {new[first]!r}"
        return
    before = old.to_numpy(dtype="float64")
    after = new.to_numpy(dtype="float64")
    is_close = np.isclose(before, after, rtol=_TOLERANCE, atol=0.0, equal_nan=True)
    if is_close.all():
        return
    with np.errstate(divide="ignore"):
        shift = np.abs(after - before)[~is_close] / np.abs(before)[~is_close]
    known = shift[np.isfinite(shift)]
    size = "a value appears or disappears"
    if len(known):
        size = f"relative, median {np.median(known):.2g}, largest {known.max():.2g}"
    yield f"column {name}: {(~is_close).sum()} of {len(old)}: {size}"


def main() -> int:
    """Compare the tables of two commits; return 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", metavar="BASE", help="a branch, tag or commit")
    parser.add_argument(
        "--head", default=WORKING_TREE, metavar="COMMIT", help="(default: the files here)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for the tables")
    options = parser.parse_args()
    with Scratch() as scratch, checkouts((options.base, options.head)) as found:
        folder = (options.keep or scratch).resolve()
        answers = [
            write_tables(checkout, folder / side)
            for side, checkout in zip(("base", "head"), found, strict=True)
        ]
        count = 0
        for name in COMMANDS:
            lines = list(
                differences(folder / "base" / f"{name}.csv", folder / "head" / f"{name}.csv")
            )
            if answers[0][name] != answers[1][name]:
                lines.append(f"answer: {answers[0][name]}\n      then: {answers[1][name]}")
            print(f"{name}: {'differs' if lines else 'same'}", flush=True)
            for line in lines:
                print(f"  {line}")
            count += bool(lines)
        print(f"{count} of {len(COMMANDS)} differ")
        return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
