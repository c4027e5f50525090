"""The modes of Keras' ``preprocess_input``, by name: *caffe*, *tf* and *torch*."""

from __future__ import annotations

import re

from onestream.preprocess.definition import Definition
from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.common import refusing
from onestream.preprocess.moves import Resize
from onestream.preprocess.operations import Color, Decode, Normalize, Operation, Output

# keras/src/applications/imagenet_utils.py
_MODES: dict[str, tuple[Color, Normalize]] = {
    "caffe": ("bgr", Normalize(mean=(103.939, 116.779, 123.68), std=(1, 1, 1), scale=1)),
    "tf": ("rgb", Normalize(mean=(1, 1, 1), std=(1, 1, 1), scale=127.5)),
    "torch": ("rgb", Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scale=255)),
}
_FORMS = "expected keras:caffe, keras:tf or keras:torch, or one of these with a size, such as keras:caffe:224"


@refusing()
def from_keras(mode: str) -> Definition:
    """What ``keras.utils.load_img`` and ``preprocess_input`` of a mode make of a file, in NHWC.

    ``mode`` is *caffe*, *tf* or *torch*. With a size behind it, such as *caffe:224* or *tf:224x320* (height first), a
    picture is resized as by ``load_img(path, target_size=...)``, whose interpolation is *nearest*; without one it keeps
    its own. Raises ``CannotImport``.
    """
    found = re.fullmatch(r"(\w+)(?::(\d+)(?:x(\d+))?)?", mode)
    if found is None or found[1] not in _MODES:
        raise CannotImport(f"keras:{mode}: {_FORMS}")
    color, normalize = _MODES[found[1]]
    operations: list[Operation] = [Decode(color=color)]
    if found[2]:
        size = int(found[2]), int(found[3] or found[2])
        operations.append(Resize(mode="exact", size=size, filter="nearest"))
    return Definition.model_validate({"operations": [*operations, normalize, Output(layout="NHWC")]})
