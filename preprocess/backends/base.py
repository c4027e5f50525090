"""The interface of a backend, a compiled definition that is run on encoded images, and what backends refuse by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np
import numpy.typing as npt

from onestream.preprocess.changes import changed
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotCompile, OutOfMemory
from onestream.preprocess.geometry import Quads, Size
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode, Region
from onestream.preprocess.plan import Planner
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

if TYPE_CHECKING:
    from onestream.preprocess.cuda.device import DeviceArray
    from onestream.preprocess.variation import Variation, Vary

BackendName = Literal["reference", "dali", "cvcuda"]
CpuBackendName = Literal["dali", "reference"]
GpuBackendName = Literal["cvcuda", "dali"]
REFERENCE: Final = "reference"
"""The specification."""
ON_CPU: Final = "dali"
"""What serves, and trains by default, on a CPU."""
Device = Literal["cpu", "gpu"]
GpuResize = Literal["exact", "hq"]
"""*exact* is Pillow's in every bit; *hq* is CV-CUDA's ``hq_resize``, with its filter and its tolerance."""
Sample = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a GPU backend decodes JPEGs.

    ``placement`` *gpu* does all of it there, but for the entropy of JPEGs of up to ``cpu_entropy_megapixels``; *hybrid*
    decodes that of all on the CPU. ``hw_load`` is the share, 0 to 1, that the JPEG hardware of some GPUs (A100, H100)
    takes over. The JPEGs of a batch are decoded on so many ``streams`` beside each other.
    """

    placement: Literal["gpu", "hybrid"] = "gpu"
    hw_load: float = 0.0
    streams: int = 4
    cpu_entropy_megapixels: float = 0.0

    @property
    def most_cpu_entropy_pixels(self) -> int:
        """Pixels of the largest JPEG whose entropy the CPU decodes."""
        return int(self.cpu_entropy_megapixels * 1_000_000) if self.placement == "gpu" else 2**31 - 1


class Compiled(ABC):
    """A definition made executable.

    An instance is not thread-safe: give each thread or process its own.
    """

    def __init__(self, definition: Definition, limits: Limits) -> None:
        self.definition = definition
        self.limits = limits
        self._planner = Planner(definition, limits)

    @abstractmethod
    def run(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]:
        """Process encoded images; the result has the same length and order.

        A good image gives an array as ``definition.output_spec`` says. A bad one gives its ``BadImage``, returned and
        not raised, and does not change the results of the others. ``varies`` gives each image a variation in place of
        the definition's geometry; it needs ``compile(varied=True)``.
        """

    def close(self) -> None:  # noqa: B027 (most backends hold nothing)
        """Release what the backend holds. The instance cannot be used afterwards."""


@dataclass(frozen=True, slots=True)
class Queued:
    """The work that ``CompiledOnStream.enqueue`` queued: a sample for each of ``good``, and the others' errors."""

    samples: tuple[DeviceArray, ...]
    good: tuple[int, ...]
    bad: dict[int, BadImage]


class CompiledForGpu(Compiled):
    """A definition made executable by a backend that can leave its samples on a GPU."""

    @abstractmethod
    def run_on_device(
        self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None
    ) -> tuple[Any, dict[int, BadImage]]:
        """Process at most ``max_batch_size`` images on a GPU and leave them there.

        Returns an array or a tensor on the GPU (DLPack) of the good ones in their order, None where there is none,
        valid until the next call, and by index why the others are bad.
        """


class CompiledOnStream(CompiledForGpu):
    """A definition made executable on a stream that its caller may share, for one thread at a time."""

    @abstractmethod
    def enqueue(self, images: Sequence[Encoded], varies: Sequence[Vary] | None = None) -> Queued:
        """Queue a batch of at most ``max_batch_size`` images.

        Good images take consecutive rows; their samples are valid on the stream until the next call. Raises
        ``ValueError`` for a larger batch.
        """


