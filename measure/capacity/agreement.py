"""Before anything is timed: both ways must say the same of the same frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onestream.client import Client
from onestream.client.results import Detection as DetectedObject
from onestream.client.video import FrameResult, PacketSource
from onestream.measure.agreement import Disagreement
from onestream.measure.capacity import opencv
from onestream.measure.capacity.clip import Clip
from onestream.measure.capacity.opencv_results import Detecting, Objects, Pictures, finish_of
from onestream.measure.capacity.plain_network import NAME
from onestream.measure.same_objects import iou
from onestream.postprocess.options import Classification, Detection
from onestream.serving.pipeline import Pipeline
from onestream.wire.box_style import color_of

FRAMES = 30
LEAST_EQUAL, LEAST_PSNR_DB = 0.8, 25.0
"""Of top classes, since OpenCV's resize does not antialias; of composed pictures, since it blurs in another way."""
LEAST_EQUAL_BOXES, LEAST_IOU, CLEAR_SCORE = 0.9, 0.9, 0.4
"""Of boxes that are not near the threshold, which those of others may miss."""
_NEAR, _SAME_COLOR = 4, 60
"""Pixels by which lines may lie apart, and levels by which coding changes their colour."""


def check(
    grpc_address: str, pipeline_file: Path, clip: Clip, *, stride: int, labels: Sequence[str] = ()
) -> dict[str, float]:
    """Compare the results of the clip's first sampled frames: *top_1_equal* of a classification, 0 to 1; *boxes_equal*
    of a detection, and how many are drawn by each; *psnr_db*, the lowest of any composed picture. Raises
    ``Disagreement``.
    """
    pipeline = Pipeline.from_file(pipeline_file)
    with (
        Client(grpc_address) as client,
        client.stream(PacketSource(clip.format, clip.packets[: FRAMES * stride]), pipeline=pipeline.name) as results,
    ):
        ours = list(islice(results, FRAMES - 4))
    theirs = _theirs(grpc_address, pipeline, clip.path, stride, len(ours))
    if isinstance(pipeline.postprocess, Classification):
        classes = [int(np.argmax(scores)) for _, outputs in theirs for scores in outputs.values()]
        equal = float(np.mean([one.labels[0].class_id == two for one, two in zip(ours, classes, strict=True)]))
        if equal < LEAST_EQUAL:
            raise Disagreement(f"the best class of {equal:.0%} of the frames is the same; at least {LEAST_EQUAL:.0%}")
        return {"top_1_equal": equal}
    placement = opencv.Preprocessing(pipeline.preprocess, theirs[0][0].shape[:2]).placement
    finish = finish_of(pipeline, placement, labels)
    pictures: list[Any] = []
    if isinstance(finish, Pictures):
        pictures = _decoded([one.video.data for one in ours if one.video is not None])
        if len(pictures) != len(ours):
            raise Disagreement(f"{len(ours)} frames have {len(pictures)} pictures")
    beside = [finish.picture(*two)[:, :, ::-1] for two in theirs] if isinstance(finish, Pictures) else []
    if not isinstance(pipeline.postprocess, Detection):
        if not pictures:
            return {}
        lowest = min(_psnr_db(*two) for two in zip(pictures, beside, strict=True))
        if lowest < LEAST_PSNR_DB:
            raise Disagreement(f"a composed picture differs: {lowest:.1f} dB; at least {LEAST_PSNR_DB:g}")
        return {"psnr_db": lowest}
    detecting = Detecting(pipeline.postprocess, placement)
    ids = pipeline.postprocess.id_of_class
    pairs = [_equal_boxes(one, detecting(*two), ids) for one, two in zip(ours, theirs, strict=True)]
    agreed = {"boxes_equal": _share(pairs)}
    for name, shown in (("ours_drawn", pictures), ("theirs_drawn", beside)):
        if shown:
            agreed[name] = _share([_drawn_boxes(one, picture) for one, picture in zip(ours, shown, strict=True)])
    if min(agreed.values()) < LEAST_EQUAL_BOXES:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in agreed.items())
        raise Disagreement(
            f"of boxes with a score of {CLEAR_SCORE} and more: {shares}; at least {LEAST_EQUAL_BOXES:.0%}"
        )
    return agreed


def _share(counts: list[tuple[int, int]]) -> float:
    """Of how many and all, for each frame; 0 where there is nothing at all."""
    some, whole = np.sum(counts, axis=0)
    return float(some / max(1, whole))


def _equal_boxes(ours: FrameResult, theirs: Objects, ids: Sequence[int] | None) -> tuple[int, int]:
    """How many of our clear boxes are among theirs, and how many there are. ``ids`` are those of the classes."""
    class_ids = theirs.classes if ids is None else np.array(ids)[theirs.classes]
    clear = _clear(ours)
    boxes = np.array([one.box for one in clear], np.float64).reshape(-1, 4)
    overlap = iou(boxes, theirs.boxes.astype(np.float64))
    same_class = np.array([one.class_id for one in clear])[:, None] == class_ids[None]
    return int(((overlap >= LEAST_IOU) & same_class).any(axis=1).sum()), len(clear)


def _drawn_boxes(ours: FrameResult, picture: Any) -> tuple[int, int]:
    """How many of our clear boxes have a left line of their colour in a picture, and how many there are."""
    drawn = 0
    for one in _clear(ours):
        x0, y0, _, y1 = map(round, one.box)
        about = picture[(y0 + y1) // 2 : y1, max(0, x0 - _NEAR) : x0 + _NEAR + 1].astype(int)
        off = np.abs(np.median(about, axis=0) - color_of(one.class_id)).max(axis=1)
        drawn += bool(off.min() < _SAME_COLOR)
    return drawn, len(_clear(ours))


def _clear(ours: FrameResult) -> list[DetectedObject]:
    found = ours.detections
    assert found is not None
    return [one for one in found if one.score >= CLEAR_SCORE]


def _theirs(url: str, pipeline: Pipeline, clip: Path, stride: int, count: int) -> list[tuple[Any, dict[str, Any]]]:
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
            found.append((frame, opencv.outputs_of(answer)))
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
