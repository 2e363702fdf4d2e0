"""Real models of images: what the paper sets beside its space in Figure 1 (section 2.2), with little to choose."""

from __future__ import annotations

from dataclasses import dataclass

from paradnn.core.schema import option

__all__ = ["Classifier", "MobileNet", "RetinaNet"]


@dataclass(frozen=True)
class Classifier:
    """A published network over square images; what the papers fix, such as depth and width, is fixed here."""

    name: str = option("resnet50", "the network", choices=("resnet50", "densenet121", "squeezenet"))
    image_size: int = option(224, "height and width of the image (papers: 224)", low=32, high=100_000)
    output_size: int = option(1000, "classes (papers: 1000)", low=2)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.image_size}px"


@dataclass(frozen=True)
class MobileNet:
    """Depthwise separable convolutions, every layer `alpha` times as wide as published (Howard et al. 2017)."""

    name: str = option("mobilenet", "the network", choices=("mobilenet",))
    alpha: float = option(1.0, "width multiplier (paper: 0.25, 0.5, 0.75, 1)", low=0.1, high=100)
    image_size: int = option(224, "height and width of the image (paper: 128..224)", low=32, high=100_000)
    output_size: int = option(1000, "classes (paper: 1000)", low=2)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.alpha:g}x {self.image_size}px"


@dataclass(frozen=True)
class RetinaNet:
    """A detector: ResNet-50, a feature pyramid, two heads over nine anchors a place (Lin et al. 2017)."""

    name: str = option("retinanet", "the network", choices=("retinanet",))
    image_size: int = option(
        320, "height and width of the image (paper: 400..800 on the short side)", low=32, high=100_000
    )
    output_size: int = option(80, "classes of objects (COCO: 80)", low=1)

    @property
    def size(self) -> str:
        """Short description of the model's size."""
        return f"{self.image_size}px"
