# Made of _async_client.py by `make sync`: change that.
"""The client itself: images in, typed results out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from onestream.client import calls, kinds
from onestream.client._requests import Requests
from onestream.client._transports.base import Tensors
from onestream.client.errors import ClientClosed, OnestreamError
from onestream.client.images import ImageInput
from onestream.client.kinds import Classification, Detections, Embedding, Reading, Result, Segmentation
from onestream.client.kinds.base import ResultT
from onestream.client.ordered import Item, map_in_order, numbered
from onestream.client.video.reconnect import Reconnect
from onestream.client.video.sound import Sound
from onestream.client.video.sources import VideoInput
from onestream.client.video.stream import Stream
from onestream.wire.video import Mode, Packet

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(Requests):
    """Calls pipelines that a Triton server serves.

    ``AsyncClient`` has the options, calls, results and errors of ``Client``, awaited. Nothing is connected before the
    first call. Close it, or use it as a context manager.

    One ``Client`` may be used by many threads at once; make it after a fork, not before. One ``AsyncClient`` may be
    used by many tasks of one event loop, the one that runs at its first call; files are read, and arrays encoded, by
    another thread. A task that is cancelled while it waits ends its request: over gRPC Triton then drops it from its
    queue.
    """

    def classify(
        self,
        image: ImageInput,
        *,
        pipeline: str = "classify",
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Classification:
        """The classes of one image, best first.

        ``image`` is an encoded file as bytes, path or binary file object, a NumPy array or a PIL image
        (``onestream.client.images.encode`` has the details). ``pipeline`` may also be ``"classify_fused"``, which gives
        equal results. Raises the errors of ``onestream.client.errors``.

        ``parameters`` are numbers in the place of options of the pipeline, for this image alone: ``{"top_k": 1}``, or
        of a detection ``{"score_threshold": 0.4}`` (docs/wire-contract.md has them all). InvalidRequest is raised where
        the pipeline does not take them.

        ``request_id``, 1 to 128 letters, digits or any of ``. _ ~ : / + = @ -``, names the request in the result, in
        errors, in the server's log and in its traces; by default it is random. ``traceparent`` is W3C's header of that
        name: the server's spans then belong to the caller's. Raises ValueError where one of them has another form.
        """
        return self._answer(Classification, pipeline, image, parameters, timeout_s, request_id, traceparent)

    def classify_many(
        self,
        images: Iterable[ImageInput],
        *,
        pipeline: str = "classify",
        in_flight: int = 8,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Item[Classification]]:
        """The classes of every image, in the order of ``images``, with up to ``in_flight`` images on their way.

        ``images`` may be endless: it is read as results are asked for, at most ``in_flight`` images ahead of
        them. An image that fails gives an Item with its error and the others go on; an error of the iterable
        itself is raised after the results of the images before it. ``timeout_s`` is for each image. Because
        the order is kept, an image that waits for its deadline holds back the results behind it.

        ``AsyncClient`` takes asynchronous iterables as well; a plain one is read by the event loop and should not
        block. Where the iteration is left early, ``aclose()`` of what is returned (or ``contextlib.aclosing``) cancels
        at once what is in flight.
        """
        return self._many(
            images,
            lambda image: self.classify(image, pipeline=pipeline, parameters=parameters, timeout_s=timeout_s),
            in_flight,
            parameters,
            timeout_s,
        )

    def detect(self, image: ImageInput, *, pipeline: str = "detect", **options: Unpack[calls.Options]) -> Detections:
        """The objects in one image, with their boxes in its pixels; options and errors as of ``classify``."""
        return self._answer(Detections, pipeline, image, **options)

    def embed(self, image: ImageInput, *, pipeline: str = "embed", **options: Unpack[calls.Options]) -> Embedding:
        """What the network makes of one image as a vector; options and errors as of ``classify``."""
        return self._answer(Embedding, pipeline, image, **options)

    def segment(
        self, image: ImageInput, *, pipeline: str = "segment", **options: Unpack[calls.Options]
    ) -> Segmentation:
        """What each pixel of one image shows; options and errors as of ``classify``."""
        return self._answer(Segmentation, pipeline, image, **options)

    def read(self, image: ImageInput, *, pipeline: str = "read", **options: Unpack[calls.Options]) -> Reading:
        """The text in one image, its lines in reading order; options and errors as of ``classify``."""
        return self._answer(Reading, pipeline, image, **options)

    def predict(
        self,
        image: ImageInput,
        *,
        pipeline: str,
        inputs: calls.Inputs | None = None,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Result:
        """What a pipeline of any kind answers to one image: the result of ``classify``, ``detect``, …, or ``Outputs``.

        ``inputs`` is for a pipeline whose network takes more than the image from the request: the values of each input
        by its name, as arrays or lists of numbers without a batch dimension; an input that is another image takes what
        ``image`` takes. UnsupportedInput is raised for a name that the pipeline does not take, for one that is missing,
        for numbers of another type or shape, and for too many of them. Other options and errors are as of ``classify``.
        """
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        tensors, latency_ms = self._infer(pipeline, image, timeout_s, metadata, inputs=inputs or {})
        with calls.attach_request_id(metadata):
            return kinds.read(self._limits[pipeline].kind, pipeline, tensors, metadata.request_id, latency_ms)

    def predict_many(
        self,
        images: Iterable[ImageInput],
        *,
        pipeline: str,
        in_flight: int = 8,
        inputs: calls.Inputs | None = None,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Item[Result]]:
        """What a pipeline of any kind answers to every image, as ``classify_many``; ``inputs`` are those of each."""
        calls.check_read_again(inputs)
        return self._many(
            images,
            lambda image: self.predict(
                image, pipeline=pipeline, inputs=inputs, parameters=parameters, timeout_s=timeout_s
            ),
            in_flight,
            parameters,
            timeout_s,
        )

    def infer(
        self,
        model: str,
        image: ImageInput | Tensors,
        *,
        inputs: calls.Inputs | None = None,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> Tensors:
        """The raw outputs of any model: name → array with its batch dimension.

        ``image`` is an encoded image as of ``classify``, or a dict of arrays by the names of the model's inputs, with
        their batch dimension. BYTES are object arrays of ``bytes``. ``inputs`` are beside an encoded image, as of
        ``predict``, ``request_id`` and ``traceparent`` as of ``classify``. Raises the errors of
        ``onestream.client.errors``.
        """
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        if isinstance(image, dict):
            if inputs:
                raise ValueError("inputs go beside an encoded image; arrays were given: put all inputs among these")
            tensors, _ = self._infer(model, None, timeout_s, metadata, arrays=image)
        else:
            tensors, _ = self._infer(model, image, timeout_s, metadata, inputs=inputs)
        return tensors

    def stream(
        self,
        source: VideoInput,
        *,
        pipeline: str = "classify",
        mode: Mode | None = None,
        results: int = 16,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        reconnect: Reconnect | None = None,
        tap: Callable[[Packet], None] | None = None,
        sound: Sound | None = None,
    ) -> Stream:
        """The results of a video's frames, in order, while it is still running. gRPC only.

        ``source``
            A file's path, ``rtsp://…``, ``http://…``, ``/dev/video…``, the bytes of a file, a binary file object, or a
            source of ``onestream.client.video``. It is sent as it is encoded, and decoded by the server. Needs
            PyAV, which the extra ``video`` installs.
        ``mode``
            ``"block"``: the faster side waits, and no frame is lost. ``"drop_oldest"``: the latency is bounded, and
            frames that would wait too long are dropped and counted. By default the first for what can wait, files, and
            the second for what cannot, cameras.
        ``results``
            How many results may wait for the caller. A caller that is slower holds the stream back, or loses frames,
            but never fills memory.
        ``parameters``
            Numbers in the place of options of the pipeline, for every frame, as of ``classify``. BadStream is raised
            where the pipeline does not take them.
        ``timeout_s``
            The longest wait for the server's next step, when it is its turn: that it opens the stream, takes packets or
            gives results. By default that of the client.
        ``reconnect``
            Whether a lost connection is made again. By default that of an RTSP source or a webcam is.
        ``tap``
            Called with every packet that is sent, by another thread, which it must not hold up.
        ``sound``
            Takes the source's sound, for a ``VideoWriter`` that writes a file of the frames. It is not sent.

        Nothing is opened before the stream is entered (``with`` or ``async with``) or iterated; then the errors of
        ``onestream.client.errors`` are raised, among them UnreadableInput for the source (TruncatedInput, after the
        last result, for a file that was cut short) and BadStream for a stream that the server refuses or ends. Raises
        UnsupportedInput at once for what is no source.
        """
        return calls.open_stream(
            self._link.for_streams,
            source,
            url=self.url,
            pipeline=pipeline,
            mode=mode,
            results=results,
            timeout_s=self._deadline(timeout_s).timeout_s,
            reconnect=reconnect,
            tap=tap,
            sound=sound,
            parameters=parameters,
        )

    def _many(
        self,
        images: Iterable[ImageInput],
        call: Callable[[ImageInput], ResultT],
        in_flight: int,
        parameters: Mapping[str, float] | None,
        timeout_s: float | None,
    ) -> Iterator[Item[ResultT]]:
        calls.check_many(images, in_flight=in_flight, parameters=parameters, timeout_s=timeout_s)

        def one(indexed: tuple[int, ImageInput]) -> Item[ResultT]:
            index, image = indexed
            try:
                return Item(index, image, result=call(image))
            except ClientClosed:
                raise
            except OnestreamError as error:
                return Item(index, image, error=error)

        return map_in_order(one, numbered(images), in_flight=in_flight)

    def _answer(
        self,
        result: type[ResultT],
        pipeline: str,
        image: ImageInput,
        parameters: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
    ) -> ResultT:
        """The result of a kind in a pipeline's outputs for one image."""
        metadata = calls.request_metadata(request_id, traceparent, self._priority, parameters)
        tensors, latency_ms = self._infer(pipeline, image, timeout_s, metadata)
        with calls.attach_request_id(metadata):
            return result.from_tensors(pipeline, tensors, metadata.request_id, latency_ms)
