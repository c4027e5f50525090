"""Video streams: encoded video in, results of its frames out, in order, while it is still running.

::

    from onestream.client import Client

    with Client("127.0.0.1:8001") as client, client.stream("clip.mp4") as frames:
        for frame in frames:
            print(frame.frame_index, frame.pts_seconds, frame.result.top.label)

``async with`` and ``async for`` work as well. ``interleave`` takes the results of many streams in one loop, ``tracked``
numbers the objects that a detector finds.
"""

from onestream.client.video.interleave import StreamItem, interleave
from onestream.client.video.reconnect import NEVER, Reconnect
from onestream.client.video.results import EncodedFrame, FrameResult, Gap, StreamColor, Totals
from onestream.client.video.sound import Sound
from onestream.client.video.sources import AnnexB, File, Http, PacketSource, Rtsp, Source, VideoInput, Webcam, source_of
from onestream.client.video.stream import Stream
from onestream.client.video.tracking import Tracker, tracked
from onestream.client.video.writer import CannotWrite, VideoWriter

__all__ = [
    "NEVER",
    "AnnexB",
    "CannotWrite",
    "EncodedFrame",
    "File",
    "FrameResult",
    "Gap",
    "Http",
    "PacketSource",
    "Reconnect",
    "Rtsp",
    "Sound",
    "Source",
    "Stream",
    "StreamColor",
    "StreamItem",
    "Totals",
    "Tracker",
    "VideoInput",
    "VideoWriter",
    "Webcam",
    "interleave",
    "source_of",
    "tracked",
]
