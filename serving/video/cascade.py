"""Streams of a cascade: frames are pictures, and every stage looks at them as it looks at a file's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from onestream.postprocess.kinds import Tensors
from onestream.postprocess.parameters import Parameters
from onestream.preprocess.video.streams.stream import StreamFrame
from onestream.serving.errors import NetworkFailed
from onestream.serving.models.cascade import Staged
from onestream.serving.models.stage_runners import Pixels
from onestream.serving.models.stages import Stages
from onestream.serving.video.model import Video
from onestream.serving.video.network_calls import Overloaded
from onestream.wire.tensor_names import LEFT_OUT


class CascadeVideo(Staged, Video):
    """``message`` to ``event`` and the cascade's answer; the networks are asked inside the server."""

    def open_network(self) -> None:
        """See ``Video.open_network``."""
        self._networks, self._of_thread = self.other_models(), threading.local()

    def asking(self, frames: list[StreamFrame], parameters: list[Parameters]) -> Callable[[], list[Tensors]]:
        """See ``Video.asking``."""
        return lambda: [self._answer(frame, own) for frame, own in zip(frames, parameters, strict=True)]

    def finalize(self) -> None:
        """End every stream and the threads."""
        super().finalize()
        self._networks.close()

    def _answer(self, frame: StreamFrame, parameters: Parameters) -> Tensors:
        # The model is on the CPU, and so is what it decodes.
        assert isinstance(frame.pixels, np.ndarray)
        try:
            answer = self._stages().run(frame.pixels, parameters=self.by_stage(parameters))
        except NetworkFailed as error:
            raise (Overloaded if error.is_overload else RuntimeError)(str(error)) from None
        if left_out := int(answer[LEFT_OUT][0, 0]):
            self.model.count_left_out(left_out)
        return {name: value[0] for name, value in answer.items()}

    def _stages(self) -> Stages[Pixels]:
        if not hasattr(self._of_thread, "stages"):
            self._of_thread.stages = self.open_stages(self._networks)
        stages: Stages[Pixels] = self._of_thread.stages
        return stages
