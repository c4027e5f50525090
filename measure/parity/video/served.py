"""``NAME_video`` of a running server as a subject: what can be seen of a stream from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onestream.client import Client, OnestreamError
from onestream.client.video import FrameResult
from onestream.measure.parity.served import ServedModels
from onestream.measure.parity.subject import Observation, Refused
from onestream.measure.parity.video.frames import ClipReader, ComparedClip
from onestream.postprocess.options import Raw
from onestream.serving.pipeline import Pipeline


class ServedVideo(ClipReader):
    """Streams clips to a server. It shows the pipeline's answer, and the network's outputs where that is raw.

    ``address`` is host:port of its gRPC service. ``on_problem`` is told where the server makes RGB otherwise than the
    pipeline file says. Raises ``NotServed``.
    """

    def __init__(self, pipeline: Pipeline, address: str, *, on_problem: Callable[[str], None]) -> None:
        super().__init__("server", judged=True)
        self._pipeline, self._model, self._on_problem = pipeline, f"{pipeline.name}_video", on_problem
        with ServedModels(address, [self._model]) as served:
            self.digests, self.name = served.digests, served.title
        self._client = Client(address)

    def read(self, clip: ComparedClip) -> Sequence[Observation]:
        """See ``ClipReader.read``."""
        results: dict[int, FrameResult] = {}
        try:
            with self._client.stream(clip.path, pipeline=self._pipeline.name, mode="block") as stream:
                for result in stream:
                    results[result.frame_index] = result
                    if result.frame_index >= clip.numbers[-1]:
                        break
                color = stream.color
        except OnestreamError as error:
            raise Refused(str(error)) from None
        if color is not None and (color.matrix, color.range) != (clip.colors.matrix, clip.colors.range):
            self._on_problem(
                f"the server makes RGB of {clip.path} by {color}, the pipeline file by {clip.colors}; "
                "run onestream build"
            )
        missing = [number for number in clip.numbers if number not in results]
        if missing:
            raise Refused(f"the server gives no result for frame {missing[0]}")
        return [self._observation(results[number]) for number in clip.numbers]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _observation(self, result: FrameResult) -> Observation:
        answer = {name: tensor[None] for name, tensor in result.tensors.items()}
        raw = isinstance(self._pipeline.postprocess, Raw)
        return Observation({}, outputs=answer if raw else None, answers={self._model: answer} if answer else {})
