"""Attention models: the encoder-decoder of 2017, and the two families that came of it, language models and ViTs."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.core.schema import option
from paradnn.errors import ConfigError

__all__ = ["LanguageModel", "Transformer", "VisionTransformer"]


@dataclass(frozen=True)
class Transformer:
    """An encoder-decoder for translation (Vaswani et al. 2017): post-norm, sinusoidal positions, shared embeddings."""

    name: str = option("transformer", "the model", choices=("transformer",))
    layers: int = option(6, "of the encoder, and as many of the decoder (base, big: 6)", low=1, high=1000)
    width: int = option(512, "of embeddings and layers (base 512, big 1024)", low=1)
    heads: int = option(8, "of every attention; they divide the width (base 8, big 16)", low=1)
    feed_forward: int = option(2048, "hidden units of the feed-forward layers (base 2048, big 4096)", low=1)
    sequence_length: int = option(64, "tokens of a source sentence, and of a target", low=1, high=1_000_000)
    vocab_size: int = option(37000, "tokens of the vocabulary that both languages share", low=2)
    dropout: float = option(0.1, "of embeddings and of every sub-layer's output (base 0.1, big 0.3)", low=0.0, high=0.9)
    label_smoothing: float = option(0.1, "share of the target spread over all tokens", low=0.0, high=0.9)

    def __post_init__(self) -> None:
        _check_heads(self.width, self.heads)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.layers}x{self.width} h{self.heads} ff{self.feed_forward} t{self.sequence_length}"


@dataclass(frozen=True)
class LanguageModel:
    """A decoder that predicts the next token, as GPT-2: pre-norm, learned positions, output tied to the embedding."""

    name: str = option("gpt", "the family", choices=("gpt",))
    layers: int = option(4, "blocks of attention and feed-forward (GPT-2: 12..48)", low=1, high=1000)
    width: int = option(256, "of embeddings and blocks; feed-forward layers are four times as wide", low=1)
    heads: int = option(4, "of every attention; they divide the width", low=1)
    sequence_length: int = option(128, "tokens of an example, each with a learned position", low=1, high=1_000_000)
    vocab_size: int = option(8192, "distinct tokens (GPT-2: 50257)", low=2)

    def __post_init__(self) -> None:
        _check_heads(self.width, self.heads)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.layers}x{self.width} h{self.heads} t{self.sequence_length}"


@dataclass(frozen=True)
class VisionTransformer:
    """An encoder over the patches of an image and a class token, from which a dense layer reads the class."""

    name: str = option("vit", "the family", choices=("vit",))
    layers: int = option(4, "blocks of attention and feed-forward (ViT-B: 12, ViT-L: 24)", low=1, high=1000)
    width: int = option(192, "of the blocks; feed-forward layers are four times as wide", low=1)
    heads: int = option(3, "of every attention; they divide the width", low=1)
    patch: int = option(16, "height and width of a patch; it divides the image", low=1, high=100_000)
    image_size: int = option(224, "height and width of the image", low=1, high=100_000)
    output_size: int = option(1000, "classes", low=2)

    def __post_init__(self) -> None:
        _check_heads(self.width, self.heads)
        if self.image_size % self.patch:
            reason = f"is no multiple of model.patch={self.patch}"
            nearest = max(1, round(self.image_size / self.patch)) * self.patch
            raise ConfigError("model.image_size", self.image_size, reason, f"write for example {nearest}")

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.layers}x{self.width} h{self.heads} p{self.patch} {self.image_size}px"


def _check_heads(width: int, heads: int) -> None:
    """Every head has the same width; ConfigError names both numbers."""
    if width % heads:
        nearest = max(1, round(width / heads)) * heads
        remedy = f"write for example {nearest}, or heads that divide it"
        raise ConfigError("model.width", width, f"is no multiple of model.heads={heads}", remedy)
