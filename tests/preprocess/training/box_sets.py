"""Writes one set of pictures with boxes in three formats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from image_sets import save_turned

CLASSES = ("cup", "kite", "sports ball")
CATEGORY_IDS = (3, 38, 90)
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Drawn:
    """A black picture of (height, width) in which each object is a rectangle of one level."""

    name: str
    size_hw: tuple[int, int]
    objects: tuple[tuple[int, Box], ...]
    orientation: int = 1

    def save(self, path: Path) -> None:
        """Write it, stored so that the EXIF orientation turns it upright."""
        height, width = self.size_hw
        pixels = np.zeros((height, width, 3), np.uint8)
        for class_id, (x0, y0, x1, y1) in self.objects:
            pixels[int(y0) : int(y1), int(x0) : int(x1)] = 255 - 40 * class_id
        save_turned(path, pixels, self.orientation)


def drawn_set(count: int, *, seed: int = 0) -> list[Drawn]:
    """Pictures with 0 to 3 objects each, with whole corners; sides are multiples of 64, so that shares are exact."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        height, width = (int(side) for side in random.choice([128, 192, 256, 320], 2))
        objects = []
        for _ in range(number % 4):
            x0, y0 = int(random.integers(0, width - 20)), int(random.integers(0, height - 20))
            x1, y1 = int(random.integers(x0 + 10, width + 1)), int(random.integers(y0 + 10, height + 1))
            objects.append((int(random.integers(0, len(CLASSES))), (float(x0), float(y0), float(x1), float(y1))))
        orientation = (1, 6, 3, 8)[number % 4]
        found.append(Drawn(f"{number:03}.png", (height, width), tuple(objects), orientation))
    return found


def write_coco(folder: Path, pictures: list[Drawn]) -> Path:
    """``folder/boxes.json`` and ``folder/photos``."""
    content = coco(pictures)
    for one in pictures:
        one.save(folder / "photos" / one.name)
    (folder / "boxes.json").write_text(json.dumps(content))
    return folder / "boxes.json"


def coco(pictures: list[Drawn]) -> dict[str, list[dict[str, object]]]:
    """COCO's JSON with ids that have gaps, categories in no order, and fields that nobody here reads."""
    images, annotations = [], []
    for number, one in enumerate(pictures):
        height, width = one.size_hw
        images.append({"id": 7 * number, "file_name": one.name, "height": height, "width": width, "license": 1})
        for class_id, (x0, y0, x1, y1) in one.objects:
            unread = {"iscrowd": 0, "area": 1.5, "segmentation": [[x0, y0, x1, y0, x1, y1]]}
            ids = {"id": 100 + len(annotations), "image_id": 7 * number, "category_id": CATEGORY_IDS[class_id]}
            annotations.append({**ids, "bbox": [x0, y0, x1 - x0, y1 - y0], **unread})
    categories = [{"id": CATEGORY_IDS[n], "name": CLASSES[n], "supercategory": "thing"} for n in (2, 0, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_voc(folder: Path, pictures: list[Drawn]) -> Path:
    """``folder/Annotations`` and ``folder/JPEGImages``."""
    (folder / "Annotations").mkdir(parents=True)
    for one in pictures:
        one.save(folder / "JPEGImages" / one.name)
        objects = "".join(
            f"<object><name>{escape(CLASSES[class_id])}</name><difficult>0</difficult><bndbox>"
            f"<xmin>{x0 + 1:g}</xmin><ymin>{y0 + 1:g}</ymin><xmax>{x1:g}</xmax><ymax>{y1:g}</ymax></bndbox></object>"
            for class_id, (x0, y0, x1, y1) in one.objects
        )
        text = (
            f"<annotation><folder>x</folder><filename>{one.name}</filename><size><width>{one.size_hw[1]}</width>"
            f"<height>{one.size_hw[0]}</height><depth>3</depth></size>{objects}</annotation>"
        )
        (folder / "Annotations" / one.name).with_suffix(".xml").write_text(text)
    return folder


def write_yolo(folder: Path, pictures: list[Drawn]) -> Path:
    """``folder/data.yaml``, ``images/train`` and ``labels/train``; a picture without objects has no text file."""
    (folder / "labels" / "train").mkdir(parents=True)
    for one in pictures:
        one.save(folder / "images" / "train" / one.name)
        height, width = one.size_hw
        lines = []
        for class_id, (x0, y0, x1, y1) in one.objects:
            shares = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
            lines.append(" ".join([str(class_id), *(repr(share) for share in shares)]))
        if lines:
            (folder / "labels" / "train" / one.name).with_suffix(".txt").write_text("\n".join(lines) + "\n")
    names = "\n".join(f"  {number}: {name}" for number, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames:\n{names}\n")
    return folder
