"""All loaders by kind: a small dataset of each, a chain that varies it, and what a batch holds of a sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from box_sets import drawn_set, write_coco
from clip_files import write_video
from image_sets import CROPPED, DEFINITION, EVERYTHING, MIXED_BOXES, MIXED_CLASSES, write_photos
from mask_sets import write_set
from text_sets import CHARACTERS, pages, write_json_lines

from onestream.preprocess import Definition
from onestream.preprocess.training import (
    IGNORE,
    PADDING_LABEL,
    Augmentation,
    DetectionBatch,
    DetectionFiles,
    DetectionLoader,
    Files,
    ImageLoader,
    SegmentationFiles,
    SegmentationLoader,
    TextBatch,
    TextFiles,
    TextLoader,
    read_coco,
    read_text_lines,
)
from onestream.preprocess.training.video_loader import VideoLoader

COUNT = 8
"""Samples of each dataset."""
WIDE_LINES = Definition.model_validate(
    {
        "operations": [
            {"op": "region", "of": "turn", "color": "bgr", "shape": "quad", "upright": 1.5},
            {"op": "resize", "mode": "height", "size": [48, 3200], "rounding": "up"},
            {"op": "pad", "size": [48, 160], "multiple_of": [0, 8], "align": "top_left", "value": 128},
            {"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]},
        ]
    }
)
VARIED_LINES = Augmentation(
    [
        {"op": "rotation", "degrees": [-5, 5], "probability": 0.5},
        {"op": "perspective", "distortion": 0.1},
        {"op": "warp", "probability": 0.8},
        {"op": "background", "probability": 0.5},
        {"op": "linear_color", "brightness": 0.3, "hue": 0.1},
        {"op": "blur", "sigma": [0.1, 1], "probability": 0.3},
        {"op": "jpeg", "probability": 0.5},
    ]
)
VARIED_MASKS = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "flip"},
        {"op": "rotation", "probability": 0.5},
        {"op": "erase"},
        {"op": "warp", "distance": 0.08, "spacing": 0.6},
    ]
)
VARIED_CLIPS = Augmentation(
    [
        {"op": "box", "area": [0.3, 1.0]},
        {"op": "speed", "factor": [0.5, 2.0]},
        {"op": "flip"},
        {"op": "rotation"},
        {"op": "trivial_augment"},
        {"op": "noise"},
        {"op": "drop_frames", "share": 0.3},
    ]
)


@dataclass(frozen=True)
class Kind:
    """A loader with its data. ``write`` gives a source of ``COUNT`` samples and the file of each.

    ``fields`` is what a batch holds of a sample, its input first; ``is_blank`` says whether what belongs to the input
    is that of no sample.
    """

    name: str
    loader: Callable[..., Any]
    write: Callable[[Path], tuple[Any, list[Path]]]
    fields: Callable[[Any, int], tuple[Any, ...]]
    is_blank: Callable[[Any, int], bool]
    chain: Augmentation
    definition: Definition = DEFINITION
    options: dict[str, Any] = field(default_factory=dict)
    backends: tuple[str, str] = ("dali", "reference")
    bad_text: str = "got text"
    """What is said of a file that holds text."""

    def __str__(self) -> str:
        return self.name

    def open(self, source: Any, *, varied: bool = True, **options: Any) -> Any:
        """The loader, in the dataset's order unless it is asked to shuffle."""
        options = {"seed": 9, "shuffle": False, "definition": self.definition, **self.options, **options}
        if varied:
            options.setdefault("augmentation", self.chain)
        if self.name != "lines":
            options.setdefault("train", varied)
        return self.loader(options.pop("definition"), source, **options)

    def collect(self, loader: Any) -> dict[int, tuple[Any, ...]]:
        """The fields of all samples of an epoch, by index; what only fills up is blank."""
        found = {}
        for batch in loader:
            for place, index in enumerate(batch.indices.tolist()):
                if index >= 0:
                    found[index] = self.fields(batch, place)
                else:
                    assert self.is_blank(batch, place)
        return found


def assert_same(one: dict[int, tuple[Any, ...]], other: dict[int, tuple[Any, ...]]) -> None:
    """The same samples in every bit."""
    assert sorted(one) == sorted(other)
    for index, fields in one.items():
        for value, same in zip(fields, other[index], strict=True):
            np.testing.assert_array_equal(value, same)


def _photos(folder: Path) -> tuple[Path, list[Path]]:
    write_photos(folder, count=COUNT)
    return folder, list(Files.from_folder(folder).paths)


