"""A batch of pictures to rows: planned from headers alone, then made on threads, each picture into its own rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from onestream.preprocess.backends.base import ON_CPU, level_table
from onestream.preprocess.compile import compile_from_picture
from onestream.preprocess.cpu.patches import write_planes, write_rows
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotCompile, OutOfMemory
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import byte_view
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import Grid, Output, Patches
from onestream.preprocess.operations.tiles import Tiles
from onestream.preprocess.patches.batch import Batch, Patched, Planned, Values
from onestream.preprocess.patches.pictures import Decoders, Picture, Pixels, check_size, checked, is_decoded
from onestream.preprocess.patches.tile_writer import write_tiles
from onestream.preprocess.patches.videos import Video, Videos, VideoSize, is_video
from onestream.preprocess.plan import Planner
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

DType = Literal["uint8", "float32", "bfloat16"]
_Item = TypeVar("_Item")
_MEMORY: dict[DType, type[np.generic]] = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}


class Processor:
    """Executes a definition that ends in ``patches`` or ``tiles`` on batches of pictures, on threads of one process.

    Decoding, resizing and writing rows hold no lock of Python's. ``dtype`` *uint8* gives the levels before
    ``normalize``, a quarter of float32's bytes, for networks that normalize themselves; the others are normalized.
    Threads may share an instance. Raises ``CannotCompile`` for a definition that ends in output, or that cannot be
    executed exactly on a CPU, and ``BackendMissing`` where what decodes is not installed.
    """

    def __init__(
        self, definition: Definition, *, dtype: DType = "uint8", threads: int = 1, limits: Limits | None = None
    ) -> None:
        if definition.for_processor is None:
            raise CannotCompile("the definition ends in output; a Processor is for one that ends in patches or tiles")
        self.definition, self.dtype, self.limits = definition, dtype, limits or Limits()
        self._patches, self._pixels = definition.for_processor, definition.pixels()
        self._planner, self._table = Planner(self._pixels, self.limits), value_table(definition, dtype)
        self._from_pixels = compile_from_picture(self._pixels, backend=ON_CPU, limits=self.limits)
        self._pool = ThreadPoolExecutor(threads, "onestream-patches") if threads > 1 else None
        self._decoders = Decoders(self._pixels, self.limits)

    def __enter__(self) -> Processor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release threads and memory. The instance cannot be used afterwards."""
        if self._pool is not None:
            self._pool.shutdown()
        self._decoders.close()
        if "_videos" in vars(self):
            self._videos.close()

    def __call__(self, pictures: Sequence[Picture], *, out: Values | None = None) -> Patched:
        """The patches or tiles of pictures, in order.

        ``out``, as many rows or more of the right type, takes them: shared memory, or that of an earlier batch,
        which saves the time of new memory. A bad picture gives its ``BadImage`` and changes nothing of the others.
        Raises ``ValueError`` for an ``out`` that is too small or of another kind.
        """
        return self._made([_or_error(self._plan, picture) for picture in pictures], out, of_videos=False)

    def videos(self, videos: Sequence[Video], *, out: Values | None = None) -> Patched:
        """The patches of videos, in order, each of them given as its frames, which have one size.

        ``out`` as of pictures. A bad video gives the ``BadImage`` of a frame and changes nothing of the others. Raises
        likewise, and ``CannotCompile`` for a definition that does more than resize and cut rows.
        """
        return self._made([_or_error(self._videos.plan, video) for video in videos], out, of_videos=True)

    def grids(self, items: Sequence[Picture | Size | Video | VideoSize]) -> list[Grid | BadImage]:
        """The grid of each picture or video, a row of ``image_grid_thw``, from headers alone, or why it is refused.

        In place of a picture its size will do, (height, width), upright; of a video (frames, height, width).
        """
        planned = [_or_error(self._plan_any, item) for item in items]
        return [one if isinstance(one, BadImage) else one.grid for one in planned]

    def token_counts(
        self, items: Sequence[Picture | Size | Video | VideoSize], *, tokens_per_tile: int | None = None
    ) -> list[int | BadImage]:
        """How many tokens a language model sees of each picture or video; see ``grids``.

        Of tiles the network says ``tokens_per_tile``, such as InternVL 256. Raises ``ValueError`` where they lack it.
        """
        if not isinstance(self._patches, Tiles):
            square, each = self._patches.merge**2, 1
        elif tokens_per_tile is None:
            raise ValueError("how many tokens a tile becomes is the network's: give tokens_per_tile")
        else:
            square, each = 1, tokens_per_tile
        count = self._patches.count
        return [grid if isinstance(grid, BadImage) else count(grid) // square * each for grid in self.grids(items)]

    def content_hash(self, item: Picture | Video) -> str:
        """SHA-256, in hexadecimal, of the definition, the type and a picture or video: the same has the same rows."""
        content: Any = item
        if is_video(content):
            frames = " ".join(map(self.content_hash, content))
            return hashlib.sha256(f"video {frames}".encode()).hexdigest()
        shape = content.shape if is_decoded(content) else ()
        found = hashlib.sha256(f"{self.definition.digest} {self.dtype} {shape}".encode())
        found.update(byte_view(np.ascontiguousarray(content) if is_decoded(content) else content))
        return found.hexdigest()

    @cached_property
    def _videos(self) -> Videos:
        if isinstance(self._patches, Tiles):
            raise CannotCompile("videos take a definition that ends in patches, got tiles")
        return Videos(self._pixels, self._patches, self.limits)

    def _plan_any(self, item: Any) -> Planned:
        if is_video(item) or (isinstance(item, tuple) and len(item) == 3):
            return self._videos.plan(item)
        return self._plan(item)

    def _plan(self, picture: Picture | Size) -> Planned:
        if isinstance(picture, tuple):
            return Planned(self._grid(check_size(picture, self.limits)), (), picture)
        admitted, size_hw = checked(picture, self._pixels, self.limits)
        return Planned(self._grid(size_hw), (partial(self._frame, admitted),), size_hw)

    def _grid(self, size_hw: Size) -> Grid:
        canvas_hw = self._planner(size_hw).canvas_hw
        if isinstance(self._patches, Tiles):
            self.limits.check_resized(self._patches.canvas(canvas_hw))
        grid, most = self._patches.grid(canvas_hw), self._patches.pad_to
        if most is not None and (count := self._patches.count(grid)) > most:
            raise BadImage("too_many_pixels", f"got {count} patches; the definition pads to {most}")
        return grid

    def _frame(self, picture: Picture) -> Pixels | BadImage:
        pixels = self._from_pixels.run(picture) if is_decoded(picture) else self._decoders.run(picture)
        return pixels if isinstance(pixels, BadImage) else pixels[None]

    def _made(self, planned: Sequence[Planned | BadImage], out: Values | None, *, of_videos: bool) -> Patched:
        good = [(index, one) for index, one in enumerate(planned) if not isinstance(one, BadImage)]
        batch = Batch(self._patches, self._pixels.output_spec.channels, [one.grid for _, one in good])
        values = batch.memory(np.dtype(_MEMORY[self.dtype]), out)
        parts: list[Values] = []
        owners: list[int] = []
        steps: list[Callable[[], Pixels | BadImage]] = []
        for number, ((_, one), part) in enumerate(zip(good, batch.parts(values), strict=True)):
            # A step along time has as many rows as every other; the layout image has one.
            parts += [part] if len(one.steps) == 1 else np.split(part, len(one.steps))
            owners += [number] * len(one.steps)
            steps += one.steps
        failed: dict[int, BadImage] = {}
        for number, error in zip(
            owners, (self._pool.map if self._pool else map)(self._make, steps, parts), strict=True
        ):
            if error is not None:
                failed.setdefault(number, error)
        errors = {index: one for index, one in enumerate(planned) if isinstance(one, BadImage)}
        errors |= {good[number][0]: error for number, error in failed.items()}
        values, grids = batch.without(values, set(failed))
        sizes = [one.size_hw for number, (_, one) in enumerate(good) if number not in failed]
        made, source_sizes = (np.array(grids, np.int64).reshape(-1, 3), np.array(sizes, np.int64).reshape(-1, 2))
        return Patched(values, made, dict(sorted(errors.items())), self._patches, source_sizes, of_videos)

    def _make(self, step: Callable[[], Pixels | BadImage], part: Values) -> BadImage | None:
        """Write the values of a step along time to its part of the batch, or say why it has none."""
        try:
            frames = step()
            if isinstance(frames, BadImage):
                return frames
            self._write(frames, part)
        except MemoryError:
            return OutOfMemory(f"too little memory is free for {len(part)} {self._patches.op}{MAY_BE_SENT_AGAIN}")
        return None

    def _write(self, frames: Pixels, part: Values) -> None:
        if isinstance(self._patches, Tiles):
            write_tiles(self._patches, frames[0], self._table, part, self.limits)
            return
        if self._patches.layout == "image":
            write_planes(frames[0], self._table, part)
            return
        patch, temporal, square = map(np.uint64, (self._patches.patch, self._patches.temporal, self._patches.square))
        write_rows(frames, self._table, patch, temporal, square, self._patches.layout == "THWC", part)


def _or_error(plan: Callable[[_Item], Planned], item: _Item) -> Planned | BadImage:
    try:
        return plan(item)
    except BadImage as error:
        return error.as_result()


def value_table(definition: Definition, dtype: DType) -> Values:
    """The value of each level of each channel, (c, 256), in memory of ``dtype``; empty for the levels themselves."""
    if dtype == "uint8":
        return np.empty((0, 256), np.uint8)
    operations = (*(one for one in definition.operations if not isinstance(one, Patches | Tiles)), Output())
    table = level_table(definition.model_copy(update={"operations": operations})).astype(np.float32)
    if dtype == "float32":
        return table
    # To the nearest, a half to the even one, as PyTorch rounds.
    bits = table.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
