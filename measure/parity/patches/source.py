"""What a report can be made on beside a pipeline file: a definition's file, or an image processor of transformers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onestream.measure.image_files import IMAGE_SUFFIXES
from onestream.measure.parity.subject import CannotCompare
from onestream.preprocess import Definition
from onestream.preprocess.definition import WHOLE_PICTURE
from onestream.preprocess.interop import from_huggingface
from onestream.preprocess.interop.huggingface.called import as_called
from onestream.preprocess.interop.huggingface.files import Config, read_json
from onestream.preprocess.interop.libraries import load
from onestream.serving.cascade import Cascade, read_file
from onestream.serving.pipeline import Pipeline, read_fields, validated

_CONFIGS = ("preprocessor_config.json", "processor_config.json")
_ID = r"[\w.-]+/[\w.-]+"


@dataclass(frozen=True)
class Source:
    """A pipeline, as its file states it, and the config of the image processor that it was read from, if it was."""

    pipeline: Pipeline | Cascade
    config: Config | None = None


def read(where: Path) -> Source:
    """Read a pipeline file, a definition's file, or an image processor: its folder, its config, or its id on the hub.

    Raises as reading a pipeline does, ``CannotImport`` for a config that no definition states, ``BackendMissing``
    where transformers is needed for an id, and ``CannotCompare`` for anything else.
    """
    if where.suffix.lower() in (".yaml", ".yml"):
        return Source(_of_yaml(where))
    if where.is_file() and where.suffix.lower() == ".json":
        config = read_json(where)
    elif held := [where / name for name in _CONFIGS if (where / name).is_file()]:
        config = read_json(held[0])
    elif is_image_processor(where):
        config = _of_hub(str(where))
    else:
        raise CannotCompare(f"{where}: no pipeline file, definition or image processor of transformers")
    config, _ = as_called(config)
    return Source(_pipeline(where, from_huggingface(config)), config)


def is_image_processor(where: Path) -> bool:
    """Whether a name can be that of an image processor, in files or on the hub, and not of images."""
    if where.exists():
        return where.suffix.lower() == ".json" or any((where / name).is_file() for name in _CONFIGS)
    return where.suffix.lower() not in IMAGE_SUFFIXES and re.fullmatch(_ID, str(where)) is not None


def _of_yaml(where: Path) -> Pipeline | Cascade:
    fields = read_fields(where)
    if "operations" in fields:
        return _pipeline(where, validated(Definition, where, {"operations": fields["operations"]}))
    # Not by Pipeline.from_file, which makes a network of the patches.
    return validated(Pipeline, where, fields) if _ends_in_patches(fields) else read_file(where)


def _ends_in_patches(fields: dict[str, Any]) -> bool:
    preprocess = fields.get("preprocess")
    operations = preprocess.get("operations") if isinstance(preprocess, dict) else None
    last = operations[-1] if isinstance(operations, list) and operations else None
    return isinstance(last, dict) and last.get("op") == "patches"


def _pipeline(where: Path, definition: Definition) -> Pipeline:
    """One that has a definition and nothing else, named after its file; also of a definition that cannot be served."""
    name = re.sub(r"\W", "_", where.name if where.is_dir() or not where.suffix else where.stem)
    fields = {"name": name, "preprocess": WHOLE_PICTURE, "network": "none", "postprocess": {"kind": "raw"}}
    return validated(Pipeline, where, fields).model_copy(update={"preprocess": definition})


def _of_hub(name: str) -> Config:
    mixin = load("transformers").image_processing_base.ImageProcessingMixin
    try:
        config: Config = mixin.get_image_processor_dict(name)[0]
    except Exception as error:  # of the hub's client, which raises what it likes
        reason = str(error).strip().partition("\n")[0]
        raise CannotCompare(
            f"{name}: no such file, and transformers loads no image processor of this id: {reason}"
        ) from None
    return config
