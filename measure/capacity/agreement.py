"""Before anything is timed: both ways must say the same of the same frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from onestream.client import Client
from onestream.client.video import PacketSource
from onestream.measure.agreement import Disagreement
from onestream.measure.capacity import opencv
from onestream.measure.capacity.clip import Clip
from onestream.measure.capacity.opencv_results import finish_of
from onestream.measure.capacity.plain_network import NAME
from onestream.serving.pipeline import Pipeline

FRAMES = 30


def check(
    grpc_address: str, pipeline_file: Path, clip: Clip, *, stride: int, labels: Sequence[str] = ()
) -> dict[str, float]:
    """Compare the results of the clip's first sampled frames, see ``Finish.agreed``. Raises ``Disagreement``."""
    pipeline = Pipeline.from_file(pipeline_file)
    with (
        Client(grpc_address) as client,
        client.stream(PacketSource(clip.format, clip.packets[: FRAMES * stride]), pipeline=pipeline.name) as results,
    ):
        ours = list(islice(results, FRAMES - 4))
    theirs = _theirs(grpc_address, pipeline, clip.path, stride, len(ours))
    placement = opencv.Preprocessing(pipeline.preprocess, theirs[0][0].shape[:2]).placement
    pictures = _decoded([one.video.data for one in ours if one.video is not None])
    if len(pictures) != (len(ours) if pipeline.video and pipeline.video.output else 0):
        raise Disagreement(f"{len(ours)} frames have {len(pictures)} pictures")
    return finish_of(pipeline, placement, labels).agreed(ours, theirs, pictures)


def _theirs(url: str, pipeline: Pipeline, clip: Path, stride: int, count: int) -> list[tuple[Any, dict[str, Any]]]:
    """Frames in BGR, and what the plain network says of them."""
    capture, found = opencv.Frames(clip), []
    preprocessing = opencv.Preprocessing(pipeline.preprocess, capture.size_hw)
    with Client(url) as client:
        name = client.model_config(NAME)["input"][0]["name"]
        for number in range(count * stride):
            if number % stride:
                capture.skip()
                continue
            frame = capture.next()
            tensor = preprocessing(frame)
            answer = client.infer(NAME, {name: tensor})
            found.append((frame, {name: output[0] for name, output in answer.items()}))
    return found


def _decoded(packets: list[bytes]) -> list[Any]:
    if not packets:
        return []
    import av

    context: Any = av.CodecContext.create("h264", "r")
    return [
        frame.to_ndarray(format="rgb24")
        for data in [*packets, None]
        for frame in context.decode(av.Packet(data) if data else None)
    ]
