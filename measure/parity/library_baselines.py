"""What users have: torchvision, OpenCV and Pillow, each as it is usually written.

Sizes and windows are the definition's own, so that only decoding, filters and normalization can differ. None of these
applies an EXIF orientation that its usual code forgets, or refuses what its library reads.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from onestream.measure.parity.subject import Observation, Photo, Pixels, Refused, Subject
from onestream.preprocess import BackendMissing, Definition, Resize
from onestream.preprocess.backends.base import network_layout
from onestream.preprocess.backends.reference import in_color
from onestream.preprocess.geometry import Size
from onestream.preprocess.interop.libraries import with_torchvision
from onestream.preprocess.moves import Move, Pad
from onestream.preprocess.operations import Filter

Library = Literal["torchvision", "opencv", "pillow"]
MODULES: dict[str, str] = {"torchvision": "torchvision", "opencv": "cv2", "pillow": "PIL"}
"""What is imported for each library."""
LIBRARIES: tuple[Library, ...] = get_args(Library)


class _Usual(Subject[Photo]):
    """Decode, move and normalize one after the other, on whatever the library calls an image."""

    def __init__(self, name: str, definition: Definition) -> None:
        super().__init__(name, judged=False)
        self._definition = definition

    def observe(self, photo: Photo) -> Observation:
        """All four stages; any error of the library is a refusal."""
        try:
            return observed(self._definition, self.decode(photo.data), move=self.move, pixels=self.pixels)
        except Exception as error:  # libraries raise what they like on files that they cannot read
            raise Refused(f"{type(error).__name__}: {error}") from None

    def decode(self, data: bytes) -> Any:
        """The library's image from a file's bytes."""
        raise NotImplementedError

    def move(self, operation: Move, image: Any) -> Any:
        """One resize, crop or pad."""
        raise NotImplementedError

    def pixels(self, image: Any) -> Pixels:
        """The library's image as uint8 (height, width, channels)."""
        raise NotImplementedError


def observed(
    definition: Definition, image: Any, *, move: Callable[[Move, Any], Any], pixels: Callable[[Any], Pixels]
) -> Observation:
    """All four stages of a decoded image, moved by ``move`` and read by ``pixels`` as in ``_Usual``."""
    last_resize = max((i for i, op in enumerate(definition.geometry) if isinstance(op, Resize)), default=-1)
    decoded = resized = pixels(image)
    for index, operation in enumerate(definition.geometry):
        image = move(operation, image)
        if index == last_resize:
            resized = pixels(image)
    cropped = pixels(image)
    return Observation(
        {"decode": decoded, "resize": resized, "crop": cropped, "normalize": network_layout(definition, cropped)}
    )


def with_channels(pixels: Pixels) -> Pixels:
    """(height, width, channels), also of a gray image."""
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def import_library(module: str, library: str, command: str) -> Any:
    """Import a library's module. Raises ``BackendMissing`` naming ``command``."""
    try:
        return with_torchvision(lambda: importlib.import_module(module))
    except ImportError:
        raise BackendMissing(f"{library} is not installed: {command}") from None
    except Exception as error:  # torchvision built for another PyTorch raises what it likes at import
        raise BackendMissing(f"{library} cannot be imported: {error}; it must suit the installed PyTorch") from None


class PlainPillow(_Usual):
    """``Image.open(file).convert("RGB").resize(size)``: no EXIF, and Pillow's own default filter, which is bicubic."""

    def __init__(self, definition: Definition) -> None:
        super().__init__("Pillow", definition)

    def decode(self, data: bytes) -> Image.Image:
        """Pillow's pixels, not turned."""
        return in_color(Image.open(io.BytesIO(data)), self._definition.color)

    def move(self, operation: Move, image: Image.Image) -> Image.Image:
        """Resize without naming a filter."""
        if isinstance(operation, Resize):
            height, width = operation.resized((image.height, image.width))
            return image.resize((width, height))
        return operation.apply(image)

    def pixels(self, image: Image.Image) -> Pixels:
        """See ``_Usual.pixels``."""
        return with_channels(np.asarray(image))


