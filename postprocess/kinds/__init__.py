"""The kinds of postprocessing, a file each: the section ``postprocess`` of a pipeline file, and what it does.

Their table is imported when it is first asked for: a served model imports its own kind alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onestream.postprocess.kinds.base import Opening, Options, ParitySection, Postprocess, Tensors, rows
from onestream.postprocess.labels import read_labels
from onestream.postprocess.parameters import Parameters
from onestream.preprocess.geometry import Size
from onestream.wire.kinds import KINDS
from onestream.wire.tensor_names import LEFT_OUT

if TYPE_CHECKING:
    from onestream.postprocess.kinds.table import OPTIONS, AnyPostprocess

__all__ = [
    "OPTIONS",
    "AnyPostprocess",
    "Opening",
    "Options",
    "ParitySection",
    "Postprocess",
    "Tensors",
    "labels_beside",
    "read_postprocess",
    "rows",
    "without_stages",
]


def __getattr__(name: str) -> Any:
    if name not in ("AnyPostprocess", "OPTIONS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.table"), name)


def read_postprocess(options_json: str) -> AnyPostprocess:
    """The postprocessing from the parameter of a model's configuration, whose kind names a module and its class."""
    kind: str = json.loads(options_json)["kind"]
    module = import_module(f"{__name__}.{kind}")
    options: type[AnyPostprocess] = getattr(module, kind.title().replace("_", ""))
    return options.model_validate_json(options_json)


def without_stages(
    options: AnyPostprocess, postprocess: Postprocess, left_out: Callable[[int], None] = lambda _count: None
) -> Postprocess:
    """The postprocessing of a pipeline that is no cascade's stage: ``left_out`` stands in the answers that say it only.

    The function ``left_out`` is called with that of each picture in which any was.
    """
    if not options.finds_regions:
        return postprocess
    is_told = any(output.name == LEFT_OUT for output in KINDS[options.kind].outputs)

    def alone(outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
        answers = postprocess(outputs, sizes, parameters)
        for answer in answers:
            if count := int(answer[LEFT_OUT][0, 0]):
                left_out(count)
            if not is_told:
                del answer[LEFT_OUT]
        return answers

    return alone


def labels_beside(options: AnyPostprocess, folder: Path) -> list[str] | None:
    """The labels that lie in a served model's folder; None where none do. Raises ``ValueError`` as ``read_labels``."""
    path = folder / "labels.txt"
    return read_labels(path, spaces=options.labels_have_spaces) if path.exists() else None
