"""What of torchvision, timm and transformers is imported, and how closely, as a Markdown page.

python -m generators.import_page > docs/import.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.huggingface.config import read_huggingface
from onestream.preprocess.interop.huggingface.proof import EQUAL, WITHIN, difference, pixels
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.interop.timm_config import from_timm
from onestream.preprocess.interop.torchvision_transforms import from_torchvision
from onestream.preprocess.patches import Processor

_HEAD = """\
# What is imported

Every name of torchvision {torchvision}, timm {timm} and transformers {transformers}. *Equal*: the library's pixels, but
for float32's last bits. *Within*: within a level of 255, as the library keeps fractions of a level where a definition
rounds to 8 bit. *Refused*: by name. Each distinct definition was compared with the library on pictures of noise, on a
CPU. `python -m generators.import_page` prints this page; [own-network.md](own-network.md#sources) says how to import,
and what else is.

| library | names | equal | within | refused |
|---|---|---|---|---|
"""
_REASONS = (
    (r"videos or pairs", "videos or pairs of images"),
    (r"not made of tiles", "a grid that is not made of tiles"),
    (r"tiles, patches or frames", "tiles, patches or frames of a picture"),
    (r"no pixel_values", "no `pixel_values` of one picture"),
    (r"\bsize is", "a size that no resize has"),
    (r"no square", "`crop_mode: center` with an input that is no square"),
    (r"does not state (\w+)", r"no `\1` in the config"),
    (r"larger than the image", "a crop that may be larger than the image"),
    (r"shortest_edge|longest_edge|crop_size", "a size that no resize has"),
    (r"computes what", "other steps than a definition has"),
)
_FIRST = 2
"""Pictures for what the tests compare on photos, too."""
_BACKENDS = {"torchvision": "tensors", "pil": "Pillow"}


class _Verdicts:
    """How close each distinct definition is to its library."""

    def __init__(self) -> None:
        self._known: dict[Definition, str] = {}

    def of(self, read: Callable[[], Definition], source: Callable[[], Any], *, pictures: int) -> str:
        """*equal*, *within*, or why it is refused."""
        try:
            definition = read()
        except CannotImport as error:
            return _reason(str(error))
        if definition not in self._known:
            run = None if definition.for_processor is None else _patched(definition)
            found = difference(definition, source(), pictures=pictures, run=run)
            self._known[definition] = "equal" if found <= EQUAL else "within" if found <= WITHIN else "differs"
        return self._known[definition]


def _patched(definition: Definition) -> Callable[[bytes], Any]:
    processor = Processor(definition, dtype="float32")

    def run(content: bytes) -> Any:
        made = processor([content])
        values = made.pixel_values[0] if made.patches.layout == "image" else made.pixel_values
        return made.errors.get(0) or values

    return run


def page() -> str:
    """The page. Raises ``BackendMissing`` where one of the libraries is not installed."""
    versions = {name: metadata.version(name) for name in ("torchvision", "timm", "transformers")}
    of_torchvision, of_timm, of_transformers = _torchvision(), _timm(), _transformers()
    counts = {"torchvision, weights": [*of_torchvision.values()], "timm, pretrained models": [*of_timm.values()]}
    for name, backend in (("with Pillow", "Pillow"), ("of tensors", "tensors")):
        verdicts = [one[backend] for one in of_transformers.values() if backend in one]
        counts[f"transformers, image processors {name}"] = verdicts
    rows = "".join(_count(name, verdicts) for name, verdicts in counts.items())
    refused = "".join(
        f"| {library} | {verdict} | {count} |\n"
        for library, verdicts in (("torchvision", of_torchvision), ("timm", of_timm))
        for verdict, count in sorted(Counter(verdicts.values()).items())
        if verdict not in ("equal", "within")
    )
    groups: dict[tuple[str, str], list[str]] = {}
    for name, one in of_transformers.items():
        groups.setdefault((one.get("Pillow", "–"), one.get("tensors", "–")), []).append(name)
    order = sorted(groups, key=lambda pair: (("equal" not in pair) + ("within" not in pair), pair))
    listed = "".join(f"| {pillow} | {tensors} | {', '.join(groups[pillow, tensors])} |\n" for pillow, tensors in order)
    return (
        f"{_HEAD.format(**versions)}{rows}\n## Refused of torchvision and timm\n\n"
        f"| library | what they have | names |\n|---|---|---|\n{refused}\n## Image processors of transformers\n\n"
        "By the defaults of each class, whose name ends in *ImageProcessor*; `–` is what transformers has not. Another "
        "config may be\nimported or refused otherwise.\n\n"
        f"| with Pillow | of tensors | classes |\n|---|---|---|\n{listed}"
    )


def _torchvision() -> dict[str, str]:
    models, verdicts = load("torchvision.models"), _Verdicts()
    weights = {str(one): one for name in models.list_models() for one in models.get_model_weights(name)}
    return {
        name: verdicts.of(partial(from_torchvision, one), one.transforms, pictures=_FIRST)
        for name, one in weights.items()
    }


def _timm() -> dict[str, str]:
    models, data, verdicts = load("timm.models"), load("timm.data"), _Verdicts()

    def built(config: Any) -> Any:
        return data.create_transform(**data.resolve_data_config(pretrained_cfg=config.to_dict()))

    configs = {name: models.get_pretrained_cfg(name) for name in models.list_pretrained()}
    return {
        name: verdicts.of(partial(from_timm, one), partial(built, one), pictures=1) for name, one in configs.items()
    }


def _transformers() -> dict[str, dict[str, str]]:
    """By class and by what it resizes with."""
    library = load("transformers")
    mapping = load("transformers.models.auto.image_processing_auto").IMAGE_PROCESSOR_MAPPING_NAMES
    names = {name for classes in mapping.values() for name in _names(classes)}
    found: dict[str, dict[str, str]] = {}
    for name in sorted(names):
        made: Any = getattr(library, name, None)
        try:
            processor = made()
        except Exception:  # of code that is not ours: it needs a model
            continue
        backend = _BACKENDS.get(getattr(processor, "backend", ""))
        if backend is None:
            continue
        verdict = _Verdicts().of(partial(_read, processor), partial(partial, _pixels, processor), pictures=_FIRST)
        found.setdefault(name.removesuffix("Pil").removesuffix("ImageProcessor"), {})[backend] = verdict
    return found


def _pixels(processor: Any, image: Any) -> Any:
    tiles = processor(image, return_tensors="np")["pixel_values"]
    return tiles[0] if np.ndim(tiles) == 5 else pixels(processor, image)


def _read(processor: Any) -> Definition:
    return read_huggingface(processor)[0]


def _names(classes: Any) -> Iterable[str]:
    values = classes.values() if isinstance(classes, dict) else classes
    return (name for name in values if name)


def _count(library: str, verdicts: Iterable[str]) -> str:
    counted = Counter(verdicts)
    total, equal, within = sum(counted.values()), counted["equal"], counted["within"]
    return f"| {library} | {total} | {equal} | {within} | {total - equal - within} |\n"


def _reason(error: str) -> str:
    for pattern, text in _REASONS:
        match = re.search(pattern, error)
        if match:
            return match.expand(text)
    return error.partition(". ")[0]


if __name__ == "__main__":
    print(page(), end="")
