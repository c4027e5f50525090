"""The pictures of a calibration: read, taken through the definition by the reference backend, and split in two."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.preprocess import BadImage, Definition, Limits, compile
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import read_header
from onestream.preprocess.user_files import FileTooLarge, read_bounded
from onestream.serving.engine.quantization import Pictures
from onestream.serving.errors import BadPipeline

EVERY = 2
"""One picture of so many is held out, and measures what the others calibrated.

Ranges are known after some dozens of pictures; a share of 0.97 takes as many to be told from 1.
"""
LEAST = 8
"""Pictures of a calibration."""
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A picture at the network's door: its file's name, its pixels, and its own upright (height, width)."""

    name: str
    sha256: str
    pixels: npt.NDArray[np.uint8]
    size_hw: Size


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The samples that ranges are taken from, and those that agreement is measured with."""

    calibrated: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    refused: int

    @classmethod
    def of(cls, files: Sequence[Path], definition: Definition, limits: Limits) -> Split:
        """Read and split files: each once, in the order of their digests, every second held out.

        So the split depends on nothing but the contents. Raises ``BadPipeline`` where a file cannot be read, or there
        are fewer than 8 pictures that the definition takes.
        """
        reference = compile(definition.pixels(), limits=limits)
        taken: list[Sample] = []
        reasons: list[str] = []
        found, too_large = contents(files, limits)
        reasons += too_large
        for sha256, (name, content) in sorted(found.items()):
            (pixels,) = reference.run([content])
            if isinstance(pixels, BadImage):
                reasons.append(f"{name}: {pixels}")
            else:
                taken.append(Sample(name, sha256, np.ascontiguousarray(pixels), read_header(content).oriented_hw))
        if len(taken) < LEAST:
            refused = f"; {len(reasons)} refused, such as {'; '.join(reasons[:_MOST_NAMES])}" if reasons else ""
            raise BadPipeline(
                "less precision is measured with pictures like those that will be served: at least "
                f"{LEAST} different ones, better 64 and more; got {len(taken)}{refused}"
            )
        held_out = tuple(taken[EVERY - 1 :: EVERY])
        others = tuple(sample for number, sample in enumerate(taken, start=1) if number % EVERY)
        return cls(others, held_out, len(reasons))

    def all_held_out(self) -> Split:
        """The same with every sample held out, where nothing is calibrated."""
        return Split((), (*self.calibrated, *self.held_out), self.refused)

    def described(self) -> Pictures:
        """As the certificate tells it."""
        return Pictures(
            calibrated=len(self.calibrated),
            calibrated_sha256=_digest(self.calibrated),
            held_out=len(self.held_out),
            held_out_sha256=_digest(self.held_out),
            refused=self.refused,
        )


def contents(files: Sequence[Path], limits: Limits) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """Names and contents of files by their digests, and a line for each that is too large, which is not read.

    Raises ``BadPipeline`` where one cannot be read.
    """
    found: dict[str, tuple[str, bytes]] = {}
    too_large = []
    for file in files:
        try:
            content = read_bounded(file, limits.max_body_bytes)
        except FileTooLarge as error:
            too_large.append(f"{file.name}: {error.strerror}")
        except OSError as error:
            raise BadPipeline(f"{file}: {error.strerror or error}; expected a picture to calibrate with") from None
        else:
            found.setdefault(hashlib.sha256(content).hexdigest(), (file.name, content))
    return found, too_large


def _digest(samples: Sequence[Sample]) -> str:
    return hashlib.sha256("\n".join(sorted(sample.sha256 for sample in samples)).encode()).hexdigest()
