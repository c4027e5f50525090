"""Draws the training set: coloured shapes on photos, with a COCO file of their boxes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console
from rich.progress import track

PHOTOS = Path(__file__).parents[1] / "photos"
PHOTOS_OF = {"train": ("astronaut", "cat", "coffee", "flower"), "test": ("rocket", "temple")}
CATEGORIES = {1: "circle", 3: "square", 7: "triangle"}
"""Ids with gaps, as COCO's."""
COLORS = ("crimson", "royalblue", "gold", "limegreen", "darkviolet", "white")


def write_pictures(folder: Path, *, count: int, seed: int, console: Console) -> None:
    """Write ``count`` pictures into ``folder`` with ``train.json`` and ``test.json``, a fifth of them for the test.

    A photo serves either for training or for the test.
    """
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
    files = {part: {"images": [], "annotations": [], "categories": categories} for part in PHOTOS_OF}
    for number in track(range(count), "drawing the pictures", console=console):
        part = "test" if number < count // 5 else "train"
        picture = _photo(random, str(random.choice(PHOTOS_OF[part])))
        name = f"{number:04}.jpg"
        size = {"width": picture.width, "height": picture.height}
        files[part]["images"].append({"id": number, "file_name": name, **size})
        for category, (x0, y0, x1, y1) in _draw_shapes(random, picture):
            box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0}
            files[part]["annotations"].append({"image_id": number, "category_id": category, **box})
        picture.save(folder / name, quality=90)
    for part, content in files.items():
        (folder / f"{part}.json").write_text(json.dumps(content))


def _photo(random: np.random.Generator, name: str) -> Image.Image:
    """A part of a photo, 240 to 480 pixels a side."""
    photo = Image.open(PHOTOS / f"{name}.jpg").convert("RGB")
    width, height = (int(random.integers(240, min(480, side) + 1)) for side in photo.size)
    left, top = int(random.integers(0, photo.width - width + 1)), int(random.integers(0, photo.height - height + 1))
    return photo.crop((left, top, left + width, top + height))


def _draw_shapes(random: np.random.Generator, picture: Image.Image) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Draw up to 4 shapes that do not touch; gives the category and x0 y0 x1 y1 of each."""
    draw, found = ImageDraw.Draw(picture), list[tuple[int, tuple[int, int, int, int]]]()
    for _ in range(int(random.integers(0, 5))):
        side = int(random.integers(40, 120))
        x0, y0 = int(random.integers(0, picture.width - side)), int(random.integers(0, picture.height - side))
        x1, y1 = x0 + side, y0 + side
        if any(x0 < box[2] and box[0] < x1 and y0 < box[3] and box[1] < y1 for _, box in found):
            continue
        category, color = int(random.choice(list(CATEGORIES))), str(random.choice(COLORS))
        # Pillow draws the last pixel too.
        last_x, last_y = x1 - 1, y1 - 1
        if CATEGORIES[category] == "circle":
            draw.ellipse((x0, y0, last_x, last_y), fill=color)
        elif CATEGORIES[category] == "square":
            draw.rectangle((x0, y0, last_x, last_y), fill=color)
        else:
            draw.polygon(((x0, last_y), (last_x, last_y), ((x0 + last_x) // 2, y0)), fill=color)
        found.append((category, (x0, y0, x1, y1)))
    return found
