"""The Triton model ``NAME_video``: one process that decodes the streams of all clients and asks ``NAME_model``.

``answer`` only hands messages over. Frames reach the network by calls to its model, so that those of many streams
share its batches.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import AnyPostprocess, Tensors
from onestream.postprocess.parameters import BadParameter, Parameters, read_parameters
from onestream.preprocess import BadImage, Limits, PreprocessError
from onestream.preprocess.errors import BadSample
from onestream.preprocess.video.common.color import ColorRule
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat, StreamFrame
from onestream.serving.models import deadline
from onestream.serving.models.base import Adapter
from onestream.serving.pipeline import BACKGROUND_FILE
from onestream.serving.stream_options import VideoOptions, VideoOutput
from onestream.serving.video.bounds import BadStream, Bounds
from onestream.serving.video.composed import ComposedVideo
from onestream.serving.video.encoder import PictureTags
from onestream.serving.video.memory import MemoryWatch, resident_bytes
from onestream.serving.video.network_calls import NetworkCalls, Overloaded
from onestream.serving.video.sender import Sender
from onestream.serving.video.session import Session
from onestream.serving.video.stream_types import Slot
from onestream.serving.video.thread_pools import BatchingPool, RoundRobinPool
from onestream.wire.tensor_names import EVENT, IMAGE_SIZE, MESSAGE, VIDEO
from onestream.wire.video import BadMessage, Event, Message, Open, unpack

if TYPE_CHECKING:
    from onestream.serving.video.gpu import GpuStreams

_LOOPS_OF_DECODING = (
    "onestream.preprocess.backends.finish",
    "onestream.preprocess.video.common.resized",
    "onestream.preprocess.video.common.color_kernels",
)
"""Modules of compiled loops of decoding on the CPU, which a GPU may leave some streams to."""
_TICK_S = 0.25
_OVERLOADED_S = 10.0
_AGAIN_S = 0.005
"""How long a frame waits before the network's full queue, and how often it asks."""


