"""Video streams: encoded video in, results of its frames out, in order, while it is still running.

::

    from client import Client

    with Client("127.0.0.1:8001") as client, client.stream("clip.mp4") as frames:
        for frame in frames:
            print(frame.frame_index, frame.pts_seconds, frame.labels[0].label)

``async with`` and ``async for`` work as well. ``interleave`` takes the results of many streams in one loop.
"""

from client.video.interleave import StreamItem, interleave
from client.video.reconnect import NEVER, Reconnect
from client.video.results import FrameResult, Gap, Totals
from client.video.sources import AnnexB, File, PacketSource, Rtsp, Source, VideoInput, Webcam, source_of
from client.video.stream import Stream

__all__ = [
    "NEVER",
    "AnnexB",
    "File",
    "FrameResult",
    "Gap",
    "PacketSource",
    "Reconnect",
    "Rtsp",
    "Source",
    "Stream",
    "StreamItem",
    "Totals",
    "VideoInput",
    "Webcam",
    "interleave",
    "source_of",
]