def _marked(folder: Path) -> tuple[DetectionFiles, list[Path]]:
    """Pictures with 0 to 3 boxes, two of whose corners are keypoints that a mirror exchanges."""
    path = write_coco(folder, drawn_set(COUNT))
    content = json.loads(path.read_text())
    for category in content["categories"]:
        category["keypoints"] = ["left", "right"]
    for annotation in content["annotations"]:
        x, y, width, height = annotation["bbox"]
        annotation["keypoints"] = [x, y, 2, x + width - 1, y + height - 1, 1]
    path.write_text(json.dumps(content))
    files = read_coco(path, images=folder / "photos", flip_pairs=[("left", "right")])
    return files, [sample.path for sample in files.samples]


def _masked(folder: Path) -> tuple[SegmentationFiles, list[Path]]:
    files = write_set(folder, COUNT)
    return files, [sample.path for sample in files.samples]


def _lines(folder: Path) -> tuple[TextFiles, list[Path]]:
    files = read_text_lines(write_json_lines(folder, pages(COUNT, most_lines=1)))
    return files, [line.path for line in files.samples]


def _clips(folder: Path) -> tuple[Path, list[Path]]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.mp4" for number in range(COUNT)]
    for number, path in enumerate(paths):
        write_video(path, "libx264", count=12 + number, options={"g": "8"}, size_hw=(48, 64))
    return folder, paths


def _image(batch: Any, place: int) -> tuple[Any, ...]:
    return batch.images[place].cpu().numpy(), batch.labels[place].cpu().numpy()


def _boxes(batch: DetectionBatch, place: int) -> tuple[Any, ...]:
    # Of a sample that is mixed there is no mapping.
    corners = [one.points_to_canvas(np.array([(0.0, 0.0), (9, 0), (0, 9)])) for one in batch.mappings[place:][:1]]
    return batch.images[place].numpy(), batch.boxes[place], batch.class_ids[place], batch.keypoints[place], corners


def _mask(batch: Any, place: int) -> tuple[Any, ...]:
    return batch.images[place].numpy(), batch.masks[place].numpy()


def _line(batch: TextBatch, place: int) -> tuple[Any, ...]:
    """At its own width, which is the last axis or the one before the channels."""
    image, width = batch.images[place].numpy(), int(batch.widths[place])
    cut = image[..., :width] if image.shape[0] == 3 else image[:, :width]
    return cut, batch.texts[place], width, batch.input_lengths[place], batch.target_lengths[place]


def _no_line(batch: TextBatch, place: int) -> bool:
    lengths = (batch.widths[place], batch.input_lengths[place], batch.target_lengths[place])
    return batch.texts[place] == "" and not any(lengths)


def _clip(batch: Any, place: int) -> tuple[Any, ...]:
    return batch.clips[place].numpy(), batch.labels[place].numpy()


def _no_label(batch: Any, place: int) -> bool:
    return bool(batch.labels[place] == PADDING_LABEL)


def _no_boxes(batch: DetectionBatch, place: int) -> bool:
    found = (batch.boxes[place], batch.class_ids[place], batch.keypoints[place])
    return [tuple(one.shape) for one in found] == [(0, 4), (0,), (0, 2, 3)]


KINDS = (
    Kind("images", ImageLoader, _photos, _image, _no_label, EVERYTHING),
    Kind(
        "mixed images", ImageLoader, _photos, _image,
        lambda batch, place: _no_label(batch, place) if batch.labels.ndim == 1 else not batch.labels[place].any(),
        MIXED_CLASSES,
    ),
    Kind("boxes", DetectionLoader, _marked, _boxes, _no_boxes, EVERYTHING, CROPPED),
    Kind("mosaics", DetectionLoader, _marked, _boxes, _no_boxes, MIXED_BOXES, CROPPED),
    Kind(
        "masks", SegmentationLoader, _masked, _mask, lambda batch, place: bool((batch.masks[place] == IGNORE).all()),
        VARIED_MASKS, CROPPED,
    ),
    Kind(
        "lines", TextLoader, _lines, _line, _no_line, VARIED_LINES, WIDE_LINES,
        {"characters": CHARACTERS, "columns": lambda width: width // 8},
    ),
    Kind(
        "clips", VideoLoader, _clips, _clip, _no_label, VARIED_CLIPS, DEFINITION, {"num_frames": 4, "stride": 2},
        ("pyav", "reference"), bad_text="the video cannot be opened",
    ),
)  # fmt: skip
IMAGES, MASKS, LINES = (kind for kind in KINDS if kind.name in ("images", "masks", "lines"))
