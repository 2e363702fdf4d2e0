"""Make analysis/published/data from clones of the published repositories.

    python -m benchmarks.published archive=paradnn-original/scripts/data deepbench=DeepBench/results
        vidur=vidur/data/profiling/network tiny=tiny_results_v1.3 layers=benchmarks/published/layers.csv

See docs/validation/published-data.md.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.published.source import DATA, JSON_COLUMNS, PUBLICATION_COLUMNS


def main(*words: str) -> None:
    """Write a file per NAME=FOLDER."""
    for word in words:
        name, _, folder = word.partition("=")
        found = getattr(import_module(f"benchmarks.published.{name}"), f"read_{name}")(Path(folder))
        rows = [
            dict(zip(PUBLICATION_COLUMNS, publication, strict=False))
            | vars(run)
            | {key: json.dumps(vars(run)[key]) for key in JSON_COLUMNS}
            for publication in found.publications
            for run in publication.runs
        ]
        pq.write_table(
            pa.Table.from_pylist(rows), path := DATA / f"{name}.parquet", compression="zstd"
        )
        size = f"{path.stat().st_size / 2**10:,.0f} KiB"
        print(f"{len(found.runs):,} runs, {size}: {path.name}", *found.skipped_entries, sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
