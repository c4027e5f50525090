"""``to_torchvision(definition)`` equals the reference backend, on real files, to the last bit."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision_alone
from image_sets import DEFINITION, FORMATS
from PIL import Image

from onestream.preprocess import (
    BackendMissing,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Normalize,
    Output,
    Pad,
    Resize,
    compile,
)
from onestream.preprocess.interop import to_torchvision
from onestream.preprocess.operations import Operation
from onestream.preprocess.training import Files

torchvision_alone.load()

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
BYTES = Normalize(mean=(127, 127, 127), std=(128, 128, 128), scale=1)
LEVELS = Output(layout="NHWC", dtype="uint8")
CHAINS: dict[str, list[Operation]] = {
    "scale 1": [Resize(mode="shorter", size=80), CenterCrop(size=(64, 64)), BYTES],
    "bicubic, half": [Resize(mode="exact", size=(71, 53), filter="bicubic"), IMAGENET, Output(dtype="float16")],
    "lanczos": [Resize(mode="shorter", size=333, filter="lanczos"), CenterCrop(size=(300, 400)), LEVELS],
    "nearest": [Resize(mode="longer", size=50, filter="nearest"), Pad(size=(50, 50), value=9), LEVELS],
    "letterbox": [Letterbox(size=(96, 64), align="top_left"), Output(layout="NHWC")],
    "not torchvision's": [
        Resize(mode="exact", size=(61, 77), antialias=False), CenterCrop(size=(50, 50), rounding="truncate"),
    ],
    "multiples": [Resize(mode="shorter", size=64, multiple_of=32), IMAGENET],
    "kept where it would grow": [
        Resize(mode="shorter", size=9999, enlarge=False), Pad(size=(90, 90), multiple_of=(16, 16)),
    ],
    "bounded": [
        Resize(mode="shorter", size=64, max_size=80), Pad(size=(80, 90), value=(124, 116, 104)), IMAGENET,
    ],
    "never smaller": [Resize(mode="shorter", size=500, shrink=False), IMAGENET],
    "height": [Resize(mode="height", size=(48, 60), rounding="up")],
}  # fmt: skip
DEFINITIONS = {
    "classify": DEFINITION,
    "bgr": FORMATS["bgr"],
    "gray": FORMATS["gray"],
    **{name: Definition(operations=[Decode(), *operations]) for name, operations in CHAINS.items()},
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_it_equals_the_reference(photos: Path, name: str) -> None:
    definition, files = DEFINITIONS[name], Files.from_folder(photos)
    encoded = [bytes(files.read(index)) for index in range(12)]
    transform = pickle.loads(pickle.dumps(to_torchvision(definition)))
    for data, expected in zip(encoded, compile(definition).run(encoded), strict=True):
        seen = transform(Image.open(io.BytesIO(data)))
        assert isinstance(expected, np.ndarray)
        assert seen.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(seen.numpy(), expected)
    with pytest.raises(TypeError, match="expected a PIL image, got Tensor"):
        transform(torch.zeros(3, 8, 8))


@pytest.mark.slow
def test_a_torchvision_for_another_pytorch_will_do(tmp_path: Path) -> None:
    """One that describes its operators at import, as the real one does, and whose library did not declare them."""
    (tmp_path / "torchvision" / "transforms").mkdir(parents=True)
    describes = "import torch; torch.library.register_fake('torchvision::nms')(lambda boxes, *_: boxes)"
    (tmp_path / "torchvision" / "__init__.py").write_text(describes)
    (tmp_path / "torchvision" / "transforms" / "__init__.py").touch()
    transforms = "def __getattr__(name): return lambda *_, **__: name"
    (tmp_path / "torchvision" / "transforms" / "v2.py").write_text(transforms)
    script = (
        "from onestream.preprocess import Decode, Definition\n"
        "from onestream.preprocess.interop import to_torchvision\n"
        "print(to_torchvision(Definition(operations=(Decode(),))))"
    )
    command, environment = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "Compose\n", done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("raise RuntimeError('built for another')", "built for another; it must suit the installed PyTorch"),
        ("raise ImportError('no such library')", "no such library.*pip install torchvision"),
    ],
)
def test_a_torchvision_that_cannot_be_imported_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendMissing, match=message):
        to_torchvision(DEFINITION)
