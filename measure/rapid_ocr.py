"""The package rapidocr, set up to read as a cascade of ours with the same networks and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import numpy as np

from onestream.pipelines.networks.ppocr import Network, fetch_network
from onestream.postprocess.kinds.rotation import Rotation
from onestream.postprocess.kinds.text import Text
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.same_lines import Line
from onestream.serving.cascade import Cascade

Settings = Mapping[str, str | int | float | bool]
"""By rapidocr's names."""

PARTS = {"text_lines": "Det", "rotation": "Cls", "text": "Rec"}
"""rapidocr's names for what finds lines, turns them and reads them, by our kinds."""


def can_read(cascade: Cascade) -> bool:
    """Whether rapidocr can do the same: find, turn and read lines with PP-OCR's networks, in pictures of one size."""
    kinds = [stage.postprocess.kind for stage in cascade.stages.values()]
    networks = {stage.network for stage in cascade.stages.values()}
    resize = next(iter(cascade.stages.values())).preprocess.resize
    return (
        kinds in (["text_lines", "text"], list(PARTS))
        and networks <= set(get_args(Network))
        and resize is not None
        and resize.mode == "longer"
    )


def networks_of(cascade: Cascade) -> dict[str, Network]:
    """The networks of a cascade that it can read, by rapidocr's names for its parts."""
    return {PARTS[stage.postprocess.kind]: cast("Network", stage.network) for stage in cascade.stages.values()}


def settings_of(cascade: Cascade) -> dict[str, str | int | float | bool]:
    """A cascade's options by rapidocr's names, but for the networks' files; what is not named is as rapidocr brings it.

    The cascade is one that it can read.
    """
    settings: dict[str, str | int | float | bool] = {
        "Global.use_preprocess_img": False,  # which resizes pictures with a side below 30 or above 2000 pixels
        "Global.use_vertical_padding": False,  # which puts black above and below pictures eight times as wide as high
        "Global.use_cls": False,
        "Global.log_level": "critical",
        "Det.limit_type": "max",
        "Det.score_mode": "fast",
    }
    for stage in cascade.stages.values():
        resize, options = stage.preprocess.resize, stage.postprocess
        if isinstance(options, TextLines):
            assert resize is not None
            assert isinstance(resize.size, int)
            settings |= {
                "Det.limit_side_len": resize.size,
                "Det.thresh": options.threshold,
                "Det.box_thresh": options.box_threshold,
                "Det.unclip_ratio": options.unclip_ratio,
                "Det.use_dilation": options.dilation,
                "Det.max_candidates": options.max_lines,
            }
        elif isinstance(options, Rotation):
            settings |= {"Global.use_cls": True, "Cls.cls_thresh": options.min_score}
        elif isinstance(options, Text):
            settings["Global.text_score"] = options.min_score
    return settings


def open_rapid_ocr(settings: Settings, networks: Mapping[str, Network]) -> Callable[[bytes], list[Line]]:
    """A function from an encoded picture to the lines that rapidocr reads, in this process.

    ``networks`` are those of its parts. Raises ``ImportError``, and ``WeightsError`` as ``fetch_network`` does.
    """
    from rapidocr import RapidOCR

    files = {f"{part}.model_path": str(fetch_network(network)) for part, network in networks.items()}
    read = RapidOCR(params={**settings, **files})
    return lambda picture: _lines(read(picture))


def _lines(output: Any) -> list[Line]:
    """The lines of rapidocr's answer, whose fields are None where it found nothing."""
    if not output.txts:
        return []
    rows = zip(output.boxes, output.txts, output.scores, strict=True)
    return [Line(np.asarray(quad, np.float64), text, float(score)) for quad, text, score in rows]
