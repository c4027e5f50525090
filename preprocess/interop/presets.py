"""Definitions of torchvision's weights and of timm's models as data, for environments without these libraries.

``make presets`` writes ``presets.json`` anew from the installed libraries (``generators/presets.py``).
"""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from typing import Any, Literal

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported

Library = Literal["torchvision", "timm"]

_FILE = "presets.json"
TEST_SIZE = "timm, with the size for tests"
_IMAGENET_CLASSES = 1000


def preset(library: Library, name: str, *, use_test_size: bool = False) -> Imported:
    """The definition of weights such as *ResNet50_Weights.IMAGENET1K_V2* or of a model such as *resnet50*.

    Raises ``CannotImport``, with names like it, for a name that the data lacks.
    """
    version, found = _section_of(library)
    if name not in found:
        like = ", ".join(difflib.get_close_matches(name, found, n=3))
        raise CannotImport(f"{version} has no preset {name!r}{'; like it are ' if like else ''}{like}")
    if use_test_size:
        # Those without a size of their own for tests have the usual one.
        found = found | _section_of(TEST_SIZE)[1]
    full, operations, classes = found[name]
    return Imported(
        Definition.model_validate({"operations": operations}),
        f"{library}'s {full} ({version})",
        postprocess=classification(classes),
        has_test_size=library == "timm",
    )


@functools.cache
def _section_of(section: str) -> tuple[str, dict[str, tuple[str, Any, int]]]:
    """The version of a library, and by each name of its presets the full name, the operations, the classes."""
    data = json.loads((resources.files(__package__) / _FILE).read_text(encoding="utf-8"))[section]
    found = {
        name: (name, one["operations"], int(classes))
        for one in data["definitions"]
        for classes, names in one["names"].items()
        for name in names
    }
    return data["version"], found | {alias: found[full] for alias, full in data["aliases"].items()}


def classification(classes: int) -> dict[str, Any] | None:
    """The section ``postprocess`` of published weights with so many classes; None for 0, those without a classifier."""
    if not classes:
        return None
    return {"kind": "classification", **({"labels": "imagenet"} if classes == _IMAGENET_CLASSES else {})}


def classes_of(weights: Any) -> int:
    """How many classes the network of torchvision's weights ranks; 0 where it does not classify images."""
    classifies = getattr(weights.transforms, "func", weights.transforms).__name__ == "ImageClassification"
    return len(weights.meta.get("categories") or ()) if classifies else 0
