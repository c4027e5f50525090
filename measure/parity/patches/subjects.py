"""What makes patches: the definition run literally, ``Processor``, and transformers' image processors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.preprocess import BackendMissing, BadImage, Definition, Limits, Patches, compile
from onestream.preprocess.backends.base import ON_CPU, REFERENCE, Sample, level_table, network_layout
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.interop.huggingface.proof import installed
from onestream.preprocess.interop.libraries import is_installed, load
from onestream.preprocess.operations import Grid, Output
from onestream.preprocess.patches import Processor
from onestream.preprocess.tolerances import Bounds, Source, Tolerance, tolerance

_OTHER = {
    "aten": "it resizes with Pillow, where the definition resizes as tensors are (arithmetic: aten)",
    "pil": "it resizes tensors, where the definition resizes as Pillow does (arithmetic: pil)",
}


class Literal(Subject[Photo]):
    """What is right: the pixels by Pillow and NumPy, and the values that ``Patches.rows`` states."""

    def __init__(self, definition: Definition, limits: Limits, name: str) -> None:
        super().__init__(name, judged=True)
        assert definition.patches is not None
        self._definition, self._patches = definition, definition.patches
        self._network = _in_place_of_patches(definition)
        pixels = definition.pixels()
        self._whole, self._last = (
            compile(one, backend=REFERENCE, limits=limits) for one in (pixels.stage("decode"), pixels)
        )

    def observe(self, photo: Photo) -> Observation:
        """All stages; *normalize* are the rows."""
        made = []
        for compiled in (self._whole, self._last):
            (sample,) = compiled.run([photo.data])
            if isinstance(sample, BadImage):
                raise Refused(str(sample))
            made.append(sample)
        whole, pixels = made
        rows = self._patches.rows(network_layout(self._network, pixels))
        grid = self._patches.grid((pixels.shape[0], pixels.shape[1]))
        return Observation(
            {"decode": whole, "resize": pixels, "crop": pixels, "normalize": rows},
            grid=grid,
            tokens=_tokens(grid, self._patches),
        )


class _Exact(Subject[Photo]):
    """One that must equal the reference in every bit, if it is judged."""

    def allowed(self, stage: PreprocessingStage, source: Source) -> Bounds | None:
        """Nothing; of files that decoders convert, what the table allows."""
        if not self.judged:
            return None
        if source == "converted":
            return tolerance(ON_CPU, stage, source)
        return Tolerance(ON_CPU, stage, source, 0, 0, 0, "the same decoder, arithmetic and table")


class InProcess(_Exact):
    """``Processor``. Raises as that does."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        super().__init__("Processor", judged=True)
        assert definition.patches is not None
        self._patches = definition.patches
        self._of_values, self._of_levels = (
            Processor(definition, dtype=dtype, limits=limits) for dtype in ("float32", "uint8")
        )

    def observe(self, photo: Photo) -> Observation:
        """What can be seen of it: its two types of rows, and its count of tokens, of the header alone."""
        made, levels = (one([photo.data]) for one in (self._of_values, self._of_levels))
        for error in made.errors.values():
            raise Refused(str(error))
        (tokens,) = self._of_levels.token_counts([photo.data])
        assert not isinstance(tokens, BadImage)
        grid = _grid(made.features(), self._patches)
        pixels = _pixels(_only(levels.pixel_values, self._patches), grid, self._patches)
        values = _only(made.pixel_values, self._patches)
        return Observation({"resize": pixels, "crop": pixels, "normalize": values}, grid=grid, tokens=tokens)

    def close(self) -> None:
        """Close both."""
        self._of_values.close()
        self._of_levels.close()


