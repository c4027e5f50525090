"""The CPU's part after decoding: resample the part, place it on the canvas, bring it to the network's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.preprocess.backends.base import FromPicture, Pixels, Sample, level_table, refuse_inexact
from onestream.preprocess.changes import AnyChange, Factors, changed
from onestream.preprocess.cpu.fixed_point import resample_fixed_point
from onestream.preprocess.cpu.pillow_weights import columns_first, line_digits
from onestream.preprocess.cpu.resample import interpolated, look_up_interleaved, look_up_planar, recolor
from onestream.preprocess.definition import Definition
from onestream.preprocess.geometry import Size, Spans, Window
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import SUPPORT, Arithmetic, Filter
from onestream.preprocess.plan import Plan
from onestream.preprocess.variation import Vary


class CpuFinish:
    """Finishes decoded parts of one definition, image by image."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        resize = definition.resize
        self._filter: Filter | None = resize.filter if resize else None
        self._arithmetic: Arithmetic = resize.arithmetic if resize else "pil"
        self._antialias = resize is None or resize.antialias
        self._to_bgr = definition.color == "bgr"
        self._fill = next(iter(definition.fills), 0)
        self._table = level_table(definition).astype(np.float32)

    @property
    def is_plain(self) -> bool:
        """Whether a part is resized by Pillow's triangle, in colour, and put on the canvas: no other work."""
        plain = self._filter == "bilinear" and self._arithmetic == "pil" and self._antialias
        return plain and self._definition.color != "gray"

    def finish(self, pixels: Pixels, plan: Plan) -> Sample:
        """The network's input from the decoded part of a plan, (height, width, 3) uint8 RGB.

        The result shares no memory with ``pixels``, which may be the decoder's own.
        """
        if self._definition.color == "gray":
            pixels = np.array(Image.fromarray(pixels).convert("L"))[:, :, None]
        if plan.variation is None:
            return self.put(self._resized(pixels, plan, plan.spans, self._filter), plan)
        # Pillow cuts and then resizes, so nothing outside may reach the filter.
        part, cut = plan.part, plan.cut
        pixels = np.array(pixels[Window(cut.top - part.top, cut.left - part.left, *cut.size_hw).slices])
        if plan.transform is None:
            placed = self._resized(pixels, plan, Window(0, 0, *cut.size_hw).spans, self._filter or "bilinear")
            upside_down, flip = plan.mirrored
            if flip:
                # Four times as fast as a copy of the mirrored view, which every later step would make.
                placed = np.take(placed, np.arange(placed.shape[1])[::-1], axis=1)
            placed = placed[:: -1 if upside_down else 1]
        else:
            placed = self._sampled(pixels, plan, plan.transform, plan.variation.fill)
        return self.change(placed, plan.variation.changes)

    def _resized(self, pixels: Pixels, plan: Plan, spans: Spans, filter: Filter | None) -> Pixels:
        """The window of a plan, which lies at ``spans`` of ``pixels``, in the definition's order."""
        window = plan.window
        if not window.height:
            return pixels[:0, :0]
        if filter is None:
            top, left = (round(first) for first, _ in spans)
            placed = pixels[Window(top, left, *window.size_hw).slices]
            return np.array(placed[:, :, ::-1] if self._to_bgr else placed)
        if filter not in SUPPORT:
            placed = self._nearest(pixels, plan, filter)
            return placed[:, :, ::-1] if self._to_bgr else placed
        if not self._antialias:
            part = plan.part if plan.variation is None else Window(0, 0, *plan.cut.size_hw)
            return interpolated(
                pixels, window, plan.decoded_hw, plan.resized_hw, origin=(part.top, part.left), to_bgr=self._to_bgr
            )
        return resample_fixed_point(
            pixels,
            spans,
            window.size_hw,
            filter,
            digits_hw=self._digits(plan, filter),
            columns_first=self._arithmetic == "pil" and columns_first(plan.decoded_hw, plan.resized_hw),
            to_bgr=self._to_bgr,
        )

    def _digits(self, plan: Plan, filter: Filter) -> Size:
        (height, width), (rows, columns) = plan.decoded_hw, plan.resized_hw
        return (
            line_digits(height, rows, filter, self._arithmetic),
            line_digits(width, columns, filter, self._arithmetic),
        )

    def _nearest(self, pixels: Pixels, plan: Plan, filter: Filter) -> Pixels:
        """The window, of which ``pixels`` are all that is cut."""
        if self._arithmetic == "pil":
            (height, width), channels = plan.resized_hw, pixels.shape[2]
            image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
            resized = np.array(image.resize((width, height), Image.Resampling.NEAREST))
            return resized.reshape(height, width, channels)[plan.window.slices]
        from onestream.preprocess.cpu.aten import nearest_places  # serving seldom resizes so

        rows, columns = (
            nearest_places(source, count, exact=filter == "nearest-exact")[kept]
            for source, count, kept in zip(plan.cut.size_hw, plan.resized_hw, plan.window.slices, strict=True)
        )
        placed: Pixels = pixels[rows[:, None], columns]
        return placed

    def put(self, placed: Pixels, plan: Plan) -> Sample:
        """The network's input from the resized window of a plan, (window.height, window.width, channels) uint8.

        Its channels are in the definition's order.
        """
        if plan.fills:
            canvas = np.full((*plan.canvas_hw, placed.shape[2]), self._fill, np.uint8)
            canvas[Window(*plan.offset, *plan.window.size_hw).slices] = placed
            placed = canvas
        return self._to_network(np.ascontiguousarray(placed))

    def change(self, canvas: Pixels, changes: Sequence[AnyChange]) -> Sample:
        """The network's input of a canvas, (height, width, channels) uint8, with changes made to it."""
        if changes:
            # Serving changes no levels, and to load these loops takes a moment.
            from onestream.preprocess.cpu.levels import apply

            canvas = changed(canvas, changes, color=self._definition.color, recolor=_recolored, apply=apply)
        return self._to_network(np.require(canvas, requirements=("C", "W")))

    def _sampled(self, cut: Pixels, plan: Plan, transform: npt.NDArray[np.float64], fill: int | None) -> Pixels:
        size_hw, channels = plan.cut.size_hw, cut.shape[2]
        if plan.resized_hw != size_hw:
            # By Pillow's own arithmetic, so that every bit is the reference's.
            first, whole = columns_first(size_hw, plan.resized_hw), Window(0, 0, *size_hw).spans
            cut = resample_fixed_point(cut, whole, plan.resized_hw, "bilinear", columns_first=first, to_bgr=False)
        if channels == 1:
            cut = np.repeat(cut, 3, axis=2)
        # Serving pictures turns none, and to load these loops takes a moment.
        from onestream.preprocess.cpu.rectify import rectify

        placed = rectify(cut, transform, plan.canvas_hw, fill=fill, moved=plan.moved)[:, :, :channels]
        return placed[:, :, ::-1] if self._to_bgr else placed

    def _to_network(self, pixels: Pixels) -> Sample:
        output = self._definition.network_input
        if output.dtype == "uint8":
            return pixels if output.layout == "NHWC" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
        height, width, channels = pixels.shape
        planar = output.layout == "NCHW"
        sample = np.empty((channels, height, width) if planar else pixels.shape, np.float32)
        (look_up_planar if planar else look_up_interleaved)(pixels, self._table, sample)
        return sample if output.dtype == "float32" else sample.astype(output.dtype)


class CpuFromPicture(FromPicture):
    """Decoded pictures by the compiled resize, and tables; regions are read where they lie in the picture."""

    def __init__(self, definition: Definition, limits: Limits) -> None:
        super().__init__(definition, limits)
        refuse_inexact(definition, backend="dali", own_filter=False)
        from onestream.preprocess.cpu.rectify import rectify

        self._finish, self._rectify = CpuFinish(definition), rectify

    def _sample(self, pixels: Pixels, vary: Vary | None = None) -> Sample:
        plan = self._planner((pixels.shape[0], pixels.shape[1]), vary)
        return self._finish.finish(np.ascontiguousarray(pixels[plan.part.slices]), plan)

    def _rectified(self, *given: Any, **options: Any) -> Pixels:
        return self._rectify(*given, **options)


def _recolored(pixels: Pixels, factors: Factors) -> Pixels:
    """``changes.recolored``, compiled."""
    pixels = np.array(pixels, order="C")
    recolor(pixels, factors)
    return pixels
