"""The video that every stream plays: its packets in memory, again and again, when a camera would send them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from PIL import Image

from onestream.client.video import File
from onestream.measure.panning import write_panning
from onestream.wire.install import install_command
from onestream.wire.video import Open, Packet

FPS = 30
_FRAMES, _BITS_PER_S, _GRAIN_SIGMA = 300, 8_000_000, 2.0
_PHOTO = "data/astronaut.png"


class ClipMissing(Exception):
    """There is no video to play; the text says how to get one."""


@dataclass(frozen=True)
class Clip:
    """A video file's packets in the order of storage, ``frames`` of them, one for each frame."""

    path: Path
    format: Open
    packets: tuple[Packet, ...]

    @property
    def frames(self) -> int:
        """How many frames it has."""
        return len(self.packets)

    @classmethod
    def read(cls, path: Path) -> Clip:
        """Read a file. Raises ``UnreadableInput``, or ``ClipMissing`` where it cannot be played again and again."""
        feed = File(path).connect()
        try:
            packets = tuple(feed.packets())
        finally:
            feed.close()
        if not packets or not packets[0].is_key or any(packet.pts is None for packet in packets):
            raise ClipMissing(
                f"{path}: to be played again and again it must begin with a key frame and state all times"
            )
        return cls(path, feed.format, packets)

    def played(self, *, rate: float, beginning_s: float, until_s: float) -> Iterator[Packet]:
        """The packets, each when it is due, by ``time.monotonic`` from ``beginning_s`` to ``until_s``.

        ``rate`` times ``FPS`` frames come a second.
        """
        for number, due_s in due_times(rate, beginning_s, until_s):
            wait(due_s)
            yield self.packet(number)

    def packet(self, number: int) -> Packet:
        """Packet ``number`` of the clip played again and again; its times go on from one round to the next."""
        packet, shift = self.packets[number % self.frames], number // self.frames * self._length
        return replace(packet, pts=_later(packet.pts, shift), dts=_later(packet.dts, shift))

    @cached_property
    def _length(self) -> int:
        first, last = (choose(packet.pts for packet in self.packets if packet.pts is not None) for choose in (min, max))
        return last - first + max(1, round((last - first) / max(1, self.frames - 1)))


def due_times(rate: float, beginning_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """Number and time of the frames of a camera of ``rate`` times ``FPS`` frames a second."""
    number, due_s = 0, beginning_s
    while due_s < until_s:
        yield number, due_s
        number += 1
        due_s = beginning_s + number / (FPS * rate)


def wait(due_s: float) -> None:
    """Until a time of ``time.monotonic``."""
    left_s = due_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def _later(time_: int | None, shift: int) -> int | None:
    return None if time_ is None else time_ + shift


def own_clip(folder: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """A person in front of a background, 1080p, made in ``folder`` where it is missing.

    A window pans over a photo (scikit-image's astronaut, public domain) with new grain in every frame, as a sensor has
    it; libx264's default settings at 8 Mbit/s, 30 frames/s, 10 seconds. Raises ``ClipMissing``.
    """
    path = folder / "person-1080p.mp4"
    if path.exists():
        return path
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise ClipMissing(
            f"the video is made from a photo of scikit-image: {install_command(group='bench')}, or --clip FILE"
        )
    say("making the video (half a minute, once)")
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(Path(package.origin).parent / _PHOTO) as photo:
        write_panning(path, photo, frames=_FRAMES, fps=FPS, grain_sigma=_GRAIN_SIGMA, bits_per_s=_BITS_PER_S)
    return path
