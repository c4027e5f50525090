"""Video processors of transformers whose work a ``Processor`` does, as ``for_transformers`` has image processors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from onestream.preprocess.interop.huggingface.config import from_huggingface
from onestream.preprocess.interop.libraries import load
from onestream.preprocess.patches.batch import to_tensor
from onestream.preprocess.patches.for_transformers import extended_by, opened, require_all
from onestream.preprocess.patches.processor import DType

_transformers: Any = load("transformers")


class _InProcess:
    """What is not transformers'. ``patch_dtype`` and ``threads`` are as of ``Processor``, attributes to be set."""

    patch_dtype: DType = "float32"
    threads = 1

    def _preprocess(
        self, videos: Sequence[Any], *, return_tensors: Any = None, device: Any = None, **options: Any
    ) -> Any:
        # transformers' resize reads this one of the object, whatever the call says.
        tokens = getattr(self, "max_video_tokens", None)
        size = dict(options["size"])
        config = {**options, "size": size, "max_video_tokens": tokens, "video_processor_type": extended_by(self)}
        frames = [_pixels(video) for video in videos]
        made = opened(from_huggingface(config), self.patch_dtype, self.threads, os.getpid()).videos(frames)
        require_all(made, videos, "videos")
        data = {name: to_tensor(values).to(device) for name, values in made.features().items()}
        return _transformers.image_processing_utils.BatchFeature(data=data, tensor_type=return_tensors)


def _pixels(video: Any) -> Any:
    """Frames as a ``Processor`` takes them, of a tensor (frames, c, height, width). Raises ``ValueError``."""
    frames = np.asarray(video)
    if frames.dtype != np.uint8 or frames.shape[1] != 3:
        raise ValueError(f"got a video of {frames.dtype} with {frames.shape[1]} channels, expected uint8 and RGB")
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1))


class Qwen2VLVideoProcessor(_InProcess, _transformers.Qwen2VLVideoProcessor):  # type: ignore[misc]  # untyped
    """The video processor of Qwen2-VL and Qwen2.5-VL: the same attributes, arguments and bits; gives tensors."""


class Qwen3VLVideoProcessor(_InProcess, _transformers.Qwen3VLVideoProcessor):  # type: ignore[misc]  # untyped
    """That of Qwen3-VL."""


class Glm4vVideoProcessor(_InProcess, _transformers.Glm4vVideoProcessor):  # type: ignore[misc]  # untyped
    """That of GLM-4.1V and GLM-4.5V."""


class Glm46VVideoProcessor(_InProcess, _transformers.Glm46VVideoProcessor):  # type: ignore[misc]  # untyped
    """That of GLM-4.6V."""


_CLASSES: dict[str, type[Any]] = {
    "Glm46VConfig": Glm46VVideoProcessor,
    "Glm4vConfig": Glm4vVideoProcessor,
    "Qwen2VLConfig": Qwen2VLVideoProcessor,
    "Qwen3VLConfig": Qwen3VLVideoProcessor,
}
"""By one of the models' configs: auto classes find them by name."""


def register() -> None:
    """Let ``AutoVideoProcessor`` and ``AutoProcessor`` of this process give these classes."""
    for config, of_tensors in _CLASSES.items():
        _transformers.AutoVideoProcessor.register(getattr(_transformers, config), of_tensors, exist_ok=True)
