"""What makes patches, or tiles: the definition run literally, ``Processor``, and transformers' image processors."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.preprocess import BackendMissing, BadImage, Definition, Limits, Patches, compile
from onestream.preprocess.backends.base import ON_CPU, REFERENCE, Sample, level_table, network_layout
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.geometry import Size
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.interop.huggingface.proof import installed
from onestream.preprocess.interop.libraries import is_installed, load
from onestream.preprocess.operations import Grid, Output
from onestream.preprocess.operations.tiles import Tiles
from onestream.preprocess.patches import Processor
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import Bounds, Source, Tolerance, tolerance

_OTHER = {
    "aten": "it resizes with Pillow, where the definition resizes as tensors are (arithmetic: aten)",
    "pil": "it resizes tensors, where the definition resizes as Pillow does (arithmetic: pil)",
}


class Literal(Subject[Photo]):
    """What is right: the pixels by Pillow and NumPy, and the values that ``Patches.rows`` or ``Tiles.cut`` states."""

    def __init__(self, definition: Definition, limits: Limits, name: str) -> None:
        super().__init__(name, judged=True)
        self._patches, self._network = _last(definition), _of_values(definition)
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
        grid = self._patches.grid((pixels.shape[0], pixels.shape[1]))
        if isinstance(self._patches, Tiles):
            pixels = _pixels(self._patches.cut(pixels), grid, self._patches)
        values = network_layout(self._network, pixels)
        if isinstance(self._patches, Tiles):
            size = self._patches.size
            values = values.reshape(-1, size, size, 3).transpose(0, 3, 1, 2)
        else:
            values = self._patches.rows(values)
        return Observation(
            {"decode": whole, "resize": pixels, "crop": pixels, "normalize": values},
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
        self._patches = _last(definition)
        self._of_values, self._of_levels = (
            Processor(definition, dtype=dtype, limits=limits) for dtype in ("float32", "uint8")
        )

    def observe(self, photo: Photo) -> Observation:
        """What can be seen of it: its two types of rows, and its count of tokens, of the header alone."""
        made, levels = (one([photo.data]) for one in (self._of_values, self._of_levels))
        for error in made.errors.values():
            raise Refused(str(error))
        each = 1 if isinstance(self._patches, Tiles) else None
        (tokens,) = self._of_levels.token_counts([photo.data], tokens_per_tile=each)
        assert not isinstance(tokens, BadImage)
        (grid,) = map(_as_grid, made.image_grid_thw)
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
        self._processor, self._patches = processor, _last(definition)
        self._planner = Planner(definition.pixels())
        # The levels of normalized values are the nearest of each channel.
        table = level_table(_of_values(definition)).astype(np.float64)
        self._between = (table[:, 1:] + table[:, :-1]) / 2

    def observe(self, photo: Photo) -> Observation:
        """All stages; any error of the library is a refusal."""
        try:
            return self._observed(load("transformers").image_utils.load_image(Image.open(io.BytesIO(photo.data))))
        except Exception as error:  # libraries raise what they like on files that they cannot read
            raise Refused(f"{type(error).__name__}: {error}") from None

    def _observed(self, image: Image.Image) -> Observation:
        made = self._processor(images=[image], return_tensors="pt")
        values = _only(np.asarray(made["pixel_values"]), self._patches)
        grid = _grid(made, values, self._planner((image.height, image.width)).canvas_hw, self._patches)
        tokens = _tokens(grid, self._patches)
        if isinstance(self._patches, Patches) and hasattr(self._processor, "get_number_of_image_patches"):
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
    resizing = definition.for_processor if isinstance(definition.for_processor, Tiles) else definition.resize
    assert resizing is not None
    arithmetic = resizing.arithmetic
    found: list[Subject[Photo]] = []
    for title, suffix, own in (("slow", "", "pil"), ("fast", "Fast", "aten")):
        processor = installed(f"{name}{suffix}", config)
        if processor is None:
            raise BackendMissing(f"transformers has no {name}: pip install --upgrade transformers")
        judged = arithmetic == own
        cause = "" if judged else _OTHER[arithmetic]
        found.append(ImageProcessor(f"transformers {title}", processor, definition, judged=judged, cause=cause))
    return found


def _last(definition: Definition) -> Patches | Tiles:
    assert definition.for_processor is not None
    return definition.for_processor


def _of_values(definition: Definition) -> Definition:
    """The definition whose output, of pixels, has the values that are arranged as patches or tiles."""
    kept = [one for one in definition.operations if not isinstance(one, Patches | Tiles | Output)]
    return Definition(operations=(*kept, Output(layout="NHWC", dtype="float32")))


def _only(values: npt.NDArray[Any], patches: Patches | Tiles) -> npt.NDArray[Any]:
    """The values of the one picture of a batch."""
    if isinstance(patches, Tiles):
        return values.reshape(-1, *values.shape[-3:])
    only: npt.NDArray[Any] = values[0] if patches.pads else values
    return only


def _pixels(values: npt.NDArray[Any], grid: Grid, patches: Patches | Tiles) -> npt.NDArray[Any]:
    """The picture, (height, width, c), of which these are the values, of the same type; tiles below each other."""
    if isinstance(patches, Tiles):
        return values.transpose(0, 2, 3, 1).reshape(-1, patches.size, 3)
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


def _grid(made: Mapping[str, Any], values: npt.NDArray[Any], canvas_hw: Size, patches: Patches | Tiles) -> Grid:
    """That of the one picture of what an image processor gives, by its names; of tiles it gives their number alone."""
    if isinstance(patches, Tiles):
        return len(values), *patches.grid(canvas_hw)[1:]
    if "image_grid_thw" in made:
        return _as_grid(made["image_grid_thw"][0])
    if "spatial_shapes" in made:
        return _as_grid((1, *made["spatial_shapes"][0]))
    height, width = map(int, made["image_sizes"][0])
    return patches.grid((height, width))


def _as_grid(numbers: Iterable[Any]) -> Grid:
    times, down, across = map(int, numbers)
    return times, down, across


def _tokens(grid: Grid, patches: Patches | Tiles) -> int:
    """Tokens of a picture, or tiles, of which only the network says how many tokens they are."""
    return patches.count(grid) if isinstance(patches, Tiles) else patches.count(grid) // patches.merge**2