class ImageProcessor(_Exact):
    """An image processor of transformers, or one that is called like it, of pictures as its ``load_image`` loads them.

    ``processor`` has the definition's arithmetic if it is ``judged``.
    """

    def __init__(self, name: str, processor: Any, definition: Definition, *, judged: bool, cause: str = "") -> None:
        super().__init__(name, judged=judged)
        self.cause = cause
        assert definition.patches is not None
        self._processor, self._patches = processor, definition.patches
        # The levels of normalized values are the nearest of each channel.
        table = level_table(_in_place_of_patches(definition)).astype(np.float64)
        self._between = (table[:, 1:] + table[:, :-1]) / 2

    def observe(self, photo: Photo) -> Observation:
        """All stages; any error of the library is a refusal."""
        try:
            return self._observed(load("transformers").image_utils.load_image(Image.open(io.BytesIO(photo.data))))
        except Exception as error:  # libraries raise what they like on files that they cannot read
            raise Refused(f"{type(error).__name__}: {error}") from None

    def _observed(self, image: Image.Image) -> Observation:
        made = self._processor(images=[image], return_tensors="pt")
        values, grid = _only(np.asarray(made["pixel_values"]), self._patches), _grid(made, self._patches)
        tokens = _tokens(grid, self._patches)
        if hasattr(self._processor, "get_number_of_image_patches"):
            count = self._processor.get_number_of_image_patches(image.height, image.width)
            tokens = count // self._patches.merge**2
        normalized = _pixels(values, grid, self._patches)
        levels = [np.searchsorted(one, normalized[:, :, channel]) for channel, one in enumerate(self._between)]
        pixels = np.stack(levels, axis=2).astype(np.uint8)
        stages: dict[PreprocessingStage, Sample] = {
            "decode": np.asarray(image), "resize": pixels, "crop": pixels, "normalize": values,
        }  # fmt: skip
        return Observation(stages, grid=grid, tokens=tokens)


def image_processors(definition: Definition, config: Config) -> list[Subject[Photo]]:
    """transformers' slow and fast image processors of a config.

    Raises ``BackendMissing`` naming the command where they are not installed, and ``CannotImport``.
    """
    if missing := [library for library in ("transformers", "torchvision") if not is_installed(library)]:
        raise BackendMissing(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    name = str(config.get("image_processor_type")).removesuffix("Fast").removesuffix("Pil")
    assert definition.resize is not None
    arithmetic = definition.resize.arithmetic
    found: list[Subject[Photo]] = []
    for title, suffix, own in (("slow", "", "pil"), ("fast", "Fast", "aten")):
        processor = installed(f"{name}{suffix}", config)
        if processor is None:
            raise BackendMissing(f"transformers has no {name}: pip install --upgrade transformers")
        judged = arithmetic == own
        cause = "" if judged else _OTHER[arithmetic]
        found.append(ImageProcessor(f"transformers {title}", processor, definition, judged=judged, cause=cause))
    return found


def _in_place_of_patches(definition: Definition) -> Definition:
    """The definition whose output is what the rows are made of."""
    return Definition(operations=(*definition.operations[:-1], Output(layout="NHWC", dtype="float32")))


def _only(values: npt.NDArray[Any], patches: Patches) -> npt.NDArray[Any]:
    """The values of the one picture of a batch."""
    only: npt.NDArray[Any] = values[0] if patches.layout == "image" or patches.pad_to is not None else values
    return only


def _pixels(values: npt.NDArray[Any], grid: Grid, patches: Patches) -> npt.NDArray[Any]:
    """The picture, (height, width, c), that ``Patches.rows`` made ``values`` of, of the same type."""
    if patches.layout == "image":
        return values.transpose(1, 2, 0)
    (_, down, across), patch, square = grid, patches.patch, patches.square
    rows = values[: down * across].reshape(down // square, across // square, square, square, -1)
    if patches.layout == "CTHW":
        split = rows.reshape(*rows.shape[:4], -1, patches.temporal, patch, patch)[:, :, :, :, :, 0]
        split = split.transpose(0, 2, 5, 1, 3, 6, 4)
    else:
        split = rows.reshape(*rows.shape[:4], patches.temporal, patch, patch, -1)[:, :, :, :, 0]
        split = split.transpose(0, 2, 4, 1, 3, 5, 6)
    return split.reshape(down * patch, across * patch, -1)


def _grid(made: Mapping[str, Any], patches: Patches) -> Grid:
    """That of the one picture of what an image processor gives, by its names."""
    if "image_grid_thw" in made:
        times, down, across = map(int, made["image_grid_thw"][0])
        return times, down, across
    if "spatial_shapes" in made:
        down, across = map(int, made["spatial_shapes"][0])
        return 1, down, across
    height, width = map(int, made["image_sizes"][0])
    return patches.grid((height, width))


def _tokens(grid: Grid, patches: Patches) -> int:
    return grid[0] * grid[1] * grid[2] // patches.merge**2
