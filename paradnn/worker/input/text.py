"""The pipeline of token sequences, stage by stage: read, tokenise, cut into windows, batch.

Lines are read from several files at once and put together in chunks; a chunk's words become numbers by a hash (or its
bytes their values), and the numbers windows of one token more than a sequence: inputs are all but the last, targets all
but the first. What is left of a chunk behind its last window is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from paradnn.worker.frameworks import Unavailable
from paradnn.worker.input.generated import generated_text

__all__ = ["STAGES", "TextPipeline", "text_files"]

STAGES = ("read", "tokenise", "window", "batch")
#: Lines of a chunk at least; as many as a window has tokens where that is more, so that a chunk has a window.
_LINES = 256
#: An iterator ends after so many chunks and is made again: where there is no text in them, it does end.
_EPOCH = 65_536


def text_files(data: Mapping[str, Any]) -> list[str]:
    """The files to read; Unavailable where there are none."""
    if data["path"] is None:
        return [str(path) for path in generated_text(data)]
    root = Path(data["path"])
    if not root.exists():
        raise Unavailable(f"data.path={root}: there is no such file or folder here")
    paths = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    files = [str(path) for path in paths if not path.name.startswith(".") and path.stat().st_size]
    if not files:
        raise Unavailable(f"data.path={root}: there is no text in it")
    return files


class TextPipeline:
    """Windows of `length` + 1 tokens below `vocabulary`, in batches."""

    damaged = 0

    def __init__(self, data: Mapping[str, Any], length: int, vocabulary: int, batch_size: int, seed: int) -> None:
        self._data, self._length, self._vocabulary = data, length, vocabulary
        self._batch_size, self._seed = batch_size, seed
        self._files = text_files(data)
        self._kept = self._lines(data["readers"]).cache() if data["cache"] == "text" else None

    def examples_of(self, stage: str) -> float:
        """Examples in an element of a stage: a chunk has as many as it has windows, in the mean of the first."""
        if stage in ("window", "batch"):
            return 1.0
        counts = [int(tf.size(chunk)) // (self._length + 1) for chunk in self.stages(None)["tokenise"].take(8)]
        return max(1.0, sum(counts) / max(1, len(counts)))

    def stages(self, threads: int | None, batch_size: int | None = None) -> dict[str, tf.data.Dataset]:
        """Stage -> the pipeline up to it; the last gives (numbers (b,), windows (b, length + 1) int32).

        `threads` is the number of parallel calls, or AUTOTUNE; None: all in the caller's thread.
        Batches have another size where one is given.
        """
        lines = self._kept or self._lines(self._data["readers"] if threads else 1)
        chunks = lines.repeat().batch(max(_LINES, 2 * self._length + 2), drop_remainder=True).take(_EPOCH)
        tokens = chunks.map(self._tokens, threads)
        windows = tokens.map(self._windows, threads).unbatch()
        if self._data["shuffle"] > 1:
            windows = windows.shuffle(self._data["shuffle"], self._seed)
        batched = windows.enumerate().batch(batch_size or self._batch_size, drop_remainder=True)
        return dict(zip(STAGES, (chunks, tokens, windows, batched), strict=True))

    def _lines(self, readers: int) -> tf.data.Dataset:
        names = tf.data.Dataset.from_tensor_slices(self._files).shuffle(len(self._files), self._seed)
        parallel = readers if readers > 1 else None
        return names.interleave(tf.data.TextLineDataset, cycle_length=readers, num_parallel_calls=parallel)

    def _tokens(self, lines: tf.Tensor) -> tf.Tensor:
        """The chunk's tokens, int32."""
        if self._data["tokens"] == "bytes":
            values = tf.io.decode_raw(tf.strings.reduce_join(lines, separator="\n"), tf.uint8)
            return tf.cast(values, tf.int32) % self._vocabulary
        words = tf.strings.split(lines).flat_values
        return tf.cast(tf.strings.to_hash_bucket_fast(words, self._vocabulary), tf.int32)

    def _windows(self, tokens: tf.Tensor) -> tf.Tensor:
        size = self._length + 1
        whole = tf.size(tokens) // size * size
        return tf.reshape(tokens[:whole], [-1, size])
