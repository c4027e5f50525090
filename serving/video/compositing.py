"""Makes the background of composed frames from a matte's options."""

from __future__ import annotations

from pathlib import Path

from onestream.postprocess.matte.background import Background, Blur, Color, Picture, read_picture
from onestream.postprocess.options import BlurBackground, ColorBackground, Matte
from onestream.serving.building.repository import BACKGROUND_FILE


def background_of(options: Matte, folder: Path) -> Background:
    """A new background, for one stream. ``folder`` is that of the model, where the picture of a background lies.

    Raises ``OSError`` where the picture is missing and ``ValueError`` where it cannot be read.
    """
    background = options.background
    if isinstance(background, ColorBackground):
        return Color(background.rgb)
    if isinstance(background, BlurBackground):
        return Blur(background.radius)
    return Picture(read_picture((folder / BACKGROUND_FILE).read_bytes()))
