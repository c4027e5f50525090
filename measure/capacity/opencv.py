"""The usual way, written well: every stream decoded, resized and normalized by OpenCV in a client of its own.

One ``cv2.VideoCapture`` a process, one thread in each library, since streams are what is parallel. Frames that the
stride leaves out are grabbed and not converted; colours are converted after the resize, of fewer pixels; requests are
asynchronous, one a frame, to a model with dynamic batching. What comes then (``opencv_results``) is done in a thread of
its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onestream.measure.capacity.clip import due_times, wait
from onestream.measure.capacity.opencv_results import Finish, finish_of
from onestream.measure.capacity.playing import Played, Player, Playing, Times
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Window
from onestream.preprocess.plan import Plan, Planner
from onestream.serving.pipeline import Pipeline

_MOST_IN_FLIGHT = 8
_TIMEOUT_S = 10.0


class Preprocessing:
    """OpenCV's resize, crop or pad, colours and normalization of one definition, for frames of one size."""

    def __init__(self, definition: Definition, size_hw: tuple[int, int]) -> None:
        import cv2

        self._cv2, self._to_rgb = cv2, definition.color == "rgb"
        self.placement: Plan = Planner(definition)(size_hw)
        self._fill = (definition.fills or (0,))[0]
        self._planar = definition.network_input.layout == "NCHW"
        normalize = definition.normalize
        if normalize is None:
            factor, offset = np.ones(1), np.zeros(1)
        else:
            std = np.array(normalize.std)
            factor, offset = 1 / (normalize.scale * std), -np.array(normalize.mean) / std
        self._factor, self._offset = factor.astype(np.float32), offset.astype(np.float32)

    def pixels(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """(height, width, 3) uint8 in the definition's order from a frame in BGR."""
        cv2, placed = self._cv2, self.placement
        height, width = placed.resized_hw
        small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_LINEAR)
        window = placed.window
        part = small[window.slices]
        if placed.fills:
            canvas = np.full((*placed.canvas_hw, 3), self._fill, np.uint8)
            canvas[Window(*placed.offset, *window.size_hw).slices] = part
            part = canvas
        pixels: npt.NDArray[np.uint8] = cv2.cvtColor(part, cv2.COLOR_BGR2RGB) if self._to_rgb else part
        return pixels

    def __call__(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """The network's input, with a batch dimension."""
        values = self.pixels(frame) * self._factor + self._offset
        return np.ascontiguousarray(values.transpose(2, 0, 1) if self._planar else values, np.float32)[None]


@dataclass(frozen=True)
class OpenCv(Player):
    """``model`` is the plain network's; ``pipeline_file`` says what is done, ``labels`` name the network's classes."""

    url: str
    model: str
    pipeline_file: Path
    clip: Path
    stride: int
    labels: tuple[str, ...] = ()

    own_processes = True

    def open(self, rate: float) -> Playing:
        """See ``Player.open``."""
        pipeline = Pipeline.from_file(self.pipeline_file)
        capture = Frames(self.clip)
        preprocessing = Preprocessing(pipeline.preprocess, capture.size_hw)
        requests = Requests(self.url, self.model, finish_of(pipeline, preprocessing.placement, self.labels))

        def playing(times: Times, played: Played) -> None:
            def note(due_s: float) -> None:
                if times.counts(due_s):
                    played.latencies_ms.append(1000 * (time.monotonic() - due_s))

            requests.note = note
            with requests:
                for number, due_s in due_times(rate, times.beginning_s, times.end_s):
                    wait(due_s)
                    if number % self.stride:
                        capture.skip()
                        continue
                    played.due += times.counts(due_s)
                    frame = capture.next()
                    if not requests.send(preprocessing(frame), frame, due_s):
                        played.dropped += 1
            played.failure = requests.failure

        return playing


class Frames:
    """The frames of a file in BGR, again and again."""

    def __init__(self, path: Path) -> None:
        import cv2

        cv2.setNumThreads(1)
        self._cv2, self._path = cv2, path
        self._capture: Any = self._open()
        self.size_hw = (
            int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT)),
            int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH)),
        )

    def skip(self) -> None:
        """Decode the next frame, and no more."""
        if not self._capture.grab():
            self._capture = self._open()
            self._capture.grab()

    def next(self) -> npt.NDArray[np.uint8]:
        """The next frame."""
        self.skip()
        found, frame = self._capture.retrieve()
        if not found:
            raise ValueError(f"{self._path}: OpenCV gives no frame")
        pixels: npt.NDArray[np.uint8] = frame
        return pixels

    def _open(self) -> Any:
        return self._cv2.VideoCapture(str(self._path), self._cv2.CAP_FFMPEG, [self._cv2.CAP_PROP_N_THREADS, 1])


class Requests:
    """Asynchronous requests, one a frame. A context manager that waits for the last answers.

    ``note`` is called with the time at which a frame was due, when its result is there.
    """

    def __init__(self, url: str, model: str, finish: Finish) -> None:
        import tritonclient.grpc as triton

        self._triton, self._client = triton, triton.InferenceServerClient(url)
        self._model, self._finish_one = model, finish
        self._name = str(self._client.get_model_metadata(model).inputs[0].name)
        self.note: Callable[[float], None] = lambda _due_s: None
        self._slots = threading.Semaphore(_MOST_IN_FLIGHT)
        self._answers: queue.SimpleQueue[tuple[int, Any, float, Any] | None] = queue.SimpleQueue()
        self._sent = 0
        self.failure = ""
        self._finisher = threading.Thread(target=self._finish, daemon=True)
        self._finisher.start()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        for _slot in range(_MOST_IN_FLIGHT):
            self._slots.acquire(timeout=_TIMEOUT_S)
        self._answers.put(None)
        self._finisher.join(_TIMEOUT_S)
        self._client.close()

    def send(self, tensor: npt.NDArray[np.float32], frame: Any, due_s: float) -> bool:
        """Ask about a frame; False where so many are on their way that it must be dropped."""
        if not self._slots.acquire(blocking=False):
            return False
        given = self._triton.InferInput(self._name, list(tensor.shape), "FP32")
        given.set_data_from_numpy(tensor)
        number, self._sent = self._sent, self._sent + 1

        def answered(result: Any, error: Any) -> None:
            self._answers.put((number, error or result, due_s, frame))

        self._client.async_infer(self._model, [given], answered, client_timeout=_TIMEOUT_S)
        return True

    def _finish(self) -> None:
        """Results in the order of the frames."""
        waiting: dict[int, tuple[Any, float, Any]] = {}
        following = 0
        while (item := self._answers.get()) is not None:
            waiting[item[0]] = item[1:]
            while following in waiting:
                answer, due_s, frame = waiting.pop(following)
                following += 1
                try:
                    self._one(answer, due_s, frame)
                except Exception as error:  # whatever it is, the stream is not held
                    self.failure = self.failure or f"{type(error).__name__}: {error}"
                finally:
                    self._slots.release()

    def _one(self, answer: Any, due_s: float, frame: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        self._finish_one(frame, {one.name: answer.as_numpy(one.name)[0] for one in answer.get_response().outputs})
        self.note(due_s)
