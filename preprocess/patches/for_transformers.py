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

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.huggingface.config import from_huggingface
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.patches.batch import Patched, to_tensor
from onestream.preprocess.patches.pictures import Picture
from onestream.preprocess.patches.processor import DType, Processor
from onestream.preprocess.patches.tile_features import of_got_ocr2, of_idefics3, of_llava

if TYPE_CHECKING:
    from onestream.preprocess.definition import Definition

load("torchvision")
_transformers: Any = load("transformers")
_FILES = (bytes, bytearray, memoryview)
_SIZES = ("image_sizes", "spatial_shapes")
_OF_INPUT = ("input_data_format", "samples", "return_row_col_info")
"""What describes the input or the output, and no pixels."""


class _InProcess:
    """What is not transformers'. ``patch_dtype`` and ``threads`` are as of ``Processor``, attributes to be set."""

    patch_dtype: DType = "float32"
    threads = 1
    lists: tuple[str, ...] = ()
    """What has an entry for each picture, in a list, where ``return_tensors`` is None."""
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
        made = opened(self._definition(options), self.patch_dtype, self.threads, os.getpid())(images)
        require_all(made, images, "images")
        data = self._features(made, options)
        if self.patch_dtype == "bfloat16" or self.backend == "torchvision":
            data = {
                name: to_tensor(values).to(device) if isinstance(values, np.ndarray) else values
                for name, values in data.items()
            }
        if return_tensors is None:
            data |= {
                name: [*map(tuple, data[name].tolist())] if name in _SIZES else [*data[name]] for name in self.lists
            }
        return _transformers.image_processing_utils.BatchFeature(
            data=data, tensor_type=return_tensors, skip_tensor_conversion=["rows", "cols"]
        )

    def _features(self, made: Patched, options: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 (others read them)
        return {**made.features()}

    def _definition(self, options: dict[str, Any]) -> Definition:
        config = {
            key: dict(value) if isinstance(value, _transformers.image_utils.SizeDict) else value
            for key, value in options.items()
            if key not in _OF_INPUT
        }
        extended = extended_by(self)
        kind = f"{extended}Fast" if self.backend == "torchvision" else extended
        return from_huggingface({**config, "image_processor_type": kind})


class _Llava(_InProcess):
    lists = ("pixel_values", "image_sizes")

    def _features(self, made: Patched, options: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return of_llava(made)

    def _definition(self, options: dict[str, Any]) -> Definition:
        return super()._definition(_padding(options))


class _LlavaOnevision(_Llava):
    def _preprocess(self, images: Any, batch_num_images: Any, **options: Any) -> Any:  # type: ignore[override]
        if any(count != 1 for count in batch_num_images):
            raise ValueError(
                f"got {max(batch_num_images)} pictures of one conversation, which LLaVA-OneVision leaves whole: send 1"
            )
        return super()._preprocess(images, **options)

    def _features(self, made: Patched, options: dict[str, Any]) -> dict[str, Any]:
        return {**super()._features(made, options), "batch_num_images": [1] * len(made.tile_counts)}


class _GotOcr2(_InProcess):
    lists = ("pixel_values",)

    def _features(self, made: Patched, options: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return of_got_ocr2(made)

    def _definition(self, options: dict[str, Any]) -> Definition:
        whole = {} if options["crop_to_patches"] else {"crop_to_patches": True, "min_patches": 1, "max_patches": 1}
        return super()._definition({**options, **whole})


class _Idefics3(_InProcess):
    def _prepare_images_structure(self, images: Any, **options: Any) -> Any:
        samples = [images] if isinstance(images, _FILES) else images
        if isinstance(samples, list | tuple):
            samples = samples if all(isinstance(one, list | tuple) for one in samples) else [samples]
            if any(isinstance(image, _FILES) for sample in samples for image in sample):
                return [list(sample) for sample in samples]
        return super()._prepare_images_structure(images, **options)

    def _preprocess(self, images: Any, **options: Any) -> Any:
        flat = [picture for sample in images for picture in sample]
        return super()._preprocess(flat, samples=[*map(len, images)], **options)

    def _features(self, made: Patched, options: dict[str, Any]) -> dict[str, Any]:
        return of_idefics3(made, options["samples"], with_grid=bool(options["return_row_col_info"]))

    def _definition(self, options: dict[str, Any]) -> Definition:
        return super()._definition(_padding(options))


def _padding(options: dict[str, Any]) -> dict[str, Any]:
    if not options["do_pad"]:
        raise CannotImport(
            "do_pad must be true: tiles of pictures that have different numbers of them become one array"
        )
    return options


class Qwen2VLImageProcessor(_InProcess, _transformers.Qwen2VLImageProcessor):  # type: ignore[misc]  # untyped
    """The image processor of Qwen2-VL, Qwen2.5-VL and Qwen3-VL that resizes as tensors are; gives tensors.

    ``images`` may also be the bytes of files, which are decoded as ``transformers.image_utils.load_image`` does.
    """


class Qwen2VLImageProcessorPil(_InProcess, _transformers.Qwen2VLImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does; gives arrays where ``return_tensors`` does not say otherwise."""


class Glm4vImageProcessor(_InProcess, _transformers.Glm4vImageProcessor):  # type: ignore[misc]  # untyped
    """That of GLM-4.1V and GLM-4.5V that resizes as tensors are."""


class Glm4vImageProcessorPil(_InProcess, _transformers.Glm4vImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


class Glm46VImageProcessor(_InProcess, _transformers.Glm46VImageProcessor):  # type: ignore[misc]  # untyped
    """That of GLM-4.6V that resizes as tensors are."""


class Glm46VImageProcessorPil(_InProcess, _transformers.Glm46VImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


class PaddleOCRVLImageProcessor(_InProcess, _transformers.PaddleOCRVLImageProcessor):  # type: ignore[misc]  # untyped
    """That of PaddleOCR-VL that resizes as tensors are."""


class PaddleOCRVLImageProcessorPil(_InProcess, _transformers.PaddleOCRVLImageProcessorPil):  # type: ignore[misc]
    """The same that resizes as Pillow does."""


class PixtralImageProcessor(_InProcess, _transformers.PixtralImageProcessor):  # type: ignore[misc]  # untyped
    """That of Pixtral, Mistral 3 and LightOnOCR that resizes as tensors are."""

    lists = ("image_sizes",)


class PixtralImageProcessorPil(_InProcess, _transformers.PixtralImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""

    lists = ("image_sizes",)


class Siglip2ImageProcessor(_InProcess, _transformers.Siglip2ImageProcessor):  # type: ignore[misc]  # untyped
    """That of SigLIP2-NaFlex that resizes as tensors are."""

    lists = ("pixel_values", "pixel_attention_mask", "spatial_shapes")


class Siglip2ImageProcessorPil(_InProcess, _transformers.Siglip2ImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""

    lists = ("pixel_values", "pixel_attention_mask", "spatial_shapes")


class LlavaNextImageProcessor(_Llava, _transformers.LlavaNextImageProcessor):  # type: ignore[misc]  # untyped
    """That of LLaVA-NeXT that resizes as tensors are."""


class LlavaNextImageProcessorPil(_Llava, _transformers.LlavaNextImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


class LlavaOnevisionImageProcessor(_LlavaOnevision, _transformers.LlavaOnevisionImageProcessor):  # type: ignore[misc]
    """That of LLaVA-OneVision that resizes as tensors are. Raises ``ValueError`` for several pictures in a list."""


class LlavaOnevisionImageProcessorPil(
    _LlavaOnevision,
    _transformers.LlavaOnevisionImageProcessorPil,  # type: ignore[misc]  # untyped
):
    """The same that resizes as Pillow does."""


class GotOcr2ImageProcessor(_GotOcr2, _transformers.GotOcr2ImageProcessor):  # type: ignore[misc]  # untyped
    """That of InternVL and GOT-OCR2 that resizes as tensors are."""


class GotOcr2ImageProcessorPil(_GotOcr2, _transformers.GotOcr2ImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


class Idefics3ImageProcessor(_Idefics3, _transformers.Idefics3ImageProcessor):  # type: ignore[misc]  # untyped
    """That of Idefics3 that resizes as tensors are."""


class Idefics3ImageProcessorPil(_Idefics3, _transformers.Idefics3ImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


class SmolVLMImageProcessor(_Idefics3, _transformers.SmolVLMImageProcessor):  # type: ignore[misc]  # untyped
    """That of SmolVLM that resizes as tensors are."""


class SmolVLMImageProcessorPil(_Idefics3, _transformers.SmolVLMImageProcessorPil):  # type: ignore[misc]  # untyped
    """The same that resizes as Pillow does."""


_CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    "Glm46VConfig": (Glm46VImageProcessor, Glm46VImageProcessorPil),
    "Glm4vConfig": (Glm4vImageProcessor, Glm4vImageProcessorPil),
    "GotOcr2Config": (GotOcr2ImageProcessor, GotOcr2ImageProcessorPil),
    "Idefics3Config": (Idefics3ImageProcessor, Idefics3ImageProcessorPil),
    "LlavaNextConfig": (LlavaNextImageProcessor, LlavaNextImageProcessorPil),
    "LlavaOnevisionConfig": (LlavaOnevisionImageProcessor, LlavaOnevisionImageProcessorPil),
    "PaddleOCRVLConfig": (PaddleOCRVLImageProcessor, PaddleOCRVLImageProcessorPil),
    "PixtralVisionConfig": (PixtralImageProcessor, PixtralImageProcessorPil),
    "Qwen2VLConfig": (Qwen2VLImageProcessor, Qwen2VLImageProcessorPil),
    "Siglip2Config": (Siglip2ImageProcessor, Siglip2ImageProcessorPil),
    "SmolVLMConfig": (SmolVLMImageProcessor, SmolVLMImageProcessorPil),
}
"""Of tensors and of Pillow, by one of the models' configs: auto classes find them by name."""


def register() -> None:
    """Let ``AutoImageProcessor`` and ``AutoProcessor`` of this process give these classes."""
    for config, (of_tensors, of_pillow) in _CLASSES.items():
        _transformers.AutoImageProcessor.register(
            getattr(_transformers, config),
            image_processor_classes={"torchvision": of_tensors, "pil": of_pillow},
            exist_ok=True,
        )


def extended_by(processor: Any) -> str:
    """The name of the class of transformers that this one extends."""
    return next(one.__name__ for one in type(processor).__mro__ if one.__module__.startswith("transformers."))


def require_all(made: Patched, items: Sequence[Any], name: str) -> None:
    """Raise ``ValueError`` for the first bad one of ``items``, an argument of this name."""
    for index, error in made.errors.items():
        raise ValueError(error.reason if len(items) == 1 else f"{name}[{index}]: {error.reason}")


@lru_cache(8)
def opened(definition: Definition, dtype: DType, threads: int, process: int) -> Processor:  # noqa: ARG001
    """Shared by all that have this definition in one process: threads do not live on in a forked one."""
    return Processor(definition, dtype=dtype, threads=threads)
