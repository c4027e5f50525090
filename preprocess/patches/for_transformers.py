"""Image processors of transformers whose work a ``Processor`` does: the same attributes, arguments and bits.

Importing this module imports transformers. The classes have the names of those that they extend, so that a config saved
by one is read by the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from onestream.preprocess.interop.huggingface.config import from_huggingface
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.patches.processor import DType, Picture, Processor

if TYPE_CHECKING:
    from onestream.preprocess.definition import Definition

load("torchvision")
_transformers: Any = load("transformers")
_FILES = (bytes, bytearray, memoryview)


class _InProcess:
    """What is not transformers'. ``patch_dtype`` and ``threads`` are as of ``Processor``, attributes to be set."""

    patch_dtype: DType = "float32"
    threads = 1
    backend: str

    def _prepare_images_structure(self, images: Any, **options: Any) -> Any:
        if isinstance(images, _FILES):
            return [images]
        if isinstance(images, list | tuple) and any(isinstance(image, _FILES) for image in images):
            return list(images)
        return super()._prepare_images_structure(images, **options)  # type: ignore[misc]  # of the class beside it

    def process_image(self, image: Any, do_convert_rgb: bool | None = None, **options: Any) -> Picture:
        """A picture as a ``Processor`` takes it. Raises ``ValueError`` for pixels that are not uint8 in RGB."""
        if isinstance(image, _FILES):
            return image
        if isinstance(image, Image.Image) and image.mode == "RGB" and "transparency" not in image.info:
            return np.asarray(image)
        planes = np.asarray(super().process_image(image, do_convert_rgb=do_convert_rgb, **options))  # type: ignore[misc]
        if planes.dtype != np.uint8 or len(planes) != 3:
            raise ValueError(f"got a picture of {planes.dtype} with {len(planes)} channels, expected uint8 and RGB")
        return np.ascontiguousarray(planes.transpose(1, 2, 0))

    def _preprocess(
        self, images: Sequence[Picture], *, return_tensors: Any = None, device: Any = None, **options: Any
    ) -> Any:
        made = _opened(self._definition(options), self.patch_dtype, self.threads, os.getpid())(images)
        for index, error in made.errors.items():
            raise ValueError(error.reason if len(images) == 1 else f"images[{index}]: {error.reason}")
        data = {"pixel_values": made.pixel_values, "image_grid_thw": made.image_grid_thw}
        if self.patch_dtype == "bfloat16" or self.backend == "torchvision":
            tensors = made.to_torch()
            data = {name: one.to(device) for name, one in zip(data, tensors, strict=True)}
        return _transformers.image_processing_utils.BatchFeature(data=data, tensor_type=return_tensors)

    def _definition(self, options: dict[str, Any]) -> Definition:
        # What describes the input was read by process_image.
        config = {key: value for key, value in options.items() if key != "input_data_format"}
        suffix = "Fast" if self.backend == "torchvision" else "Pil"
        return from_huggingface(
            {**config, "size": dict(config["size"]), "image_processor_type": f"Qwen2VLImageProcessor{suffix}"}
        )


class Qwen2VLImageProcessor(_InProcess, _transformers.Qwen2VLImageProcessor):  # type: ignore[misc]  # untyped
    """The image processor of Qwen2-VL, Qwen2.5-VL and Qwen3-VL that resizes as tensors are; gives tensors.

    ``images`` may also be the bytes of files, which are decoded as ``transformers.image_utils.load_image`` does.
    """


class Qwen2VLImageProcessorPil(_InProcess, _transformers.Qwen2VLImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does; gives arrays where ``return_tensors`` does not say otherwise."""


def register() -> None:
    """Let ``AutoImageProcessor`` and ``AutoProcessor`` of this process give these classes."""
    _transformers.AutoImageProcessor.register(
        _transformers.Qwen2VLConfig,
        image_processor_classes={"torchvision": Qwen2VLImageProcessor, "pil": Qwen2VLImageProcessorPil},
        exist_ok=True,
    )


@lru_cache(8)
def _opened(definition: Definition, dtype: DType, threads: int, process: int) -> Processor:  # noqa: ARG001
    """Shared by all that have this definition in one process: threads do not live on in a forked one."""
    return Processor(definition, dtype=dtype, threads=threads)
