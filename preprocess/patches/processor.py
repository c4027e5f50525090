"""A batch of pictures to rows of patches: planned from headers alone, then made on threads, each into its own rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from onestream.preprocess.backends.base import ON_CPU, Compiled, level_table
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.cpu.patches import write_rows
from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import BadImage, CannotCompile, OutOfMemory
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Checked, Encoded, byte_view
from onestream.preprocess.limits import Limits, admit
from onestream.preprocess.operations import Grid, Output
from onestream.preprocess.plan import Planner
from onestream.wire.refusals import MAY_BE_SENT_AGAIN

if TYPE_CHECKING:
    import torch

DType = Literal["uint8", "float32", "bfloat16"]
Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
Picture = Encoded | Pixels
"""The bytes of an image file, or the pixels of a picture: uint8 (height, width, 3), RGB."""

_MEMORY: dict[DType, type[np.generic]] = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}


@dataclass(frozen=True)
class Patched:
    """The patches of a batch.

    ``pixel_values``: (rows, channels * temporal * patch * patch), or without ``flatten`` (rows, channels * temporal,
    patch, patch), uint8 or float32; of bfloat16, which NumPy has not, its bits in uint16 (``to_torch`` has the type).
    Rows of the pictures follow each other. ``image_grid_thw``: int64 (pictures, 3), frames and patches down and across.
    Both leave out the pictures in ``errors``, by their index.
    """

    pixel_values: Values
    image_grid_thw: npt.NDArray[np.int64]
    errors: dict[int, BadImage]

    def features(self) -> dict[str, Values]:
        """All that transformers' image processor gives, by its names."""
        return {"pixel_values": self.pixel_values, "image_grid_thw": self.image_grid_thw}

    def to_torch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``pixel_values`` and ``image_grid_thw`` as tensors, which share their memory."""
        return to_tensor(self.pixel_values), to_tensor(self.image_grid_thw)


def to_tensor(values: Values) -> torch.Tensor:
    """A tensor that shares the memory of an array; uint16 are the bits of bfloat16."""
    import torch

    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if values.dtype == np.uint16 else tensor


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
        grids = [one if isinstance(one, BadImage) else one[1] for one in planned]
        ends = np.cumsum([0 if isinstance(grid, BadImage) else _rows(grid) for grid in grids], dtype=np.int64).tolist()
        values = self._memory(ends[-1] if ends else 0, out)
        parts = [values[first:end] for first, end in zip([0, *ends], ends, strict=False)]
        made = list((self._pool.map if self._pool else map)(self._make, planned, parts))
        errors = {index: error for index, error in enumerate(made) if error is not None}
        if any(len(parts[index]) for index in errors):
            # Data that is damaged behind a good header is rare: rows move only then.
            kept = [part for part, error in zip(parts, made, strict=True) if error is None]
            values = np.concatenate([values[:0], *kept])
        good = [grid for grid, error in zip(grids, made, strict=True) if error is None]
        return Patched(values, np.array(good, np.int64).reshape(-1, 3), errors)

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
        return [grid if isinstance(grid, BadImage) else _rows(grid) // square for grid in self.grids(pictures)]

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
        return self._patches.grid(self._planner(size_hw).canvas_hw)

    def _memory(self, rows: int, out: Values | None) -> Values:
        shape, dtype = self._patches.row_shape(self._pixels.output_spec.channels), np.dtype(_MEMORY[self.dtype])
        if out is None:
            return np.empty((rows, *shape), dtype)
        if out.dtype != dtype or out.shape[1:] != shape or not out.ndim or len(out) < rows or not out.flags.carray:
            columns = ", ".join(map(str, shape))
            raise ValueError(
                f"got out of {out.dtype}{out.shape}, expected {dtype}({rows} or more, {columns}), contiguous, writable"
            )
        return out[:rows]

    def _make(self, planned: tuple[Picture, Grid] | BadImage, rows: Values) -> BadImage | None:
        """Write the patches of a picture to its rows, or say why it has none."""
        if isinstance(planned, BadImage):
            return planned
        picture, _ = planned
        patch, temporal, square = map(np.uint64, (self._patches.patch, self._patches.temporal, self._patches.square))
        try:
            pixels = self._from_pixels.run(picture) if _is_decoded(picture) else self._decoded(picture)
            if isinstance(pixels, BadImage):
                return pixels
            write_rows(pixels[None], self._table, patch, temporal, square, rows.reshape(len(rows), -1))
        except MemoryError:
            return OutOfMemory(f"too little memory is free for {len(rows)} patches{MAY_BE_SENT_AGAIN}")
        return None

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


def _rows(grid: Grid) -> int:
    return grid[0] * grid[1] * grid[2]


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