class Video(Adapter):
    """``message`` to ``event`` and the pipeline's outputs; decoupled."""

    def prepare(self) -> None:
        """Load what takes long and start the threads; decoders come with streams."""
        self._options = VideoOptions.model_validate_json(self.model.parameters["video"])
        self.open_network()
        self._sessions: dict[int, Session] = {}
        self._lock, self._counting = threading.RLock(), threading.Lock()
        self._counted: WeakKeyDictionary[Session, dict[str, int]] = WeakKeyDictionary()
        self._gpu = self._open_gpu()
        # Else the first stream would wait for them: two seconds, and fifteen where nothing is compiled and cached yet.
        for name in (*_LOOPS_OF_DECODING, *(self._works_on.loops if self._works_on else ())):
            import_module(name)
        batch, cores = int(self.model.parameters["network_batch"]), len(os.sched_getaffinity(0))
        # While some are decoded, others are inferred and others leave.
        self._together = max(1, min(batch, self._options.results // 4))
        # One stream may keep all instances of the network busy, of which there is one for each core.
        self._in_flight = max(4, max(2, cores) * self._together)
        self._decoders: RoundRobinPool[Session] = RoundRobinPool(
            "decode", cores, self._next_packets, surprised=self._surprised
        )
        # They wait for the network most of the time: one for each of its instances, and as many that are on their way.
        self._callers: BatchingPool[Session, Slot] = BatchingPool(
            "infer",
            2 * cores,
            Session.next_frames,
            self._infer,
            most=batch,
            surprised=self._surprised,
        )
        self._finishers: RoundRobinPool[Session] | None = None
        if self._options.output:
            self._finishers = RoundRobinPool("finish", cores, Session.next_result, surprised=self._surprised)
        self._memory: MemoryWatch[Session] = MemoryWatch(resident_bytes() + self._options.max_memory_bytes)
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="tick", daemon=True)
        self._ticker.start()

    def open_network(self) -> None:
        """Prepare for ``asking``."""
        self._kind: AnyPostprocess = self.model.options
        self._calls = NetworkCalls(
            f"{self.model.parameters['pipeline']}_model",
            self.model.parameters["network_outputs"].split(","),
            self.model.postprocess(),
            takes_size=self.model.parameters.get("network_inputs") == IMAGE_SIZE,
        )

    def answer(self, requests: Sequence[Any]) -> None:
        """Hand every message to its stream. Never waits."""
        for request in requests:
            sink = Sender(request.get_response_sender(), partial(self.refusals.refused, request.request_id()))
            key = request.correlation_id()
            try:
                message = unpack(memoryview(pb_utils.get_input_tensor_by_name(request, MESSAGE).as_numpy()))
                if isinstance(message, Open):
                    self._open(key, message, sink)
                    continue
            except Exception as error:  # whatever a hostile message makes a library raise, only its stream ends
                self._refuse(key, error, sink)
                continue
            self._pass_on(key, message)
            sink.end(None, None)

    def finalize(self) -> None:
        """End every stream and the threads."""
        self._stop.set()
        self._ticker.join()
        for session in list(self._sessions.values()):
            session.end(BadStream("failed", "the server stops"))
        self._decoders.close()
        self._callers.close()
        if self._finishers:
            self._finishers.close()
        super().finalize()

    def _open(self, key: int, opened: Open, sink: Sender) -> None:
        """Begin a stream, whose results go out by ``sink``."""
        bounds = Bounds.of(self._options)
        with self._lock:
            if key in self._sessions:
                raise BadStream("bad_message", "a stream with this sequence id is open already")
            for session in list(self._sessions.values()):
                # A client that left a moment ago makes room at once.
                session.tick()
            bounds.check(opened, streams=len(self._sessions))
            parameters = self._parameters(opened)
            decoder = self._decoder(opened, bounds)
            session = Session(
                opened,
                decoder,
                sink,
                bounds=bounds,
                wake_decoder=self._decoders.wake,
                wake_network=self._callers.wake,
                on_end=lambda _session: self._forget(key),
                in_flight=self._in_flight,
                together=self._together,
                finish=self._composed(opened, self._options.output) if self._options.output else None,
                wake_finisher=self._finishers.wake if self._finishers else lambda _session: None,
                parameters=parameters,
                kind=self.model.kind,
            )
            self._sessions[key] = session
            self.metrics.level("onestream_video_streams", len(self._sessions))

    def _refuse(self, key: int, error: Exception, sink: Sender) -> None:
        """End the stream of a message that cannot be read; where none is open, the message itself is answered."""
        refused = error if isinstance(error, BadStream) else BadStream("bad_message", _text(error))
        self.metrics.bad_image(refused.code)
        session = None if isinstance(error, BadStream) else self._sessions.get(key)
        if session is not None:
            session.end(refused)
            sink.end(None, None)
        else:
            fields = {"code": refused.code, "reason": refused.reason}
            sink.end(Event(type="ended", fields=fields), refused)

    def _pass_on(self, key: int, message: Message) -> None:
        session = self._sessions.get(key)
        # A stream that ended has had its last word; what was on its way to it is let go.
        if session is not None:
            session.receive(message)

    @property
    def _works_on(self) -> AnyPostprocess | None:
        """The postprocessing by which frames are worked on before they leave; None where only results leave."""
        return self._kind if self._options.output else None

    def _open_gpu(self) -> GpuStreams | None:
        """The decoder on a GPU, where there is one and the options allow it. Raises where ``decode`` requires it."""
        if self.device != "gpu" or self._options.decode == "cpu":
            return None
        try:
            from onestream.serving.video.gpu import GpuStreams

            return GpuStreams(
                self.model.definition,
                gpu_index=self.gpu_index,
                works_on=self._works_on,
                log=lambda line: pb_utils.Logger.log_info(f"{self.name}: {line}"),
            )
        except PreprocessError as error:
            if self._options.decode == "gpu":
                raise
            pb_utils.Logger.log_warn(f"{self.name}: all video is decoded on the CPU: {error}")
            return None

    def _parameters(self, opened: Open) -> Parameters:
        try:
            return read_parameters(opened.parameters, self.request_parameters)
        except BadParameter as error:
            raise BadStream("bad_parameter", error.reason) from None

    def _decoder(self, opened: Open, bounds: Bounds) -> StreamDecoder:
        sampling, color = self._options.sampling, self._options.color
        make = self._gpu.decoder if self._gpu else partial(StreamDecoder, self.model.definition)
        try:
            return make(
                StreamFormat(
                    codec=opened.codec,
                    time_base=opened.time_base,
                    extradata=opened.extradata,
                    orientation=Orientation(opened.transpose, opened.flip_rows, opened.flip_columns),
                    width=opened.width,
                    height=opened.height,
                    fps=opened.fps,
                    matrix_tag=opened.matrix_tag,
                    full_range=opened.full_range,
                    transfer_tag=opened.transfer_tag,
                    reorder_depth=opened.reorder_depth,
                ),
                sampling=Sampling(**sampling.model_dump()),
                color=ColorRule(matrix=color.matrix, range=color.range, transfer=color.transfer),
                limits=Limits(max_pixels=bounds.max_pixels),
                pictures=self._options.output is not None,
            )
        except (BadSample, BadImage) as error:
            raise BadStream("unsupported_codec", str(error)) from None
        except PreprocessError as error:
            raise BadStream("failed", str(error)) from None

    def _composed(self, opened: Open, output: VideoOutput) -> ComposedVideo:
        color = self._options.color
        rule = ColorRule(matrix=color.matrix, range=color.range)
        try:
            file = self.model.folder / BACKGROUND_FILE
            work = self._kind.frame_work(self.model.definition, file.read_bytes, rule=rule, gpu=self._gpu)
        except (OSError, ValueError) as error:
            raise BadStream("failed", f"the background cannot be read: {error}") from None
        aspect = opened.sample_aspect_ratio
        tags = PictureTags(
            primaries=opened.primaries_tag,
            transfer=opened.transfer_tag,
            # Pictures are turned before anything is done to them.
            sample_aspect_ratio=1 / aspect if opened.transpose else aspect,
        )
        beside = [name for name in self.output_names if name not in (EVENT, VIDEO)]
        return ComposedVideo(work, output, fps=opened.fps, tags=tags, beside=beside)

    def _next_packets(self, session: Session) -> Callable[[], None] | None:
        job = session.next_packets()
        return None if job is None else partial(self._decode, session, job)

    def _decode(self, session: Session, job: Callable[[], None]) -> None:
        with self._memory.charging(session):
            job()

    def _infer(self, pieces: list[tuple[Session, Slot]]) -> None:
        """Frames of one stream or several to the network, and their results to their streams."""
        try:
            rows = self._ask_until_taken(
                [slot.frame for _, slot in pieces], [session.parameters for session, _ in pieces]
            )
        except Overloaded as error:
            # The frames have waited as long as any may.
            for session, _ in pieces:
                session.fail(error)
            return
        except Exception as error:  # whatever a backend raises ends no thread
            if len(pieces) == 1:
                pieces[0][0].fail(error)
                return
            # What is wrong with one frame shall not end the streams of others.
            for piece in pieces:
                self._infer([piece])
            return
        for session, results in groupby(zip(pieces, rows, strict=True), lambda result: result[0][0]):
            try:
                session.take_results([(slot, tensors) for (_, slot), tensors in results])
            except Exception as error:  # the other streams' frames came too
                session.fail(error)

    def _ask_until_taken(self, frames: list[StreamFrame], parameters: list[Parameters]) -> list[Tensors]:
        # Images may fill the queue of the network. What waits here meanwhile is bounded, and a live stream drops it.
        ask, deadline = self.asking(frames, parameters), time.monotonic() + _OVERLOADED_S
        while True:
            try:
                return ask()
            except Overloaded:
                if time.monotonic() > deadline or self._stop.wait(_AGAIN_S):
                    raise

    def asking(self, frames: list[StreamFrame], parameters: list[Parameters]) -> Callable[[], list[Tensors]]:
        """A function that asks for the answers to frames, each without a batch dimension, by its stream's parameters.

        It raises ``Overloaded`` where there is no room for them now; then it may be called again.
        """
        return self._calls.asking(frames, parameters, self._gpu)

    def _forget(self, key: int) -> None:
        with self._lock:
            session = self._sessions.pop(key, None)
            self.metrics.level("onestream_video_streams", len(self._sessions))
        if session is not None:
            self._count(session)

    def _tick(self) -> None:
        # No batch has a deadline here; a process in which not even this thread runs hangs.
        with deadline.batch_deadline():
            while not self._stop.wait(_TICK_S):
                deadline.extend()
                self._look_after_all()
                self._hold_memory()

    def _look_after_all(self) -> None:
        # A method of its own: a name that outlived the loop would keep the last stream, its decoder and its memory.
        for session in list(self._sessions.values()):
            try:
                session.tick()
                self._count(session)
            except Exception as error:  # the others must be looked after all the same
                self._surprised(error)

    def _hold_memory(self) -> None:
        verdict = self._memory.look(list(self._sessions.values()))
        if verdict == "replace":
            self._be_replaced()
        elif verdict is not None:
            most = self._options.max_memory_bytes >> 20
            verdict.end(BadStream("too_large", f"all streams together take more than {most} MiB; its packets the most"))

    def _be_replaced(self) -> None:
        """End the process: Triton's supervisor starts another one. Streams and calls in progress come to an end."""
        pb_utils.Logger.log_error(f"{self.name}: its memory stays above the limit; the process ends, to be replaced")
        for session in list(self._sessions.values()):
            session.end(BadStream("failed", "the process that decodes is replaced, since it took too much memory"))
        self._stop.set()
        # Triton would keep what a dead process had asked of it.
        self._callers.close()
        os._exit(1)

    def _surprised(self, error: Exception) -> None:
        pb_utils.Logger.log_error(f"{self.name}: {type(error).__name__}: {error}")

    def _count(self, session: Session) -> None:
        """Bring what became of a stream since the last time to the metrics."""
        with self._counting:
            before = self._counted.get(session, {})
            now = session.counts()
            self._counted[session] = now
        for what, total in now.items():
            more = total - before.get(what, 0)
            if more and what == "latency_us":
                self.metrics.count("onestream_video_latency_microseconds_total", more)
            elif more:
                self.metrics.count("onestream_video_frames_total", more, what=what)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, BadMessage) else f"{type(error).__name__}: {error}"
