"""The paper's design space: fully connected, residual and bottleneck, and recurrent networks (section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.core.schema import option
from paradnn.errors import ConfigError

__all__ = ["Convolutional", "FullyConnected", "Recurrent"]


@dataclass(frozen=True)
class FullyConnected:
    """`layers` hidden layers of `nodes` rectified units, or of as many as it lists, between an input and an output."""

    name: str = option("fc", "the family", choices=("fc",))
    layers: int = option(4, "hidden layers (paper: 4..128)", low=1, high=10_000)
    nodes: int | tuple[int, ...] = option(
        1024, "units of each hidden layer (paper: 32..8192), or of one after the other: [1000,500,100,50]", low=1
    )
    input_size: int = option(2000, "features of an example (paper: 2000..8000)", low=1)
    output_size: int = option(200, "classes (paper: 200..1000); 1: a number, as in a regression", low=1)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        if isinstance(self.nodes, int):
            return f"{self.layers}x{self.nodes}"
        return "-".join(map(str, self.nodes))

    def __post_init__(self) -> None:
        if isinstance(self.nodes, int):
            return
        if len(self.nodes) != self.layers:
            reason = f"model.nodes names {len(self.nodes)} of them: {list(self.nodes)}"
            raise ConfigError("model.layers", self.layers, reason, f"set model.layers={len(self.nodes)}")
        if len(set(self.nodes)) == 1:  # the same network, and so the same point
            object.__setattr__(self, "nodes", self.nodes[0])


@dataclass(frozen=True)
class Convolutional:
    """A residual network: a stem, groups of blocks whose width doubles, a classifier.

    Four groups are He et al.'s form for ImageNet, three their form for pictures of 32 x 32 pixels.
    """

    name: str = option(
        "residual", "residual (two convolutions a block) or bottleneck (three)", choices=("residual", "bottleneck")
    )
    blocks: tuple[int, ...] = option(
        (1, 1, 1, 1),
        "blocks in each of the four groups: one number, or four (paper: 1..8); three: the form for small images",
        low=1,
        high=1000,
        length=4,
        or_length=3,
    )
    filters: int = option(16, "filters of the first group; doubled in each that follows (paper: 16..64)", low=1)
    image_size: int = option(200, "height and width of the image (paper: 200..300)", low=8, high=100_000)
    output_size: int = option(500, "classes (paper: 500..1500)", low=2)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        same = len(set(self.blocks)) == 1 and len(self.blocks) == 4
        count = str(self.blocks[0]) if same else "-".join(map(str, self.blocks))
        return f"{count}x{self.filters} {self.image_size}px"


@dataclass(frozen=True)
class Recurrent:
    """An embedding, stacked recurrent layers of the same width, and an output over the vocabulary at every token."""

    name: str = option("rnn", "the cell: rnn (basic), lstm or gru", choices=("rnn", "lstm", "gru"))
    layers: int = option(1, "stacked recurrent layers (paper: 1..13)", low=1, high=1000)
    embedding_size: int = option(100, "width of the embedding and of every cell (paper: 100..900)", low=1)
    sequence_length: int = option(10, "tokens of an example (paper: 10..90)", low=1, high=1_000_000)
    vocab_size: int = option(32, "distinct tokens (paper: 2..1024)", low=2)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.layers}x{self.embedding_size} t{self.sequence_length}"
