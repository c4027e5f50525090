"""Loads the compiled loops that streams use, before the first stream comes."""

from __future__ import annotations

from importlib import import_module

from onestream.postprocess.kinds import AnyPostprocess

_DECODING = (
    "onestream.preprocess.backends.finish",
    "onestream.preprocess.video.common.resized",
    "onestream.preprocess.video.common.color_kernels",
)
_WORKING = {
    "matte": ("onestream.postprocess.matte.kernels", "onestream.postprocess.matte.background"),
    "detection": ("onestream.postprocess.detection.drawing",),
}


def load_loops(works_on: AnyPostprocess | None) -> None:
    """Import the modules of loops of decoding on the CPU, which a GPU may leave some streams to, and of what a
    postprocessing does to frames.

    Else the first stream would wait for them: two seconds, and fifteen where nothing is compiled and cached yet.
    Raises ``ImportError`` without Numba.
    """
    for name in (*_DECODING, *(_WORKING[works_on.kind] if works_on else ())):
        import_module(name)
