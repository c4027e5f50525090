"""Loads the compiled loops that streams use, before the first stream comes."""

from __future__ import annotations

from importlib import import_module

_DECODING = (
    "onestream.preprocess.backends.finish",
    "onestream.preprocess.video.common.resized",
    "onestream.preprocess.video.common.color_kernels",
)
_COMPOSING = ("onestream.postprocess.matte.kernels", "onestream.postprocess.matte.blur_kernels")


def load_loops(*, composing: bool) -> None:
    """Import the modules of loops of decoding on the CPU, which a GPU may leave some streams to, and of composing.

    Else the first stream would wait for them: two seconds, and fifteen where nothing is compiled and cached yet.
    Raises ``ImportError`` without Numba.
    """
    for name in (*_DECODING, *(_COMPOSING if composing else ())):
        import_module(name)
