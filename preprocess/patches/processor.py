"""A batch of pictures to rows of patches: planned from headers alone, then made on threads, each into its own rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import ON_CPU, Compiled, level_table
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.cpu.patches import write_planes, write_rows
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotCompile, OutOfMemory
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Checked, Encoded, byte_view
from onestream.preprocess.limits import Limits, admit
from onestream.preprocess.operations import Grid, Output
from onestream.preprocess.patches.batch import Batch, Patched, Values, rows_of
from onestream.preprocess.plan import Planner
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

DType = Literal["uint8", "float32", "bfloat16"]
Pixels = npt.NDArray[np.uint8]
Picture = Encoded | Pixels
"""The bytes of an image file, or the pixels of a picture: uint8 (height, width, 3), RGB."""

_MEMORY: dict[DType, type[np.generic]] = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}


class Processor:
    """Executes a definition that ends in ``patches`` on batches of pictures, on ``threads`` threads of one process.

    Decoding, resizing and writing rows hold no lock of Python's. ``dtype`` *uint8* gives the levels before
    ``normalize``, a quarter of float32's bytes, for networks that normalize themselves; the others are normalized.
    Threads may share an instance. Raises ``CannotCompile`` for a definition that does not end in patches, or that
    cannot be executed exactly on a CPU, and ``BackendMissing`` where what decodes is not installed.
    """

    def __init__(
        self, definition: Definition, *, dtype: DType = "uint8", threads: int = 1, limits: Limits | None = None
    ) -> None:
        if definition.patches is None:
            raise CannotCompile("the definition ends in output; a Processor is for one that ends in patches")
        self.definition, self.dtype, self.limits = definition, dtype, limits or Limits()
        self._patches, self._pixels = definition.patches, definition.pixels()
        self._planner, self._table = Planner(self._pixels, self.limits), _table(definition, dtype)
        self._from_pixels = compile_from_picture(self._pixels, backend=ON_CPU, limits=self.limits)
        self._pool = ThreadPoolExecutor(threads, "onestream-patches") if threads > 1 else None
        # One that decodes is for one thread at a time: as many are made as work at once.
        self._idle: SimpleQueue[Compiled] = SimpleQueue()

    def __enter__(self) -> Processor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release threads and memory. The instance cannot be used afterwards."""
        if self._pool is not None:
            self._pool.shutdown()
        while not self._idle.empty():
            self._idle.get().close()

    def __call__(self, pictures: Sequence[Picture], *, out: Values | None = None) -> Patched:
        """The patches of pictures, in order.

        ``out``, (rows or more, columns) of the right type, takes them: shared memory, or that of an earlier batch,
        which saves the time of new memory. A bad picture gives its ``BadImage`` and changes nothing of the others.
        Raises ``ValueError`` for an ``out`` that is too small or of another kind.
        """
        planned = [self._planned(picture) for picture in pictures]
        errors = {index: one for index, one in enumerate(planned) if isinstance(one, BadImage)}
        good = [one for one in planned if not isinstance(one, BadImage)]
        batch = Batch(self._patches, self._pixels.output_spec.channels, [grid for _, grid in good])
        values = batch.memory(np.dtype(_MEMORY[self.dtype]), out)
        made = list((self._pool.map if self._pool else map)(self._make, good, batch.parts(values)))
        indices = [index for index in range(len(planned)) if index not in errors]
        errors |= {index: error for index, error in zip(indices, made, strict=True) if error is not None}
        values, grids = batch.without(values, {number for number, error in enumerate(made) if error is not None})
        return Patched(values, np.array(grids, np.int64).reshape(-1, 3), dict(sorted(errors.items())), self._patches)

    def grids(self, pictures: Sequence[Picture | Size]) -> list[Grid | BadImage]:
        """Frames and patches down and across of each picture, from its header alone, or why it is refused.

        In place of a picture its size will do, (height, width), upright.
        """
        found: list[Grid | BadImage] = []
        for picture in pictures:
            try:
                found.append(self._grid(picture if isinstance(picture, tuple) else self._checked(picture)[1]))
            except BadImage as error:
                found.append(error.as_result())
        return found

    def token_counts(self, pictures: Sequence[Picture | Size]) -> list[int | BadImage]:
        """How many tokens a language model sees of each picture; see ``grids``."""
        square = self._patches.merge**2
        return [grid if isinstance(grid, BadImage) else rows_of(grid) // square for grid in self.grids(pictures)]

    def content_hash(self, picture: Picture) -> str:
        """SHA-256, in hexadecimal, of the definition, the type and the picture: what has the same has the same rows."""
        shape = picture.shape if _is_decoded(picture) else ()
        found = hashlib.sha256(f"{self.definition.digest} {self.dtype} {shape}".encode())
        found.update(byte_view(np.ascontiguousarray(picture) if _is_decoded(picture) else picture))
        return found.hexdigest()

    def _planned(self, picture: Picture) -> tuple[Picture, Grid] | BadImage:
        try:
            checked, size_hw = self._checked(picture)
            return checked, self._grid(size_hw)
        except BadImage as error:
            return error.as_result()

    def _checked(self, picture: Picture) -> tuple[Picture, Size]:
        """A picture, a file with its header, and its size upright."""
        if _is_decoded(picture):
            return picture, (picture.shape[0], picture.shape[1])
        header = admit(picture, self._pixels, self.limits)
        return picture if isinstance(picture, Checked) else Checked(picture, header), header.oriented_hw

    def _grid(self, size_hw: Size) -> Grid:
        if min(size_hw) < 1:
            raise BadImage("corrupt", f"got a picture of {size_hw[1]}x{size_hw[0]} pixels")
        self.limits.check_size(*size_hw)
        grid, most = self._patches.grid(self._planner(size_hw).canvas_hw), self._patches.pad_to
        if most is not None and rows_of(grid) > most:
            raise BadImage("too_many_pixels", f"got {rows_of(grid)} patches; the definition pads to {most}")
        return grid

    def _make(self, planned: tuple[Picture, Grid], part: Values) -> BadImage | None:
        """Write the values of a picture to its part of the batch, or say why it has none."""
        picture, grid = planned
        try:
            pixels = self._from_pixels.run(picture) if _is_decoded(picture) else self._decoded(picture)
            if isinstance(pixels, BadImage):
                return pixels
            self._write(pixels[None], part)
        except MemoryError:
            return OutOfMemory(f"too little memory is free for {rows_of(grid)} patches{MAY_BE_SENT_AGAIN}")
        return None

    def _write(self, frames: Pixels, part: Values) -> None:
        if self._patches.layout == "image":
            write_planes(frames[0], self._table, part)
            return
        patch, temporal, square = map(np.uint64, (self._patches.patch, self._patches.temporal, self._patches.square))
        write_rows(frames, self._table, patch, temporal, square, self._patches.layout == "THWC", part)

    def _decoded(self, picture: Encoded) -> Pixels | BadImage:
        try:
            backend = self._idle.get_nowait()
        except Empty:
            backend = compile(self._pixels, backend=ON_CPU, limits=self.limits, max_batch_size=1)
        try:
            return backend.run([picture])[0]
        finally:
            self._idle.put(backend)


def _is_decoded(picture: Any) -> TypeGuard[Pixels]:
    return isinstance(picture, np.ndarray) and picture.ndim == 3


def _table(definition: Definition, dtype: DType) -> Values:
    """The value of each level of each channel, (c, 256), in memory of ``dtype``; empty for the levels themselves."""
    if dtype == "uint8":
        return np.empty((0, 256), np.uint8)
    operations = (*definition.operations[:-1], Output())
    table = level_table(definition.model_copy(update={"operations": operations})).astype(np.float32)
    if dtype == "float32":
        return table
    # To the nearest, a half to the even one, as PyTorch rounds.
    bits = table.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
