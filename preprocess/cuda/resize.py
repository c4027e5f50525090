"""The exact resize on a GPU: every bit is Pillow's or PyTorch's, or the reference's where these have no such resize.

A batch of pictures of any sizes takes one launch: ``resample`` where the resize antialiases (``resample_kernels``), and
else ``interpolate`` (``resize_kernels``). Only what a crop keeps is computed. Pictures are RGB, or YUV that becomes RGB
while it is read.

Bytes moved for one RGB picture to 224x224 with the default crop of 224 of 256, by arithmetic and **not measured**: the
part of the decoded picture that is read, and the pixels written.

=========  ========  ================  =======  ========  ===========================
picture    filter    source            target   all       at 3 TB/s, the bound of H100
=========  ========  ================  =======  ========  ===========================
500x375    bilinear  330x329, 326 KB   151 KB   0.48 MB   0.16 us
500x375    bicubic   333x333, 333 KB   151 KB   0.48 MB   0.16 us
1920x1080  bilinear  950x950, 2708 KB  151 KB   2.86 MB   0.95 us
1920x1080  bicubic   958x958, 2753 KB  151 KB   2.90 MB   0.97 us
=========  ========  ================  =======  ========  ===========================

How near to this the kernels come, by a model, stands in docs/gpu.md. Weights are 18 to 43 KB for each size, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from onestream.preprocess.cpu.pillow_weights import columns_first
from onestream.preprocess.cuda.device import DeviceArray, Stream
from onestream.preprocess.cuda.line_tables import Line, Numbers, neighbour_tables, weight_tables
from onestream.preprocess.cuda.picture_kernels import PictureKernels
from onestream.preprocess.cuda.resample_kernels import RESAMPLE_KERNELS
from onestream.preprocess.cuda.resize_kernels import KERNELS
from onestream.preprocess.cuda.source_kernels import WORK, YUV, YuvFormat
from onestream.preprocess.cuda.staging import Staging
from onestream.preprocess.cuda.tables import Tables
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import SUPPORT, Arithmetic, Filter
from onestream.preprocess.plan import Plan


@dataclass(frozen=True, slots=True)
class ToResize:
    """A decoded picture, (height, width, 3) uint8 RGB interleaved, and the canvas that its window goes to.

    With ``yuv`` the source is the memory of a picture of that format. The canvas is (height, width, channels) uint8 as
    ``plan.canvas_hw`` says, without gaps between its pixels; what the window leaves free stays as it is.
    """

    source: DeviceArray
    plan: Plan
    canvas: DeviceArray
    yuv: YuvFormat | None = None


class ExactResize:
    """The resize of one definition for batches of pictures on one stream; belongs to its thread.

    ``resize`` is None where windows are copied as they are; with one channel, colours become Pillow's L before they are
    resized, and ``to_bgr`` writes three in reverse order. Nothing waits, and no memory is allocated but where a batch
    needs more than any before.
    """

    def __init__(self, resize: Resize | None, *, channels: int, stream: Stream, to_bgr: bool = False) -> None:
        self._channels, self._stream, self._to_bgr = channels, stream, to_bgr
        filter: Filter = resize.filter if resize else "nearest"
        self._arithmetic: Arithmetic = resize.arithmetic if resize else "pil"
        two_passes = resize is not None and resize.antialias and filter in SUPPORT
        source, self._kernel = (RESAMPLE_KERNELS, "resample") if two_passes else (KERNELS, "interpolate")
        make = weight_tables if two_passes else neighbour_tables
        self._staging = Staging(stream)
        self._kernels = PictureKernels(stream, self._staging, source=source, names=[self._kernel])
        self._tables = Tables(stream, self._staging, partial(make, filter=filter, arithmetic=self._arithmetic))
        self._formats: dict[YuvFormat, DeviceArray] = {}

    def enqueue(self, items: Sequence[ToResize]) -> None:
        """Queue a batch. The sources must stay until the stream has passed.

        Raises ``ValueError`` for a source of another size than its plan's, or of another layout.
        """
        pictures: list[tuple[int, ...]] = []
        lines: list[Line] = []
        for item in items:
            if item.plan.window.height:
                pictures.append(self._picture(item))
                lines += _lines(item.plan)
        if not pictures:
            return
        batch = _Batch(*np.array(pictures, np.int64).T)
        # Of the columns and of the rows of each picture.
        down, across = (_Tables(*one.T) for one in self._tables.about(lines).reshape(-1, 2, 3).transpose(1, 0, 2))
        works = np.zeros(len(pictures), WORK)
        for name in ("source", "source_pitch", "target", "target_pitch", "yuv", "height", "width"):
            works[name] = getattr(batch, name)
        works["rows"], works["columns"] = down.address, across.address
        works["top"], works["left"] = batch.cut_top + down.first, batch.cut_left + across.first
        works["source_height"], works["source_width"] = down.length, across.length
        works["channels"], works["to_bgr"] = self._channels, self._to_bgr
        if self._arithmetic == "pil":
            works["columns_first"] = columns_first(
                (batch.cut_height, batch.cut_width), (batch.resized_height, batch.resized_width)
            )
        self._kernels.launch([(self._kernel, works)])

    def _picture(self, item: ToResize) -> tuple[int, ...]:
        """The numbers of a ``_Batch``."""
        plan, source, canvas = item.plan, item.source, item.canvas
        cut, window, (top, left) = plan.cut, plan.window, plan.offset
        height, width = plan.source_hw
        pitch, *inner = source.strides or (3 * width, 3, 1)
        if item.yuv is not None:
            if (item.yuv.height, item.yuv.width) != plan.source_hw:
                raise ValueError(f"got a picture of {item.yuv.height, item.yuv.width} for a plan of {plan.source_hw}")
        elif source.shape != (height, width, 3) or inner != [3, 1]:
            raise ValueError(
                f"got pixels of {source.shape}, {source.byte_strides} bytes apart, for a plan of "
                f"{plan.source_hw}; expected RGB, interleaved"
            )
        rows, columns, channels = canvas.shape
        if top + window.height > rows or left + window.width > columns:
            raise ValueError(f"a window of {window.size_hw} at {plan.offset} is not inside a canvas of {canvas.shape}")
        canvas_pitch = canvas.strides[0] if canvas.strides else columns * channels
        return (
            source.pointer, pitch, canvas.pointer + top * canvas_pitch + left * channels, canvas_pitch,
            0 if item.yuv is None else self._format(item.yuv), window.height, window.width,
            cut.top, cut.left, cut.height, cut.width, *plan.resized_hw,
        )  # fmt: skip

    def _format(self, format: YuvFormat) -> int:
        """Its address. Those of one size and colour are few, and all are kept."""
        if format not in self._formats:
            self._formats[format] = self._stream.allocate((1,), YUV)
            self._staging.upload(np.array([format], YUV), self._formats[format])
        return self._formats[format].pointer


class _Batch(NamedTuple):
    """Where each picture and the window's place on its canvas lie, and their sizes."""

    source: Numbers
    source_pitch: Numbers
    target: Numbers
    target_pitch: Numbers
    yuv: Numbers
    height: Numbers
    width: Numbers
    cut_top: Numbers
    cut_left: Numbers
    cut_height: Numbers
    cut_width: Numbers
    resized_height: Numbers
    resized_width: Numbers


class _Tables(NamedTuple):
    """Of each picture's columns, or rows: where the table is, and what of the source it reads (``line_tables``)."""

    address: Numbers
    first: Numbers
    length: Numbers


def _lines(plan: Plan) -> tuple[Line, Line]:
    """Of a column and of a row."""
    cut, window, (height, width) = plan.cut, plan.window, plan.resized_hw
    upside_down, flip = plan.mirrored
    return (
        Line(cut.height, height, window.top, window.height, -1 if upside_down else 1),
        Line(cut.width, width, window.left, window.width, -1 if flip else 1),
    )
