"""A definition as a torchvision transform, for code that has a torchvision dataset and its own loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from onestream.preprocess.backends.base import refuse_reduced, refuse_regions
from onestream.preprocess.backends.reference import to_8_bit
from onestream.preprocess.definition import Definition
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.moves import Move
from onestream.preprocess.operations import Decode, Region

if TYPE_CHECKING:
    from torchvision.transforms import v2


def to_torchvision(definition: Definition) -> v2.Compose:
    """The definition as a ``transforms.v2.Compose`` from a PIL image to a tensor, equal to the reference backend.

    Where torchvision has the operation it is torchvision's own; what it has not (a longer side, a box to fit, a pad to
    a size, another rounding) is a small callable of ours. A torchvision that was built for another PyTorch will do.
    Raises ``BackendMissing`` where torchvision is not installed, or cannot be imported at all, and ``CannotCompile``
    for a definition that begins with ``region``, or with ``decode`` and ``dct_scaling``.
    """
    refuse_regions(definition, what="to_torchvision")
    refuse_reduced(definition, what="torchvision")
    v2, torch = load("torchvision.transforms.v2"), load("torch")
    steps: list[Any] = [_To8Bit(definition.source)]
    for operation in definition.geometry:
        steps.append(operation.twin(v2) or _Moved(operation))
    steps.append(v2.PILToTensor())
    output, normalize = definition.network_input, definition.normalize
    if normalize is not None:
        channels = len(normalize.mean)
        steps.append(v2.ToDtype(torch.float32, scale=False))
        *scale, (_, mean), (_, std) = normalize.steps
        # Not ToDtype(scale=True), which rounds otherwise in the last bit.
        steps += [v2.Normalize([0.0] * channels, [float(value)] * channels) for _, value in scale]
        steps.append(v2.Normalize(mean.tolist(), std.tolist()))
    if output.layout == "NHWC":
        steps.append(_ChannelsLast())
    steps.append(v2.ToDtype(getattr(torch, output.dtype), scale=False))
    return v2.Compose(steps)


class _To8Bit:
    """The decoded picture as the definition sees it: oriented, 8 bit, RGB, BGR or gray, without alpha."""

    def __init__(self, source: Decode | Region) -> None:
        assert isinstance(source, Decode)
        self.source = source

    def __call__(self, image: Image.Image) -> Image.Image:
        if not isinstance(image, Image.Image):
            raise TypeError(f"expected a PIL image, got {type(image).__name__}; decode with PIL.Image.open")
        return to_8_bit(image, self.source, image.info.get("icc_profile"))

    def __repr__(self) -> str:
        return f"To8Bit({self.source!r})"


class _Moved:
    """A resize, crop or pad that torchvision has not."""

    def __init__(self, operation: Move) -> None:
        self.operation = operation

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.operation.apply(image)

    def __repr__(self) -> str:
        return repr(self.operation)


class _ChannelsLast:
    """(channels, height, width) to (height, width, channels)."""

    def __call__(self, image: Any) -> Any:
        return image.permute(1, 2, 0).contiguous()

    def __repr__(self) -> str:
        return "ChannelsLast()"
