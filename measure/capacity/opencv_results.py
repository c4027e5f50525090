"""What the usual way does with a network's outputs for a frame, by OpenCV: classes, a composed matte, drawn boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.client.video import FrameResult
from onestream.measure.agreement import Disagreement
from onestream.measure.capacity.clip import FPS
from onestream.postprocess.kinds.detection import Detection
from onestream.postprocess.kinds.matte import BlurBackground, ColorBackground, Matte
from onestream.preprocess.plan import Plan
from onestream.serving.pipeline import Pipeline
from onestream.serving.stream_options import VideoOutput
from onestream.wire.box_style import color_of, ink_on
from onestream.wire.comparing import iou
from onestream.wire.tensor_names import BOXES, CANDIDATES, CLASS_IDS, SCORES

LEAST_EQUAL, LEAST_PSNR_DB = 0.8, 25.0
"""Of top classes, since OpenCV's resize does not antialias; of composed pictures, since it blurs in another way."""
LEAST_EQUAL_BOXES, LEAST_IOU, CLEAR_SCORE = 0.9, 0.9, 0.4
"""Of boxes that are not near the threshold, which those of others may miss."""
_NEAR, _SAME_COLOR = 4, 60
"""Pixels by which lines may lie apart, and levels by which coding changes their colour."""
_CELL = 8
_LINE, _FONT_SCALE, _TEXT_LINE, _MARGIN, _OF_SIDE = 4, 0.8, 2, 4, 1080
"""Of boxes and names, about those of ours, in pictures whose shorter side is so long."""

Frame = npt.NDArray[np.uint8]
"""(height, width, 3) in BGR."""
Outputs = dict[str, npt.NDArray[Any]]
"""The network's outputs for one frame, without batch dimension."""


class Finish(ABC):
    """Makes of a frame and the network's outputs what a caller wants."""

    @abstractmethod
    def __call__(self, frame: Frame, outputs: Outputs) -> object:
        """The result of one frame."""

    @abstractmethod
    def agreed(
        self, ours: Sequence[FrameResult], theirs: Sequence[tuple[Frame, Outputs]], pictures: Sequence[Frame]
    ) -> dict[str, float]:
        """How far our results agree with those of this way for the same frames, in shares or dB, by what is compared.

        ``pictures``, in RGB, are ours where any are encoded; the frames may be changed. Raises ``Disagreement`` where
        both differ by more than two ways do.
        """


class Classes(Finish):
    """The best five classes, in any order; ``are_ranked`` says whether our answer has them, too."""

    def __init__(self, *, are_ranked: bool) -> None:
        self._are_ranked = are_ranked

    def __call__(self, frame: Frame, outputs: Outputs) -> object:  # noqa: ARG002
        """See ``Finish``."""
        (scores,) = outputs.values()
        return np.argpartition(scores, -5)

    def agreed(
        self,
        ours: Sequence[FrameResult],
        theirs: Sequence[tuple[Frame, Outputs]],
        pictures: Sequence[Frame],  # noqa: ARG002
    ) -> dict[str, float]:
        """See ``Finish.agreed``: *top_1_equal*, the share of equal best classes."""
        if not self._are_ranked:
            return {}
        classes = [int(np.argmax(scores)) for _, outputs in theirs for scores in outputs.values()]
        equal = float(np.mean([one.tensors[CLASS_IDS][0] == two for one, two in zip(ours, classes, strict=True)]))
        if equal < LEAST_EQUAL:
            raise Disagreement(f"the best class of {equal:.0%} of the frames is the same; at least {LEAST_EQUAL:.0%}")
        return {"top_1_equal": equal}


class Pictures(Finish):
    """Pictures encoded by libx264, with the settings of a pipeline."""

    def __init__(self, output: VideoOutput, placement: Plan) -> None:
        import av
        import cv2

        self._cv2, self._placement = cv2, placement
        height, width = placement.source_hw
        encoder: Any = av.CodecContext.create("libx264", "w")
        encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
        encoder.framerate, encoder.time_base = Fraction(FPS), Fraction(1, FPS)
        encoder.thread_count, encoder.gop_size = 1, round(output.keyframe_s * FPS)
        encoder.options = output.libx264_options
        self._encoder, self._video_frame = encoder, av.VideoFrame

    @abstractmethod
    def picture(self, frame: Frame, outputs: Outputs) -> Frame:
        """The picture that is encoded, in BGR; the frame may be changed."""

    def __call__(self, frame: Frame, outputs: Outputs) -> bytes:
        """The encoded picture."""
        yuv = self._cv2.cvtColor(self.picture(frame, outputs), self._cv2.COLOR_BGR2YUV_I420)
        return b"".join(
            bytes(packet) for packet in self._encoder.encode(self._video_frame.from_ndarray(yuv, format="yuv420p"))
        )


