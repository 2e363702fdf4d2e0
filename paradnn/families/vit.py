"""A Vision Transformer (Dosovitskiy et al. 2021).

A convolution makes one token of every patch; a learned class token comes first, learned positions are added; pre-norm
blocks of attention and a feed-forward layer of four times the width (GELU); a last normalisation; a dense layer reads
the class token. Without dropout. 12 layers of 768 with 12 heads and patches of 16 on 224 pixels are ViT-B/16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import Family, Model
from paradnn.families.attention import blocks, check_heads
from paradnn.families.built import BuiltModel, classifier, image_input
from paradnn.families.layers import Layer, Multiply, dense


@dataclass(frozen=True)
class VisionTransformer(Model):
    """A Vision Transformer: an encoder over the patches of an image and a class token, from which a dense layer reads
    the class. heads must divide width, patch must divide image_size."""

    shown: ClassVar[str] = "{layers}x{width} h{heads} p{patch} {image_size}px"

    name: str = "vit"
    layers: int = option(4, "blocks of attention and feed-forward (ViT-B: 12, ViT-L: 24)", low=1, high=1000)
    width: int = option(192, "of the blocks; feed-forward layers are four times as wide", low=1)
    heads: int = option(3, "of every attention; they divide the width", low=1)
    patch: int = option(16, "height and width of a patch; it divides the image", low=1, high=100_000)
    image_size: int = option(224, "height and width of the image", low=1, high=100_000)
    output_size: int = option(1000, "classes", low=2)

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
        if self.image_size % self.patch:
            reason = f"is no multiple of model.patch={self.patch}"
            nearest = max(1, round(self.image_size / self.patch)) * self.patch
            raise ConfigError("model.image_size", self.image_size, reason, f"write for example {nearest}")

    @property
    def patches(self) -> int:
        """How many the image has."""
        return (self.image_size // self.patch) ** 2

    def layer_list(self) -> list[Layer]:
        width, channels, tokens = self.width, 3 * self.patch**2, self.patches + 1
        embedding = Layer(
            "patches",
            macs=self.patches * channels * width,
            input_macs=0,
            parameters=(channels + 1) * width + width + tokens * width,
            read=3 * self.image_size**2,
            written=tokens * width,
            kept=self.patches * width,
            is_first=True,
            products=(Multiply(self.patches, channels, width),),
        )
        encoder = blocks(tokens, width, self.heads, self.layers)
        return [embedding, *encoder, dense("logits", width, self.output_size, is_last=True)]

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        from keras import layers

        from paradnn.families.parts.attention import Attention, ClassToken, FeedForward, Positions

        inputs = image_input(self.image_size)
        x = layers.Conv2D(self.width, self.patch, self.patch)(inputs)
        x = layers.Reshape((self.patches, self.width))(x)
        x = Positions(learned=True)(ClassToken()(x))
        for _ in range(self.layers):
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + Attention(self.width, self.heads)(y)
            y = layers.LayerNormalization(epsilon=1e-6)(x)
            x = x + FeedForward(self.width, 4 * self.width, "gelu")(y)
        x = layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]
        return classifier(inputs, layers.Dense(self.output_size)(x), self.output_size)


_SWEPT, _SWEEP = ("width", "patch", "layers"), "model.width=192,384,768 batch_size=1,4,16"
FAMILY = Family("vit", VisionTransformer, "images", _SWEPT, _SWEEP, place=7)
