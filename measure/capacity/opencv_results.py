"""What the usual way does with a network's outputs for a frame, by OpenCV: classes, a composed matte, drawn boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onestream.measure.capacity.clip import FPS
from onestream.postprocess.kinds import BlurBackground, ColorBackground, Detection, Matte
from onestream.preprocess.plan import Plan
from onestream.serving.pipeline import Pipeline, VideoOutput
from onestream.serving.video.encoder import libx264_options
from onestream.wire.box_style import color_of, ink_on
from onestream.wire.tensor_names import CANDIDATES

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


class Classes(Finish):
    """The best five classes, in any order."""

    def __call__(self, frame: Frame, outputs: Outputs) -> object:  # noqa: ARG002
        """See ``Finish``."""
        (scores,) = outputs.values()
        return np.argpartition(scores, -5)


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
        encoder.options = libx264_options(output)
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


def finish_of(pipeline: Pipeline, placement: Plan, labels: Sequence[str] = ()) -> Finish:
    """What a pipeline does behind its network. ``labels`` are the names of its classes, numbers where it has none."""
    output = pipeline.video.output if pipeline.video else None
    options = pipeline.postprocess
    if isinstance(options, Detection):
        detecting = Detecting(options, placement)
        return detecting if output is None else Drawing(detecting, labels, output, placement)
    if isinstance(options, Matte) and output is not None:
        return Compositing(options, output, placement)
    return Classes()