class Compositing(Pictures):
    """A frame over its own blurred picture, or over a colour, by ``cv2.blendLinear``."""

    def __init__(self, matte: Matte, output: VideoOutput, placement: Plan) -> None:
        super().__init__(output, placement)
        self._matte = matte

    def picture(self, frame: Frame, outputs: Outputs) -> Frame:
        """See ``Pictures``; the network's output are probabilities of a person."""
        (person,) = outputs.values()
        cv2, placed = self._cv2, self._placement
        (top, left), window = placed.offset, placed.window
        part = person[top : top + window.height, left : left + window.width]
        alpha = np.clip((part - 0.5) / self._matte.softness + 0.5, 0, 1)
        height, width = placed.source_hw
        wide = cv2.resize(alpha, (width, height), interpolation=cv2.INTER_LINEAR)
        composed: Frame = cv2.blendLinear(frame, self._behind(frame), wide, 1 - wide)
        return composed

    def agreed(
        self,
        ours: Sequence[FrameResult],  # noqa: ARG002
        theirs: Sequence[tuple[Frame, Outputs]],
        pictures: Sequence[Frame],
    ) -> dict[str, float]:
        """See ``Finish.agreed``: *psnr_db*, the lowest of any composed picture."""
        beside = [self.picture(*one)[:, :, ::-1] for one in theirs]
        lowest = min(_psnr_db(*two) for two in zip(pictures, beside, strict=True))
        if lowest < LEAST_PSNR_DB:
            raise Disagreement(f"a composed picture differs: {lowest:.1f} dB; at least {LEAST_PSNR_DB:g}")
        return {"psnr_db": lowest}

    def _behind(self, frame: Frame) -> Frame:
        cv2, background = self._cv2, self._matte.background
        height, width = frame.shape[:2]
        if isinstance(background, ColorBackground):
            return np.full_like(frame, background.rgb[::-1])
        if not isinstance(background, BlurBackground):
            raise ValueError(
                "the benchmark composes over a blurred picture or a colour; a picture file is not supported"
            )
        # A wide blur of a small picture, which is how it is done where it must be fast.
        small = cv2.resize(frame, (width // _CELL, height // _CELL), interpolation=cv2.INTER_AREA)
        small = cv2.GaussianBlur(small, (0, 0), background.radius / _CELL)
        large: Frame = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
        return large


class Objects(NamedTuple):
    """What was found: ``boxes`` (n, 4) x0 y0 x1 y1 in pixels of the frame, ``scores`` (n), ``classes`` (n) from 0."""

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int32]


class Detecting(Finish):
    """OpenCV's suppression of the candidates, and their boxes in the frame."""

    def __init__(self, options: Detection, placement: Plan) -> None:
        import cv2

        self._cv2: Any = cv2
        self.options = options
        height, width = placement.source_hw
        scale = np.array((width / placement.resized_hw[1], height / placement.resized_hw[0]), np.float32)
        window, (top, left) = placement.window, placement.offset
        self._scale = np.tile(scale, 2)
        self._shift = np.tile(np.array((window.left - left, window.top - top), np.float32), 2)
        self._most = np.tile(np.array((width, height), np.float32), 2)

    def __call__(self, frame: Frame, outputs: Outputs) -> Objects:  # noqa: ARG002
        """The objects, best first."""
        boxes, scores, classes = (outputs[name] for name in CANDIDATES)
        options = self.options
        good = scores > options.score_threshold
        boxes, scores, classes = boxes[good], scores[good], classes[good]
        if options.suppresses != "none" and len(boxes):
            sized = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
            limits = (options.score_threshold, options.iou_threshold)
            if options.suppresses == "by_class":
                kept = self._cv2.dnn.NMSBoxesBatched(sized, scores, classes, *limits)
            else:
                kept = self._cv2.dnn.NMSBoxes(sized, scores, *limits)
            kept = sorted(np.asarray(kept, int), key=lambda one: -scores[one])
            boxes, scores, classes = boxes[kept], scores[kept], classes[kept]
        few = slice(options.max_detections)
        placed = np.clip((boxes[few] + self._shift) * self._scale, 0, self._most)
        return Objects(placed.astype(np.float32), scores[few], classes[few])

    def agreed(
        self,
        ours: Sequence[FrameResult],
        theirs: Sequence[tuple[Frame, Outputs]],
        pictures: Sequence[Frame],
        drawn: Sequence[Frame] = (),
    ) -> dict[str, float]:
        """See ``Finish.agreed``: *boxes_equal*, and of how many the picture of each way shows a line.

        ``drawn`` are the pictures of this way, in RGB.
        """
        found = [Objects(*(one.tensors[name] for name in (BOXES, SCORES, CLASS_IDS))) for one in ours]
        beside = [self(*one) for one in theirs]
        if (ids := self.options.id_of_class) is not None:
            beside = [one._replace(classes=np.array(ids, np.int32)[one.classes]) for one in beside]
        agreed = {"boxes_equal": _share([_equal_boxes(*two) for two in zip(found, beside, strict=True)])}
        # Each way draws its own boxes: those of equal objects may lie some pixels apart.
        for name, objects, shown in (("ours_drawn", found, pictures), ("theirs_drawn", beside, drawn)):
            if shown:
                agreed[name] = _share([_drawn_boxes(*two) for two in zip(objects, shown, strict=True)])
        if min(agreed.values()) < LEAST_EQUAL_BOXES:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in agreed.items())
            raise Disagreement(
                f"of boxes with a score of {CLEAR_SCORE} and more: {shares}; at least {LEAST_EQUAL_BOXES:.0%}"
            )
        return agreed


