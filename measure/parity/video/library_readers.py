"""What users read video with: PyAV, OpenCV and decord, each as it is usually written.

Only decoding and colours are theirs: the definition's geometry is done as the reference does it, so that what differs
is how the library makes RGB. None of them is told the matrix or the range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from onestream.measure.parity.library_baselines import import_library, observed, with_channels
from onestream.measure.parity.subject import Observation, Pixels, Refused
from onestream.measure.parity.video.frames import ClipReader, ComparedClip
from onestream.preprocess import Definition
from onestream.preprocess.backends.reference import in_color
from onestream.preprocess.definition import PreprocessingStage
from onestream.preprocess.tolerances import Bounds, Source
from onestream.preprocess.video.common.tolerances import tolerance

MODULES = {"pyav": "av", "opencv": "cv2", "decord": "decord"}
"""What is imported for each library."""

Decode = Callable[[Any, ComparedClip], Sequence[Pixels]]
"""From the library's module and a clip to its frames, (height, width, 3) uint8 RGB."""


class LibraryReader(ClipReader):
    """A library's frames, and what the reference's geometry makes of them."""

    def __init__(self, name: str, definition: Definition, decode: Callable[[ComparedClip], Sequence[Pixels]]) -> None:
        super().__init__(name, judged=False)
        self._definition, self._decode = definition, decode

    def allowed(self, stage: PreprocessingStage, source: Source) -> Bounds | None:  # noqa: ARG002 (filters average, and crops cut)
        """How far swscale rounds otherwise with the same matrix and range; what is beyond used others."""
        return tolerance("swscale-subsampled" if source == "plain" else "swscale-10-bit")

    def read(self, clip: ComparedClip) -> Sequence[Observation]:
        """All four stages; any error of the library is a refusal."""
        try:
            frames = self._decode(clip)
        except Exception as error:  # libraries raise what they like on files that they cannot read
            raise Refused(f"{type(error).__name__}: {error}") from None
        if len(frames) != len(clip.numbers):
            raise Refused(f"gives {len(frames)} of {len(clip.numbers)} frames")
        return [
            observed(self._definition, self._image(pixels), move=lambda move, image: move.apply(image), pixels=_pixels)
            for pixels in frames
        ]

    def _image(self, pixels: Pixels) -> Image.Image:
        return in_color(Image.fromarray(pixels), self._definition.color)


def library_reader(library: str, definition: Definition) -> ClipReader:
    """The subject of one of ``MODULES``. Raises ``BackendMissing`` naming the command where it cannot be imported."""
    name, decode, command = _LIBRARIES[library]
    module = import_library(MODULES[library], library, command)
    return LibraryReader(name, definition, lambda clip: decode(module, clip))


def _by_pyav(av: Any, clip: ComparedClip) -> Sequence[Pixels]:
    wanted = set(clip.numbers)
    with av.open(str(clip.path)) as container:
        found = []
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                found.append(frame.to_ndarray(format="rgb24"))
            if number == clip.numbers[-1]:
                break
        return found


def _by_opencv(cv2: Any, clip: ComparedClip) -> Sequence[Pixels]:
    capture, wanted, found = cv2.VideoCapture(str(clip.path)), set(clip.numbers), []
    for number in range(clip.numbers[-1] + 1):
        if not capture.grab():
            break
        if number in wanted:
            found.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB))
    capture.release()
    return found


def _by_decord(decord: Any, clip: ComparedClip) -> Sequence[Pixels]:
    return list(decord.VideoReader(str(clip.path)).get_batch(list(clip.numbers)).asnumpy())


_LIBRARIES: dict[str, tuple[str, Decode, str]] = {
    "pyav": ("PyAV", _by_pyav, "pip install av"),
    "opencv": ("OpenCV", _by_opencv, "pip install opencv-python-headless"),
    "decord": ("decord", _by_decord, "pip install decord2"),
}


def _pixels(image: Image.Image) -> Pixels:
    return with_channels(np.asarray(image))