class FromPicture(ABC):
    """The operations of a definition after its first one, made executable on decoded pictures.

    A picture is upright, uint8 (height, width, 3), RGB whatever the definition's colour, so that one picture serves all
    stages of a cascade: ``compile(WHOLE_PICTURE)`` decodes it. An instance is not thread-safe.
    """

    def __init__(self, definition: Definition, limits: Limits) -> None:
        self.definition = definition
        self.limits = limits
        self._planner = Planner(definition, limits)

    @overload
    def run(self, picture: Pixels, quads: None = None, varies: Sequence[Vary] | None = None) -> Sample: ...
    @overload
    def run(self, picture: Pixels, quads: Quads, varies: Sequence[Vary] | None = None) -> list[Sample | BadImage]: ...
    def run(
        self, picture: Pixels, quads: Quads | None = None, varies: Sequence[Vary] | None = None
    ) -> Sample | list[Sample | BadImage]:
        """The sample of the whole picture, or those of its regions, as ``definition.output_spec`` says.

        A definition that begins with ``decode`` takes no quads; one that begins with ``region`` takes those that
        ``quads.choose`` took, (n, 4, 2) float32, and gives one sample for each, in order. Of a region to which the
        definition cannot be applied the ``BadImage`` is returned, and of a picture it is raised. ``varies`` gives each
        region a variation, whose canvas is the region before the definition's operations: its geometry is sampled with
        the region, from the picture around it; of a whole picture the one variation takes the place of the definition's
        geometry. Raises ``ValueError`` for a quad that cannot be cut (``quads.cuts``),
        and for a picture of another shape or dtype.
        """
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or not picture.size:
            raise ValueError(f"got a picture of {picture.dtype}{picture.shape}, expected uint8 (height, width, 3) RGB")
        # The compiled loops take no gaps, and nothing that is read-only.
        picture = np.require(picture, requirements=("C", "W"))
        region = self.definition.source
        if isinstance(region, Region) != (quads is not None):
            raise ValueError(f"the definition begins with {region.op}; quads go with region")
        if not isinstance(region, Region) or quads is None:
            return self._sample(picture, varies[0] if varies else None)
        from onestream.preprocess.projection import homographies
        from onestream.preprocess.quads import checked_cuts

        found = checked_cuts(region, quads, (picture.shape[0], picture.shape[1]), limits=self.limits)
        windows, quarters = found.windows.tolist(), found.quarters.tolist()
        transforms = homographies(found.quads, found.sizes)
        samples: list[Sample | BadImage] = []
        for number, (height, width) in enumerate(found.sizes.tolist()):
            variation = None if varies is None else varies[number]((height, width))
            try:
                if variation is not None and not variation.keeps((height, width)):
                    pixels = self._moved(picture, transforms[number], (height, width), variation)
                elif region.shape == "quad":
                    pixels = self._rectified(picture, transforms[number], (height, width))
                else:
                    left, top, right, bottom = windows[number]
                    pixels = np.rot90(picture[top:bottom, left:right], quarters[number])
                if variation is not None:
                    pixels = np.require(changed(pixels, variation.changes, color="rgb"), requirements=("C", "W"))
                samples.append(self._sample(pixels))
            except BadImage as error:
                samples.append(error.as_result())
            except MemoryError:
                samples.append(
                    OutOfMemory(f"too little memory is free for a region of {width}x{height}{MAY_BE_SENT_AGAIN}")
                )
        return samples

    @abstractmethod
    def _sample(self, pixels: Pixels, vary: Vary | None = None) -> Sample:
        """The network's input of pixels, (height, width, 3) RGB, varied or not. Raises ``BadImage``."""

    def _moved(
        self, picture: Pixels, transform: npt.NDArray[np.float64], size_hw: Size, variation: Variation
    ) -> Pixels:
        """A region, of which the transform is given, as a variation moves it."""
        from onestream.preprocess.projection import Projection

        to_region = Projection(size_hw, size_hw, variation.corners).matrix
        moved = None if variation.warp is None else variation.warp.displacements(size_hw)
        to_picture = np.ascontiguousarray(transform @ to_region)
        return self._rectified(picture, to_picture, size_hw, fill=variation.fill, moved=moved)

    @abstractmethod
    def _rectified(
        self,
        picture: Pixels,
        transform: npt.NDArray[np.float64],
        size_hw: Size,
        *,
        fill: int | None = None,
        moved: npt.NDArray[np.float64] | None = None,
    ) -> Pixels:
        """The rectangle of ``size_hw`` that a transform takes from a picture; see ``reference.rectified``."""


def network_layout(definition: Definition, pixels: npt.NDArray[np.uint8]) -> Sample:
    """Normalize uint8 HWC pixels and put them in the layout and dtype of ``definition``: the specification in NumPy."""
    sample: Sample = pixels
    normalize = definition.normalize
    if normalize is not None:
        sample = sample.astype(np.float32)
        for name, values in normalize.steps:
            sample = sample - values if name == "mean" else sample / values
    output = definition.network_input
    if output.layout == "NCHW":
        sample = sample.transpose(2, 0, 1)
    return np.ascontiguousarray(sample, dtype=output.dtype)


