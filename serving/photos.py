"""The real photos that come with the package."""

from __future__ import annotations

from importlib import resources


def bundled_photos() -> dict[str, bytes]:
    """The photos by file name."""
    folder = resources.files("onestream.serving") / "data" / "photos"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".jpg")), key=lambda file: file.name)
    return {file.name: file.read_bytes() for file in files}
