"""A person cut out of a still picture and put before the pipeline's background, as frames of a video are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.cli.demo_page.served import Form
from onestream.postprocess.kinds.matte import ColorBackground, Matte
from onestream.postprocess.matte.background import Background
from onestream.postprocess.matte.composer import Composer, picture_window
from onestream.postprocess.planes import from_rgb
from onestream.preprocess import compile
from onestream.preprocess.backends.reference import picture as picture_of
from onestream.preprocess.video.common.color import ColorRule, Planes, to_rgb_reference

LONGEST_SIDE = 1920
"""A larger picture is composed at this size, in pixels: the background's blur is meant for frames of that size."""

_BT709, _NOT_SUBSAMPLED = 1, (0, 0)


def composed(form: Form, image: bytes, matte: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The picture, RGB (height, width, 3), with what is not person replaced.

    ``matte`` is the form's output for it, (height, width), of a kind that cuts persons out. A background picture
    lies on the server only, so a plain colour stands in. Raises ``ValueError`` where the definition crops and parts of
    the picture have no matte, or where the reference refuses the picture.
    """
    (decoded,) = compile(form.definition.stage("decode"), limits=form.limits).run([image])
    if not isinstance(decoded, np.ndarray):
        raise ValueError(str(decoded))
    window = picture_window(form.definition, (decoded.shape[0], decoded.shape[1]))
    picture = picture_of(decoded, form.definition.color).convert("RGB")
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    y, u, v = from_rgb(np.asarray(picture), "bt709", "full", _NOT_SUBSAMPLED)
    planes = Planes(y, u, v, (picture.height, picture.width), _NOT_SUBSAMPLED, 8, _BT709, full_range=True)
    seen = matte[window.top : window.top + window.height, window.left : window.left + window.width]
    # The plain loops: a page shows one picture at a time, and needs no compiler for it.
    result = Composer(_background(form), rule=ColorRule()).compose_reference(planes, np.ascontiguousarray(seen))
    return to_rgb_reference(result, ColorRule())


def _background(form: Form) -> Background:
    try:
        background = (form.postprocess or Matte()).behind(_nowhere)
    except FileNotFoundError:
        background = ColorBackground().open(_nowhere)
    assert background is not None, "the answer of such a form cuts persons out"
    return background


def _nowhere() -> bytes:
    raise FileNotFoundError
