"""Vidur's times of NCCL that come with the package, and its tables: small ones of the same columns."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.published.source import log_found, shipped
from analysis.store.load import load
from benchmarks.published.vidur import read_vidur

#: (devices, devices of a host, bytes, ms): 20 us and 100 GB/s, on two hosts 10 GB/s.
ROWS = [
    (2, of, size, 0.02 + size / rate)
    for of, rate in ((2, 1e8), (1, 1e7))
    for size in (2048 * 4**power for power in range(6))
]


def table(pattern: str, rows: list[tuple[float, ...]] = ROWS) -> pd.DataFrame:
    """As Vidur's program writes it, with columns that are not read."""
    frame = pd.DataFrame(rows, columns=["num_workers", "devices_per_node", "size", f"time_stats.{pattern}.median"])
    return frame.assign(rank=0, collective=pattern, max_devices_per_node=8)


def folder_of(place: Path) -> Path:
    """A clone: two machines, of which the second has a file of the first, byte for byte."""
    for machine, pattern in (("a100_dgx", "all_reduce"), ("a100_dgx", "send_recv"), ("h100_dgx", "send_recv")):
        path = place / "data" / "profiling" / "network" / machine / f"{pattern}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        table(pattern, [*ROWS, ROWS[0]]).to_csv(path)
    return place


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], str]) -> str:
    uri = blank_store(tmp_path_factory.mktemp("store") / "mlflow.db")
    log_found(read_vidur(folder_of(tmp_path_factory.mktemp("vidur"))), uri, "vidur")
    return uri


def test_a_row_is_a_run_of_a_channel(imported: str) -> None:
    frame = load(imported, experiments="vidur", family="channel")
    assert len(frame) == 26
    run = frame[(frame["model.pattern"] == "all_reduce") & (frame["model.hosts"] == 2)].iloc[-1]
    assert (run["device"], run["model.transport"], run["precision"]) == ("NVIDIA A100, DGX", "nccl", "float16")
    assert (run["protocol"], run["source"], run["model.processes"]) == ("vidur", "published", 2)
    us = 20 + run["model.bytes"] / 1e4
    assert run["transfer_us"] == pytest.approx(us)
    assert run["sent_bytes_per_second"] == run["bus_bytes_per_second"] == pytest.approx(run["model.bytes"] / us * 1e6)
    assert sorted(frame.loc[frame["model.bytes"] == 2048, "replicate"]) == [0, 0, 0, 0, 1, 1]
    parents = load(imported, experiments="vidur", kind="import", unfinished=True)
    assert sorted(parents["run_name"]) == [
        "published, Vidur NVIDIA A100, DGX, all_reduce",
        "published, Vidur NVIDIA A100, DGX, send_recv",
    ]


def test_a_second_import_logs_nothing_and_a_copy_is_named(imported: str, tmp_path: Path) -> None:
    found = read_vidur(folder_of(tmp_path))
    assert log_found(found, imported, "vidur") == (0, 26)
    assert found.left_out == ["h100_dgx/send_recv.csv is a100_dgx/send_recv.csv, byte for byte"]


def test_the_fit_of_the_store_finds_what_was_planted(
    imported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hosts tell one channel from another."""
    drawn = tmp_path / "channel.png"
    assert main(["channel", "--store", imported, "--experiment", "vidur", "--figure", str(drawn)]) == 0
    text = capsys.readouterr().out
    assert "nccl all_reduce, hosts 1: start-up 20 us" in text
    assert "bandwidth of the largest messages 100 GB/s" in text
    assert "nccl send_recv, hosts 2: start-up 20 us" in text
    assert "bandwidth of the largest messages 10 GB/s" in text
    assert drawn.stat().st_size > 10_000


def test_all_rows_of_the_published_files_come_with_the_package() -> None:
    runs = shipped("vidur").runs
    assert len({run.point_id for run in runs}) == len(runs) == 24_376
