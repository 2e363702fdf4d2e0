"""The file that a training is kept in: whole or not there, and only as often as writing is cheap."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paradnn.workloads.learn import Epoch
from paradnn.workloads.learn.training import Checkpoint

VALUES = [np.arange(6, dtype="float32").reshape(2, 3), np.array(7, dtype="int64")]


EPOCH = Epoch(1, 22, 1001.0, 2.0, 0.5, 0.2, 0.3, 0.5, None)


def test_what_was_kept_comes_back_and_what_is_damaged_or_anothers_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "training.npz"
    Checkpoint(str(path)).save([EPOCH, replace(EPOCH, number=2, train_loss=float("nan"))], lambda: VALUES)
    kept = Checkpoint(str(path)).load(VALUES)
    assert kept
    assert [entry.number for entry in kept[0]] == [1, 2]
    assert np.isnan(kept[0][1].train_loss)
    assert all(np.array_equal(one, other) for one, other in zip(kept[1], VALUES, strict=True))
    assert [entry.name for entry in path.parent.iterdir()] == ["training.npz"]
    whole = path.read_bytes()
    for other in ([VALUES[0].T, VALUES[1]], [*VALUES, VALUES[0]]):
        assert Checkpoint(str(path)).load(other) is None
    flipped = bytearray(whole)
    flipped[whole.index(VALUES[0].tobytes()) + 5] ^= 1
    for damaged in (*(whole[:length] for length in range(0, len(whole), 37)), flipped):
        path.write_bytes(damaged)
        assert Checkpoint(str(path)).load(VALUES) is None
    assert "no checkpoint, or a damaged one" in capsys.readouterr().err
    assert Checkpoint(None).load(VALUES) is None


def test_writing_takes_a_tenth_of_the_time_at_most(tmp_path: Path) -> None:
    now = [0.0]
    checkpoint = Checkpoint(str(tmp_path / "training.npz"), clock=lambda: now[0])

    def written() -> bool:
        before = now[0]

        def slowly() -> list[np.ndarray]:
            now[0] += 1.0
            return VALUES

        checkpoint.save([EPOCH], slowly)
        return now[0] > before

    assert written(), "the first epoch is kept however long it took"
    found = []
    for _ in range(4):
        now[0] += 3.1  # an epoch
        found.append(written())
    assert found == [False, False, True, False]
    now[0] += 9.1
    assert written(), "an epoch of nine writes is kept"


def test_a_disk_that_takes_nothing_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(str(tmp_path / "file" / "training.npz"))
    for _ in range(2):
        checkpoint.save([EPOCH], lambda: VALUES)
    assert capsys.readouterr().err.count("no more checkpoints") == 1
