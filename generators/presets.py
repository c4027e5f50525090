"""Writes ``presets.json`` anew from the installed torchvision and timm: ``make presets``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop import presets
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.presets import TEST_SIZE, classes_of
from onestream.preprocess.interop.timm_config import from_timm
from onestream.preprocess.interop.torchvision_transforms import from_torchvision

FILE = Path(presets.__file__).with_name("presets.json")


def collect() -> dict[str, Any]:
    """The content of the file, from the installed libraries."""
    torchvision, timm = load("torchvision.models"), load("timm.models")
    weights = {str(one): one for name in torchvision.list_models() for one in torchvision.get_model_weights(name)}
    defaults = {name: str(torchvision.get_model_weights(name).DEFAULT) for name in torchvision.list_models()}
    defaults |= {f"{name.partition('.')[0]}.DEFAULT": name for name in defaults.values()}
    configs = {name: timm.get_pretrained_cfg(name) for name in timm.list_pretrained()}
    plain = {name: timm.get_pretrained_cfg(name) for name in timm.list_models()}
    tags = {name: f"{one.architecture}.{one.tag}" for name, one in plain.items() if one is not None and one.tag}

    def of_timm(*, use_test_size: bool) -> dict[str, Any]:
        rows = (
            (name, one.num_classes, functools.partial(from_timm, one, use_test_size=use_test_size))
            for name, one in configs.items()
            if not use_test_size or one.test_input_size or one.test_crop_pct
        )
        return _section("timm", rows, tags)

    return {
        "torchvision": _section(
            "torchvision",
            ((name, classes_of(one), functools.partial(from_torchvision, one)) for name, one in weights.items()),
            defaults,
        ),
        "timm": of_timm(use_test_size=False),
        TEST_SIZE: of_timm(use_test_size=True),
    }


def _section(
    package: str, rows: Iterator[tuple[str, int, Callable[[], Definition]]], aliases: dict[str, str]
) -> dict[str, Any]:
    """The names of a library by their definitions, and of these by the number of classes."""
    found: dict[str, dict[str, Any]] = {}
    for name, classes, definition in rows:
        try:
            chain = definition().operations
        except CannotImport:
            continue
        operations = [{"op": one.op, **one.model_dump(mode="json", exclude_defaults=True)} for one in chain]
        names = found.setdefault(json.dumps(operations), {"operations": operations, "names": {}})["names"]
        names.setdefault(str(classes), []).append(name)
    listed = {name for one in found.values() for names in one["names"].values() for name in names}
    return {
        "version": f"{package} {metadata.version(package)}",
        "definitions": list(found.values()),
        "aliases": {name: full for name, full in aliases.items() if full in listed},
    }


def main() -> None:
    """Write the file."""
    sections = []
    for library, one in collect().items():
        rows = ",\n".join(json.dumps(row) for row in one["definitions"])
        head = f'"version": {json.dumps(one["version"])}, "aliases": {json.dumps(one["aliases"])}'
        sections.append(f'{json.dumps(library)}: {{{head}, "definitions": [\n{rows}\n]}}')
    FILE.write_text("{" + ",\n".join(sections) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