def level_table(definition: Definition) -> npt.NDArray[np.generic]:
    """The network's value for each of the 256 levels of each channel, (channels, 256), by the same sums."""
    channels = definition.output_spec.channels
    levels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], channels, axis=2)
    planar = definition.network_input.model_copy(update={"layout": "NCHW"})
    table = network_layout(definition.model_copy(update={"operations": (*definition.operations[:-1], planar)}), levels)
    return np.ascontiguousarray(table[:, 0, :])


def refuse_regions(definition: Definition, *, what: str) -> None:
    """Raise ``CannotCompile`` where a definition begins with ``region``, and ``what`` takes whole pictures."""
    if isinstance(definition.source, Region):
        raise CannotCompile(
            f"{what} takes whole pictures; this definition begins with region, which takes regions of a decoded "
            "picture: compile_from_picture executes it"
        )


def refuse_patches(definition: Definition) -> None:
    """Raise ``CannotCompile`` where a definition ends in ``patches``; backends end in ``output``."""
    _ = definition.network_input


def refuse_decoding(definition: Definition, *, what: str) -> None:
    """Raise ``CannotCompile`` where ``decode`` asks for what only our own code does, of ``what``."""
    if isinstance(definition.source, Decode) and definition.source.beyond_decoders:
        raise CannotCompile(f"{what} cannot do {_named(definition.source.beyond_decoders)} of decode")


def refuse_reduced(definition: Definition, *, what: str) -> None:
    """Raise ``CannotCompile`` where JPEGs are to be decoded at a fraction of their size, which ``what`` cannot."""
    if definition.scales_dct:
        raise CannotCompile(f"{what} decodes JPEGs whole; decode.dct_scaling is for the backends on a CPU")


def _named(fields: dict[str, str | int]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in fields.items())


def refuse_inexact(definition: Definition, *, backend: str, own_filter: bool) -> None:
    """Raise ``CannotCompile`` for what a backend cannot do exactly that resizes one window of an image, once.

    ``own_filter``: a library resizes on a GPU by a filter of its own, and not by Pillow's arithmetic.
    """
    geometry = definition.geometry
    for operation in geometry:
        if own_filter and isinstance(operation, Resize) and operation.filter != "bilinear":
            raise CannotCompile(
                f"{backend} cannot resize with filter {operation.filter!r} exactly on a GPU; it supports 'bilinear' "
                "there (it keeps fractions between its two passes where Pillow rounds and clips); "
                f"{_USE_EXACT}"
            )
        if own_filter and isinstance(operation, Resize) and operation.arithmetic != "pil":
            raise CannotCompile(
                f"{backend} cannot resize with arithmetic {operation.arithmetic!r} on a GPU; its own is within its "
                f"tolerance of 'pil' there; {_USE_EXACT}"
            )
        if own_filter and isinstance(operation, Resize) and not operation.antialias:
            raise CannotCompile(
                f"{backend} is not known to resize without antialias exactly on a GPU; it supports antialias true "
                f"there; {_USE_EXACT}"
            )
    if not definition.resizes_once:
        raise CannotCompile(f"{backend} does one resize, before any crop or pad; this definition has another order")
    if own_filter and not always_visible(definition):
        raise CannotCompile(
            f"{backend} cannot do center_crop after pad or center_crop on a GPU: it may miss the image; {_USE_EXACT}"
        )
    fills = definition.fills
    if len(fills) > 1:
        raise CannotCompile(f"{backend} fills with one value; this definition may fill with {fills}")
    if own_filter:
        level_fill(definition, backend=f"{backend} on a GPU")


def level_fill(definition: Definition, *, backend: str) -> int | None:
    """The level of the border, which a GPU sets byte by byte; None without one.

    Raises ``CannotCompile`` for a border in a colour.
    """
    fill = next(iter(definition.fills), None)
    if isinstance(fill, tuple):
        raise CannotCompile(
            f"{backend} fills with one level for every channel; this definition fills with {list(fill)}. Backends on a "
            "CPU fill with a colour"
        )
    return fill


def always_visible(definition: Definition) -> bool:
    """Whether some of the image certainly stays on the canvas: one centre crop at most, before any pad.

    A crop of one pixel after a pad may miss an image of one pixel, since the two round the odd pixel differently.
    """
    windows = [operation for operation in definition.geometry if not isinstance(operation, Resize)]
    return not any(isinstance(operation, CenterCrop) for operation in windows[1:])


def refuse_for_graph(definition: Definition) -> None:
    """The same where all of a definition is one graph of DALI's, on either device."""
    refuse_inexact(definition, backend="dali", own_filter=True)


_USE_EXACT = "cvcuda with resize 'exact' can"
