"""Before anything is timed: both ways must say the same of the same frames."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onestream.client import Client
from onestream.client.video import PacketSource
from onestream.measure.agreement import Disagreement
from onestream.measure.capacity import opencv
from onestream.measure.capacity.clip import Clip
from onestream.measure.capacity.plain_network import NAME
from onestream.postprocess.options import Classification
from onestream.serving.pipeline import Pipeline

FRAMES = 30
LEAST_EQUAL, LEAST_PSNR_DB = 0.8, 25.0
"""Of top classes, since OpenCV's resize does not antialias; of composed pictures, since it blurs in another way."""


def check(grpc_address: str, pipeline_file: Path, clip: Clip, *, stride: int) -> dict[str, float]:
    """Compare the results of the clip's first sampled frames: *top_1_equal* of a classification, 0 to 1; *psnr_db*, the
    lowest of any composed picture. Raises ``Disagreement``.
    """
    pipeline = Pipeline.from_file(pipeline_file)
    with (
        Client(grpc_address) as client,
        client.stream(PacketSource(clip.format, clip.packets[: FRAMES * stride]), pipeline=pipeline.name) as results,
    ):
        ours = list(islice(results, FRAMES - 4))
    theirs = _theirs(grpc_address, pipeline, clip.path, stride, len(ours))
    if isinstance(pipeline.postprocess, Classification):
        classes = [int(np.argmax(scores)) for _, scores in theirs]
        equal = float(np.mean([one.labels[0].class_id == two for one, two in zip(ours, classes, strict=True)]))
        if equal < LEAST_EQUAL:
            raise Disagreement(f"the best class of {equal:.0%} of the frames is the same; at least {LEAST_EQUAL:.0%}")
        return {"top_1_equal": equal}
    preprocessing = opencv.Preprocessing(pipeline.preprocess, theirs[0][0].shape[:2])
    composing = opencv.compositing_of(pipeline, preprocessing.placement)
    if composing is None:
        return {}
    pictures = _decoded([one.video.data for one in ours if one.video is not None])
    lowest = min(
        _psnr_db(mine, composing.compose(frame, person)[:, :, ::-1])
        for mine, (frame, person) in zip(pictures, theirs, strict=True)
    )
    if lowest < LEAST_PSNR_DB:
        raise Disagreement(f"a composed picture differs: {lowest:.1f} dB; at least {LEAST_PSNR_DB:g}")
    return {"psnr_db": lowest}


def _theirs(url: str, pipeline: Pipeline, clip: Path, stride: int, count: int) -> list[tuple[Any, Any]]:
    """Frames in BGR, and what the plain network says of them."""
    import tritonclient.grpc as triton

    capture, found = opencv.Frames(clip), []
    preprocessing = opencv.Preprocessing(pipeline.preprocess, capture.size_hw)
    with triton.InferenceServerClient(url) as client:
        name = client.get_model_metadata(NAME).inputs[0].name
        for number in range(count * stride):
            if number % stride:
                capture.skip()
                continue
            frame = capture.next()
            tensor = preprocessing(frame)
            given = triton.InferInput(name, list(tensor.shape), "FP32")
            given.set_data_from_numpy(tensor)
            answer = client.infer(NAME, [given])
            found.append((frame, answer.as_numpy(answer.get_response().outputs[0].name)[0]))
    return found


def _decoded(packets: list[bytes]) -> list[Any]:
    import av

    context: Any = av.CodecContext.create("h264", "r")
    return [
        frame.to_ndarray(format="rgb24")
        for data in [*packets, None]
        for frame in context.decode(av.Packet(data) if data else None)
    ]


def _psnr_db(one: Any, other: Any) -> float:
    error = float(np.mean((one.astype(np.float32) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))