class OpenCv(_Usual):
    """``cv2.imread``, ``cvtColor``, ``resize`` (which does not antialias), crop."""

    def __init__(self, definition: Definition) -> None:
        super().__init__("OpenCV", definition)
        self._cv2 = import_library("cv2", "opencv", "pip install opencv-python-headless")

    def decode(self, data: bytes) -> Pixels:
        """OpenCV's decoder, which gives BGR, in the definition's order."""
        cv2, color = self._cv2, self._definition.color
        flag = cv2.IMREAD_GRAYSCALE if color == "gray" else cv2.IMREAD_COLOR
        found = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        if found is None:
            raise ValueError("cv2.imdecode returned None")
        image: Pixels = cv2.cvtColor(found, cv2.COLOR_BGR2RGB) if color == "rgb" else found
        return image

    def move(self, operation: Move, image: Pixels) -> Pixels:
        """Resize by OpenCV with the filter of the definition's name."""
        if isinstance(operation, Resize):
            cv2 = self._cv2
            height, width = operation.resized((image.shape[0], image.shape[1]))
            filters: dict[Filter, int] = {
                "nearest": cv2.INTER_NEAREST, "nearest-exact": cv2.INTER_NEAREST_EXACT, "bilinear": cv2.INTER_LINEAR,
                "bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4,
            }  # fmt: skip
            resized: Pixels = cv2.resize(image, (width, height), interpolation=filters[operation.filter])
            return resized
        return np.asarray(operation.apply(Image.fromarray(image)))

    def rectified(self, picture: Pixels, transform: npt.NDArray[np.float64], size_hw: Size) -> Pixels:
        """The rectangle of ``size_hw`` that a transform (``projection.homographies``) takes from a picture.

        As text recognizers are fed: ``warpPerspective`` with ``INTER_CUBIC``, the border repeated, corners taken for
        the middles of pixels (``get_rotate_crop_image`` of PaddleOCR, tools/infer/utility.py).
        """
        cv2 = self._cv2
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        made: Pixels = cv2.warpPerspective(
            picture, transform, size_hw[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
        return made

    def pixels(self, image: Pixels) -> Pixels:
        """See ``_Usual.pixels``."""
        return with_channels(image)


class Torchvision(_Usual):
    """``transforms.v2`` on PIL images, as its documentation composes them."""

    def __init__(self, definition: Definition, *, on_tensors: bool = False) -> None:
        super().__init__("torchvision on tensors" if on_tensors else "torchvision", definition)
        command = "pip install torchvision"
        self._functional = import_library("torchvision.transforms.v2.functional", "torchvision", command)
        self._interpolation = import_library("torchvision.transforms", "torchvision", command).InterpolationMode
        self._on_tensors = on_tensors

    def decode(self, data: bytes) -> Any:
        """A PIL image as ``ImageFolder`` loads it, or that as a uint8 tensor."""
        image = in_color(Image.open(io.BytesIO(data)), self._definition.color)
        return self._functional.pil_to_tensor(image) if self._on_tensors else image

    def move(self, operation: Move, image: Any) -> Any:
        """Torchvision's resize; on tensors without antialiasing, which was the default for years."""
        height, width = self._functional.get_size(image)
        if isinstance(operation, Resize):
            size = list(operation.resized((height, width)))
            interpolation = self._interpolation(operation.filter)
            return self._functional.resize(image, size, interpolation, antialias=not self._on_tensors)
        window = operation.window((height, width))
        if isinstance(operation, Pad):
            border = [-window.left, -window.top]
            border += [window.width - width - border[0], window.height - height - border[1]]
            return self._functional.pad(image, border, fill=operation.value)
        return self._functional.center_crop(image, [window.height, window.width])

    def pixels(self, image: Any) -> Pixels:
        """See ``_Usual.pixels``."""
        if self._on_tensors:
            channels_last: Pixels = image.permute(1, 2, 0).contiguous().numpy()
            return channels_last
        return with_channels(np.asarray(image))


_MAKERS: dict[Library, tuple[Callable[[Definition], Subject[Photo]], ...]] = {
    "torchvision": (Torchvision, lambda definition: Torchvision(definition, on_tensors=True)),
    "opencv": (OpenCv,),
    "pillow": (PlainPillow,),
}


def usual_code(library: Library, definition: Definition) -> list[Subject[Photo]]:
    """The subjects of one library. Raises ``BackendMissing`` naming the command where it cannot be imported."""
    return [make(definition) for make in _MAKERS[library]]