class Drawing(Pictures):
    """Boxes, names and scores by ``cv2.rectangle`` and ``cv2.putText``."""

    def __init__(self, detecting: Detecting, labels: Sequence[str], output: VideoOutput, placement: Plan) -> None:
        super().__init__(output, placement)
        self._detecting, self._labels = detecting, labels
        scale = min(placement.source_hw) / _OF_SIDE
        self._font_scale, self._margin = _FONT_SCALE * scale, round(_MARGIN * scale)
        self._line, self._text_line = max(2, round(_LINE * scale)), max(1, round(_TEXT_LINE * scale))

    def picture(self, frame: Frame, outputs: Outputs) -> Frame:
        """See ``Pictures``."""
        cv2, font = self._cv2, self._cv2.FONT_HERSHEY_SIMPLEX
        ids = self._detecting.options.id_of_class
        found = (values[::-1].tolist() for values in self._detecting(frame, outputs))
        for box, score, number in zip(*found, strict=True):
            color = color_of(number if ids is None else ids[number])
            ink, paint = ink_on(color)[::-1], color[::-1]
            x0, y0, x1, y1 = map(round, box)
            cv2.rectangle(frame, (x0, y0), (x1, y1), paint, self._line)
            text = f"{self._labels[number] if self._labels else number} {score:.2f}"
            (width, height), _ = cv2.getTextSize(text, font, self._font_scale, self._text_line)
            high, at = height + 2 * self._margin, (x0, max(y0, height + 2 * self._margin))
            cv2.rectangle(frame, (at[0], at[1] - high), (at[0] + width, at[1]), paint, -1)
            at = (at[0], at[1] - self._margin)
            cv2.putText(frame, text, at, font, self._font_scale, ink, self._text_line, cv2.LINE_AA)
        return frame

    def agreed(
        self, ours: Sequence[FrameResult], theirs: Sequence[tuple[Frame, Outputs]], pictures: Sequence[Frame]
    ) -> dict[str, float]:
        """See ``Detecting.agreed``."""
        drawn = [self.picture(*one)[:, :, ::-1] for one in theirs]
        return self._detecting.agreed(ours, theirs, pictures, drawn)


def _share(counts: list[tuple[int, int]]) -> float:
    """Of how many and all, for each frame; 0 where there is nothing at all."""
    some, whole = np.sum(counts, axis=0)
    return float(some / max(1, whole))


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


def _psnr_db(one: Any, other: Any) -> float:
    error = float(np.mean((one.astype(np.float32) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def finish_of(pipeline: Pipeline, placement: Plan, labels: Sequence[str] = ()) -> Finish:
    """What a pipeline does behind its network. ``labels`` are the names of its classes, numbers where it has none."""
    output = pipeline.video.output if pipeline.video else None
    options = pipeline.postprocess
    if isinstance(options, Detection):
        detecting = Detecting(options, placement)
        return detecting if output is None else Drawing(detecting, labels, output, placement)
    if isinstance(options, Matte) and output is not None:
        return Compositing(options, output, placement)
    return Classes(are_ranked=options.ranks_classes)
