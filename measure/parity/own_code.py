"""A transform of the user's own as a subject: anything that takes a PIL image and returns the network's input."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from onestream.measure.parity.subject import Observation, Photo, Pixels, Refused, Subject
from onestream.preprocess import CannotImport, Definition
from onestream.preprocess.backends.base import Sample
from onestream.preprocess.interop.source import named_object


class NotATransform(Exception):
    """``MODULE:NAME`` names nothing that can be called; the message says why."""


class OwnCode(Subject[Photo]):
    """A callable, such as a torchvision ``Compose``, from a PIL image in RGB (or L) to a tensor or array.

    For a definition in BGR the image is in RGB, too: what PIL opens. The callable changes the order itself.

    ``where`` is ``MODULE:NAME``, imported from the working directory or the environment. Raises ``NotATransform``.
    """

    def __init__(self, where: str, definition: Definition) -> None:
        super().__init__(where, judged=False)
        self._definition = definition
        self._transform = _load(where)

    def observe(self, photo: Photo) -> Observation:
        """The last stage, and the pixels that it was made of; any error of the transform is a refusal."""
        try:
            image = Image.open(io.BytesIO(photo.data)).convert("L" if self._definition.color == "gray" else "RGB")
            output = np.asarray(self._transform(image))
        except Exception as error:  # the code is not ours
            raise Refused(f"{type(error).__name__}: {error}") from None
        decoded_hw = (image.height, image.width)
        return Observation({"normalize": output}, pixels=self._pixels(output), decoded_hw=decoded_hw)

    def _pixels(self, output: Sample) -> Pixels | None:
        """The pixels that the definition would normalize to this output; None for an output of another shape."""
        definition = self._definition
        if output.ndim != 3:
            return None
        if definition.network_input.layout == "NCHW":
            output = output.transpose(1, 2, 0)
        normalize = definition.normalize
        if normalize is not None:
            if output.shape[2] != len(normalize.mean):
                return None
            output = (output * np.asarray(normalize.std) + np.asarray(normalize.mean)) * normalize.scale
        return np.clip(np.rint(output), 0, 255).astype(np.uint8)


def _load(where: str) -> Callable[[Image.Image], Any]:
    try:
        found = named_object(where)
    except CannotImport as error:
        raise NotATransform(f"--against {error}") from None
    if not callable(found):
        name = where.partition(":")[2]
        raise NotATransform(f"--against {where}: {name} is {type(found).__name__}, expected a function or a transform")
    transform: Callable[[Image.Image], Any] = found
    return transform
