"""All planted faults: the yardstick by which a smaller test suite is compared with a larger one."""

from __future__ import annotations

from faults_around import AROUND
from faults_preprocess import PREPROCESS
from faults_serving import SERVING
from planted import Fault

__all__ = ["FAULTS", "GROUPS", "Fault", "group_of"]

FAULTS: tuple[Fault, ...] = (*PREPROCESS, *SERVING, *AROUND)

GROUPS: dict[str, tuple[str, ...]] = {
    "wire": ("wire/",),
    "preprocess": ("preprocess/",),
    "preprocess/training": ("preprocess/training/",),
    "preprocess/video": ("preprocess/video/",),
    "postprocess": ("postprocess/",),
    "serving/building and engine": ("serving/building/", "serving/built/", "serving/engine/", "serving/graph/"),
    "serving/models": ("serving/models/",),
    "serving/server and proxy": ("serving/server/", "serving/proxy/"),
    "serving/video": ("serving/video/",),
    "client": ("client/",),
    "measure": ("measure/",),
    "cli": ("cli/",),
}
"""The parts of the product, each by the folders that it consists of. Of two folders the longer name counts."""


def group_of(file: str) -> str | None:
    """The part of the product to which a file belongs; None where it belongs to none."""
    found = [(len(folder), group) for group, folders in GROUPS.items() for folder in folders if file.startswith(folder)]
    return max(found)[1] if found else None
