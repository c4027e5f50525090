"""Before anything is timed: both ways must say the same of the same frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onestream.client import Client
from onestream.client.video import FrameResult, PacketSource
from onestream.measure.agreement import Disagreement
from onestream.measure.capacity import opencv
from onestream.measure.capacity.clip import Clip
from onestream.measure.capacity.opencv_results import Detecting, Objects, Pictures, finish_of
from onestream.measure.capacity.plain_network import NAME
from onestream.postprocess.kinds import Classification, Detection
from onestream.serving.pipeline import Pipeline
from onestream.wire.box_style import color_of
from onestream.wire.comparing import iou
from onestream.wire.tensor_names import BOXES, CLASS_IDS, SCORES

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
        equal = float(np.mean([one.tensors[CLASS_IDS][0] == two for one, two in zip(ours, classes, strict=True)]))
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
    found = [_objects(one) for one in ours]
    beside_found = [detecting(*two) for two in theirs]
    if ids is not None:
        beside_found = [one._replace(classes=np.array(ids, np.int32)[one.classes]) for one in beside_found]
    agreed = {"boxes_equal": _share([_equal_boxes(*two) for two in zip(found, beside_found, strict=True)])}
    # Each way draws its own boxes: those of equal objects may lie some pixels apart.
    for name, objects, shown in (("ours_drawn", found, pictures), ("theirs_drawn", beside_found, beside)):
        if shown:
            agreed[name] = _share([_drawn_boxes(*two) for two in zip(objects, shown, strict=True)])
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


def _objects(result: FrameResult) -> Objects:
    return Objects(*(result.tensors[name] for name in (BOXES, SCORES, CLASS_IDS)))


def _clear(found: Objects) -> Objects:
    """Those whose score is not near the threshold."""
    clear = found.scores >= CLEAR_SCORE
    return Objects(found.boxes[clear], found.scores[clear], found.classes[clear])


def _equal_boxes(ours: Objects, theirs: Objects) -> tuple[int, int]:
    """How many of our clear boxes are among theirs, and how many there are."""
    clear = _clear(ours)
    overlap = iou(clear.boxes.astype(np.float64), theirs.boxes.astype(np.float64))
    same_class = clear.classes[:, None] == theirs.classes[None]
    return int(((overlap >= LEAST_IOU) & same_class).any(axis=1).sum()), len(clear.boxes)


def _drawn_boxes(found: Objects, picture: Any) -> tuple[int, int]:
    """How many clear boxes have a left line of their colour in a picture, and how many there are."""
    clear, drawn = _clear(found), 0
    for box, class_id in zip(clear.boxes.tolist(), clear.classes.tolist(), strict=True):
        x0, y0, _, y1 = map(round, box)
        about = picture[(y0 + y1) // 2 : y1, max(0, x0 - _NEAR) : x0 + _NEAR + 1].astype(int)
        off = np.abs(np.median(about, axis=0) - color_of(class_id)).max(axis=1)
        drawn += bool(off.min() < _SAME_COLOR)
    return drawn, len(clear.boxes)


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
