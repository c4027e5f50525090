"""Hypothesis strategies for definitions."""

from __future__ import annotations

from hypothesis import reject
from hypothesis import strategies as st
from pydantic import ValidationError

from onestream.preprocess import CenterCrop, Decode, Definition, Letterbox, Normalize, Output, Pad, Resize
from onestream.preprocess.operations import Operation

SIDES = st.integers(1, 48)
BOXES = st.tuples(SIDES, SIDES)
FILTERS = st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"])
ROUNDINGS = st.sampled_from(["truncate", "nearest", "up"])
ALIGNMENTS = st.sampled_from(["center", "top_left"])
SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90)) | st.tuples(st.integers(1, 3), st.integers(1, 300))
"""(height, width) of images, extreme aspect ratios among them."""

CROPS = st.builds(CenterCrop, size=BOXES, rounding=st.sampled_from(["nearest", "truncate"]))


@st.composite
def resizes(draw: st.DrawFn, filters: st.SearchStrategy[str] = FILTERS) -> Resize:
    mode = draw(st.sampled_from(["shorter", "longer", "exact", "fit", "height"]))
    size = draw(SIDES if mode in ("shorter", "longer") else BOXES)
    fields = {"mode": mode, "size": size, "filter": draw(filters), "rounding": draw(ROUNDINGS)}
    if mode not in ("exact", "height"):
        # Seldom, since not all that takes definitions takes these.
        multiple = fields["multiple_of"] = draw(st.sampled_from([1, 1, 1, 8]))
        fields["size"] = size * multiple if isinstance(size, int) else (size[0] * multiple, size[1] * multiple)
        fields |= draw(st.sampled_from([{}, {}, {"enlarge": False}, {"shrink": False}]))
        if mode == "shorter" and draw(st.booleans()):
            fields["max_size"] = fields["size"] + multiple * draw(st.integers(0, 40))
            fields["rounding"] = draw(ROUNDINGS | st.sampled_from(["half_up", "detr", "quotient"]))
    return Resize(**fields)


def pads(values: st.SearchStrategy[int]) -> st.SearchStrategy[Pad]:
    return st.builds(
        Pad,
        size=st.tuples(st.integers(30, 120), st.integers(30, 120)),
        value=values,
        align=ALIGNMENTS,
        multiple_of=st.sampled_from([(0, 0), (0, 0), (0, 8), (16, 1)]),
    )


def letterboxes(
    values: st.SearchStrategy[int], filters: st.SearchStrategy[str] = FILTERS
) -> st.SearchStrategy[Letterbox]:
    return st.builds(Letterbox, size=BOXES, value=values, align=ALIGNMENTS, filter=filters, rounding=ROUNDINGS)


@st.composite
def definitions(draw: st.DrawFn, *, one_fill: bool = True, filters: st.SearchStrategy[str] = FILTERS) -> Definition:
    """Definitions that every backend on a CPU compiles: one resize at most, first, then crops and pads.

    With ``one_fill`` every border is black; a backend that fills with one value only can do all of them.
    """
    color = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    values = st.just(0) if one_fill else st.integers(0, 255)
    operations: list[Operation] = [Decode(color=color)]
    first = draw(st.sampled_from(["none", "resize", "letterbox"]))
    if first == "resize":
        operations.append(draw(resizes(filters)))
    if first == "letterbox":
        operations.append(draw(letterboxes(values, filters)))
    operations += draw(st.lists(CROPS | pads(values), max_size=2))
    channels = 1 if color == "gray" else 3
    dtypes = ["float32", "float16", "uint8"]
    if draw(st.booleans()):
        scale = draw(st.sampled_from([1.0, 127.5, 255.0]))
        # In units of the scaled values, as people choose them.
        mean, std = st.floats(0, 255 / scale), st.floats(25 / scale, 255 / scale)
        per_channel = {"min_size": channels, "max_size": channels}
        operations.append(
            Normalize(
                mean=draw(st.lists(mean, **per_channel)),
                std=draw(st.lists(std, **per_channel)),
                scale=scale,
                folded=draw(st.booleans()),
            )
        )
        dtypes.remove("uint8")
    if draw(st.booleans()):
        operations.append(Output(layout=draw(st.sampled_from(["NCHW", "NHWC"])), dtype=draw(st.sampled_from(dtypes))))
    try:
        return Definition(operations=operations)
    except ValidationError:
        # A pad below the size of what it must hold; test_definition.py is about these.
        reject()
