"""A camera of this machine, by Video4Linux: its own packets, or H.264 made of its pictures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onestream.client.errors import UnreadableInput
from onestream.client.video.demux import ContainerFeed, av, format_of, open_container, read_error, video_of
from onestream.wire.video import Packet

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext

_RAW = ("rawvideo", "wrapped_avframe")
_ENCODED_FPS = 30


def open_webcam(device: str, *, size: tuple[int, int] | None, fps: float | None) -> ContainerFeed | EncodedFeed:
    """A camera of this machine. Raises ``UnreadableInput``."""
    options = {} if size is None else {"video_size": "{}x{}".format(*size)}
    if fps is not None:
        options["framerate"] = f"{fps:g}"
    try:
        container = open_container(device, device, format="v4l2", options={**options, "input_format": "mjpeg"})
    except UnreadableInput:
        # Not every camera compresses; where it is the device that is missing, the second answer says so.
        container = open_container(device, device, format="v4l2", options=options)
    return feed_of(container, device)


def feed_of(container: InputContainer, name: str) -> ContainerFeed | EncodedFeed:
    """An endless container's packets; pictures that are not compressed are, here."""
    if video_of(container, name).codec_context.name in _RAW:
        return EncodedFeed(container, name)
    return ContainerFeed(container, name, endless=True)


class EncodedFeed:
    """A container of pictures that are not compressed, such as a simple webcam's: H.264 is made of them here."""

    endless = True

    def __init__(self, container: InputContainer, name: str) -> None:
        self._container, self._name = container, name
        self._stream = video_of(container, name)
        source = self._stream.codec_context
        encoder: Any = av.CodecContext.create("libx264", "w")
        encoder.width, encoder.height, encoder.pix_fmt = source.width // 2 * 2, source.height // 2 * 2, "yuv420p"
        encoder.time_base = self._stream.time_base
        encoder.framerate = self._stream.average_rate or _ENCODED_FPS
        encoder.gop_size = 2 * _ENCODED_FPS
        encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20", "x264-params": "log-level=none"}
        self._encoder: VideoCodecContext = encoder
        self.format = replace(
            format_of(self._stream, container), codec="h264", width=encoder.width, height=encoder.height, bitrate=0
        )
        self._stopped = threading.Event()

    def packets(self) -> Iterator[Packet]:
        """Each picture as a packet."""
        size = {"width": self._encoder.width, "height": self._encoder.height}
        try:
            for frame in self._container.decode(self._stream):
                if self._stopped.is_set():
                    return
                for packet in self._encoder.encode(frame.reformat(**size, format="yuv420p")):
                    yield Packet(bytes(packet), packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe)
        except (av.FFmpegError, OSError) as error:
            raise UnreadableInput(f"cannot be read on: {read_error(error)}", name=self._name) from None

    def stop(self) -> None:
        """End before the next picture."""
        self._stopped.set()

    def close(self) -> None:
        """Close the device."""
        self._container.close()
