"""Makes a definition or an augmentation of a name on the command line: weights, a model, a file, an object."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import Imported
from onestream.preprocess.interop.huggingface.config import read_huggingface
from onestream.preprocess.interop.huggingface.files import network_beside, read_json
from onestream.preprocess.interop.huggingface.network import with_boxes
from onestream.preprocess.interop.keras_modes import from_keras
from onestream.preprocess.interop.letterbox import from_letterbox
from onestream.preprocess.interop.libraries import is_installed, load, with_torchvision
from onestream.preprocess.interop.open_clip import from_open_clip
from onestream.preprocess.interop.presets import classes_of, classification, preset
from onestream.preprocess.interop.timm_config import from_timm, registered
from onestream.preprocess.interop.torchvision_transforms import from_torchvision
from onestream.preprocess.interop.ultralytics_export import from_ultralytics, of_letterbox
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations.tiles import Tiles
from onestream.preprocess.user_files import MAX_CHARACTERS, BadYaml, read_bounded, read_plain_yaml

if TYPE_CHECKING:
    from onestream.preprocess.interop.torchvision_training import ImportedAugmentation

AUGMENTATION_FORMS = (
    "my_module:my_transform for a transform of torchvision or timm, my_module:my_options or options.yaml for the "
    "options of timm's create_transform"
)
"""The forms of the source of an augmentation, by example."""

FORMS = (
    "torchvision:ResNet50_Weights.IMAGENET1K_V2, timm:mobilenetv3_small_100.lamb_in1k, a preprocessor_config.json, a "
    "timm config.json or an open_clip_config.json, a folder that holds one, yolo11n.onnx as ultralytics exports it, "
    "letterbox:640 or letterbox:384x640, keras:caffe, keras:tf or keras:torch:224, my_module:my_transform"
)
"""The forms of a source, by example."""

_FAR_APART = (
    "Sizes and crops are the same. Values of photos differ by up to 1 of 255 with bilinear, 2 with bicubic and lanczos "
    "(29 and 56 at hard edges), and by anything with resample 0."
)
_BY_PILLOW = (
    "Resized as transformers does with Pillow (arithmetic: pil): backend='pil', before version 5 use_fast=False. Where "
    "a network was trained by a processor that resizes tensors, the default of version 5 with torchvision, write "
    f"arithmetic: aten into the resize, with filter nearest-exact for resample 0. {_FAR_APART}"
)
_BY_TENSORS = (
    "Resized as transformers does with tensors on a CPU (arithmetic: aten), since this image processor does. Where a "
    f"network was trained with Pillow, write arithmetic: pil. {_FAR_APART}"
)
_LANCZOS_OF_TENSORS = "transformers resizes tensors by lanczos with torchvision 0.27 or newer, before that by bicubic."
_OF_TENSORS = (
    "Resized as torchvision does with uint8 tensors on a CPU (arithmetic: aten), since the resize comes after the "
    "conversion to a tensor."
)
_OF_KERAS = (
    "Resized as by load_img(path, target_size=...), whose interpolation is nearest; write filter: bilinear, bicubic or "
    "lanczos where you passed that to it."
)
_NO_SIZE = (
    "The size depends on the image. A served network needs one: end the geometry with center_crop, pad, letterbox or "
    "an exact resize."
)

_IN_PROCESS = (
    "It ends in {op}, which onestream.preprocess.patches.Processor makes in process{served} (docs/vlm.md). Write "
    "folded: true into normalize where you write arithmetic: aten, and false with pil."
)


def import_source(source: str, *, use_test_size: bool = False) -> Imported:
    """Import what ``source`` names, in one of ``FORMS``.

    ``use_test_size``: of a timm model that has two sizes, take the one for tests. Raises ``CannotImport`` for what is
    not there, or cannot be stated exactly, and ``BackendMissing`` where the library that is named is not installed.
    """
    imported = _import(source, use_test_size=use_test_size)
    if use_test_size and not imported.has_test_size:
        raise CannotImport("only configs of timm have a size for tests of its own")
    if (made := imported.definition.for_processor) is not None:
        served = "; a pipeline with network: none serves rows without padding" if made.op == "patches" else ""
        return replace(imported, notes=(*imported.notes, _IN_PROCESS.format(op=made.op, served=served)))
    if None in imported.definition.output_spec.size_hw:
        return replace(imported, notes=(*imported.notes, _NO_SIZE))
    return imported


def import_augmentation(source: str) -> ImportedAugmentation:
    """Import the augmentation that ``source`` names, in one of ``AUGMENTATION_FORMS``.

    Raises as ``import_source``, and ``BackendMissing`` without PyTorch, to whose loaders augmentations belong.
    """
    from onestream.preprocess.interop.torchvision_training import augmentation_from_timm, augmentation_from_torchvision

    if re.fullmatch(r"[\w.]+:\w+", source):
        found = named_object(source)
    elif Path(source).suffix in (".yaml", ".yml", ".json"):
        found = _options(Path(source))
    else:
        raise CannotImport(f"{source!r} is no source of an augmentation. Sources are: {AUGMENTATION_FORMS}")
    if isinstance(found, Mapping):
        return augmentation_from_timm(found, origin=f"timm's options {source}{_version('timm')}")
    return augmentation_from_torchvision(found, origin=source)


def _options(path: Path) -> Mapping[str, Any]:
    try:
        found = read_plain_yaml(read_bounded(path, 4 * MAX_CHARACTERS).decode())
    except (BadYaml, OSError, UnicodeDecodeError) as error:
        raise CannotImport(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, Mapping):
        raise CannotImport(f"{path} holds no options by name")
    return found


def _import(source: str, *, use_test_size: bool) -> Imported:
    kind, _, rest = source.partition(":")
    if kind == "letterbox":
        return of_letterbox(_letterbox(rest or "640"), f"the letterbox of YOLO detectors, {rest or 640}")
    if kind == "keras" and rest:
        definition = from_keras(rest)
        return Imported(definition, f"Keras' mode {rest}", () if definition.resize is None else (_OF_KERAS,))
    if kind == "torchvision" and rest:
        return _torchvision(rest)
    if kind == "timm" and rest and not Path(rest).exists():
        if not is_installed("timm"):
            return _for_tests(preset("timm", rest, use_test_size=use_test_size), use_test_size=use_test_size)
        config = registered(rest)
        name = f"{config.architecture}.{config.tag}" if config.tag else rest
        imported = _timm(config, f"timm's {name}{_version('timm')}", use_test_size=use_test_size)
        return replace(imported, postprocess=classification(config.num_classes or 0))
    path = Path(rest if kind == "timm" and rest else source)
    if path.suffix == ".onnx":
        return from_ultralytics(path)
    if path.exists() or path.suffix == ".json":
        return _file(path, use_test_size=use_test_size)
    if re.fullmatch(r"[\w.]+:\w+", source):
        return _own(source, use_test_size=use_test_size)
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source)
    advice = f" (of a model on the Hugging Face hub: hf download {source} preprocessor_config.json)" if hub else ""
    raise CannotImport(f"{source!r} is no file{advice} and no other source. Sources are: {FORMS}")


def _letterbox(text: str) -> Definition:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None:
        raise CannotImport(
            f"letterbox:{text}: expected a side or HEIGHTxWIDTH, such as letterbox:640 or letterbox:384x640"
        )
    return from_letterbox([int(side) for side in match.groups() if side])


def _torchvision(name: str) -> Imported:
    if not is_installed("torchvision"):
        return preset("torchvision", name)
    models = load("torchvision.models")
    try:
        weights = models.get_weight(name) if "." in name else models.get_model_weights(name).DEFAULT
    except (ValueError, AttributeError, KeyError) as error:
        raise CannotImport(
            f"torchvision has no weights {name!r} ({error}); expected a name such as ResNet50_Weights.IMAGENET1K_V2 or "
            "resnet50"
        ) from None
    origin = f"torchvision's {weights}{_version('torchvision')}"
    return Imported(from_torchvision(weights), origin, postprocess=classification(classes_of(weights)))


def _file(path: Path, *, use_test_size: bool) -> Imported:
    if path.is_dir():
        names = ("preprocessor_config.json", "processor_config.json", "open_clip_config.json", "config.json")
        held = [path / name for name in names if (path / name).is_file()]
        if not held:
            raise CannotImport(f"the folder {path} holds none of {', '.join(names)}")
        path = held[0]
    imported = _config(read_json(path), str(path), use_test_size=use_test_size)
    network = network_beside(path)
    return imported if network is None else with_boxes(imported, network)


def _config(config: Mapping[str, Any], origin: str, *, use_test_size: bool) -> Imported:
    if "preprocess_cfg" in config:
        return Imported(from_open_clip(config), f"open_clip's config in {origin}")
    if "pretrained_cfg" in config or "input_size" in config:
        return _timm(config, f"timm's config in {origin}", use_test_size=use_test_size)
    if "model_type" in config and not config.keys() & {"image_processor", "image_processor_type", "image_mean"}:
        raise CannotImport(f"{origin} is the config of a network; its preprocessor_config.json is needed")
    return _image_processor(config, f"the image processor in {origin}")


def _image_processor(config: Any, origin: str) -> Imported:
    definition, said = read_huggingface(config)
    resizes, notes = [op for op in definition.operations if isinstance(op, Resize | Tiles)], [*said]
    if not resizes or (isinstance(resizes[0], Resize) and not resizes[0].antialias):
        return Imported(definition, origin, said)
    if resizes[0].arithmetic == "pil":
        notes.append(_BY_PILLOW)
    else:
        notes += [_BY_TENSORS, _LANCZOS_OF_TENSORS][: 2 if resizes[0].filter == "lanczos" else 1]
    return Imported(definition, origin, tuple(notes))


def named_object(where: str) -> Any:
    """The object ``MODULE:NAME``, imported from the working directory or the environment.

    Raises ``CannotImport`` with what importing raised.
    """
    module, _, name = where.partition(":")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return getattr(with_torchvision(lambda: importlib.import_module(module)), name)
    except Exception as error:  # importing runs code that is not ours
        raise CannotImport(f"{where}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(folder)


def _timm(config: Any, origin: str, *, use_test_size: bool) -> Imported:
    """Of a config in a file or an object, whose classes are its own."""
    definition = from_timm(config, use_test_size=use_test_size)
    return _for_tests(Imported(definition, origin, has_test_size=True), use_test_size=use_test_size)


def _for_tests(imported: Imported, *, use_test_size: bool) -> Imported:
    return replace(imported, origin=f"{imported.origin}, with the size for tests") if use_test_size else imported


def _own(where: str, *, use_test_size: bool) -> Imported:
    found = named_object(where)
    if isinstance(found, Definition):
        return Imported(found, where)
    if isinstance(found, Mapping):
        return _config(found, where, use_test_size=use_test_size)
    if hasattr(found, "image_processor_type") or hasattr(found, "image_mean"):
        return _image_processor(found, where)
    if hasattr(found, "crop_mode"):
        return _timm(found, where, use_test_size=use_test_size)
    definition = from_torchvision(found)
    of_tensors = definition.resize is not None and definition.resize.arithmetic == "aten"
    return Imported(definition, where, (_OF_TENSORS,) if of_tensors else ())


def _version(package: str) -> str:
    try:
        return f" ({package} {metadata.version(package)})"
    except metadata.PackageNotFoundError:
        return ""
