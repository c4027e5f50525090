"""The models of an image pipeline. Each ``1/model.py`` of a generated repository names one of these classes.

One request is one image and gets exactly one response.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from onestream.postprocess.kinds import Tensors
from onestream.preprocess import BadImage
from onestream.preprocess.geometry import Size
from onestream.preprocess.headers.reader import Checked
from onestream.serving.errors import NetworkFailed
from onestream.serving.models import deadline
from onestream.serving.models.base import Adapter, FromImages
from onestream.serving.models.heavy_pictures import Work
from onestream.serving.models.loaded import FusedSteps
from onestream.wire.tensor_names import IMAGE_SIZE, PIXELS

_LATER = 10
"""Steps of the operating system's priority, of which 19 is the last to get a core."""


class Preprocess(FromImages):
    """``image`` to ``pixels``. On a GPU the pixels stay there."""

    def prepare(self) -> None:
        """Compile the definition."""
        if self.device == "cpu":
            others = _threads()
            self.open_on_cpu()
            # The network's processes go first: above capacity, work would go into pixels that the network then refuses.
            # Not before now: under load, a replacement of this process would take far longer to be ready.
            _go_later((_threads() - others) | {threading.get_native_id()})
        else:
            from onestream.serving.models.on_gpu import device_pixels

            self._run_on_gpu = device_pixels(self)

    def open_work(self, *, is_heavy: bool) -> Work:  # noqa: ARG002 (both are the same)
        """See ``FromImages.open_work``."""
        compiled = self.model.pixels()

        def on_cpu(images: list[Checked]) -> list[Any]:
            samples = compiled.run(images)
            return [s if isinstance(s, BadImage) else pb_utils.Tensor(PIXELS, s[None]) for s in samples]

        return lambda callers: self._responses(on_cpu, [caller.request for caller in callers])

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Decode a batch; a bad image is an error of its own request only."""
        if self.device == "cpu":
            return self.answer_on_cpu(requests)
        return self.isolated(partial(self._responses, self._run_on_gpu), requests)

    def _responses(self, run: Callable[[list[Checked]], list[Any]], requests: Sequence[Any]) -> list[Any]:
        with self.timed("preprocess"):
            samples = self.run_isolated(
                lambda images, _parameters: list(map(self._tensors, images, run(images))), requests
            )
        return [
            self.refuse(request, sample) if isinstance(sample, BadImage) else pb_utils.InferenceResponse(sample)
            for request, sample in zip(requests, samples, strict=True)
        ]

    def _tensors(self, image: Checked, sample: Any) -> list[Any] | BadImage:
        """The outputs for an image: its pixels, and its size where the postprocessing reads that."""
        if isinstance(sample, BadImage):
            return sample
        if IMAGE_SIZE not in self.output_names:
            return [sample]
        return [sample, pb_utils.Tensor(IMAGE_SIZE, np.array([image.header.oriented_hw], np.int32))]


class Network(Adapter):
    """``pixels`` to the network's outputs, on the CPU; on a GPU a backend of Triton's own does this."""

    def prepare(self) -> None:
        """Load the network."""
        self._engine = self.model.network()

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Run the network once for the whole batch."""
        return self.isolated(self._responses, requests)

    def _responses(self, requests: Sequence[Any]) -> list[Any]:
        pixels = [self.rows(request, PIXELS) for request in requests]
        together = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
        with self.timed("network"):
            try:
                outputs = self._engine.run(together)
            except Exception as error:  # ONNX Runtime's exceptions share no public base class
                pb_utils.Logger.log_error(f"{self.name}: {type(error).__name__}: {error}")
                kind, shape = type(error).__name__, list(together.shape)
                raise NetworkFailed(f"the network failed on pixels of shape {shape}: {kind}") from None
        return [self.respond(part) for part in split(outputs, [len(part) for part in pixels])]


class Postprocess(Adapter):
    """The network's outputs to the pipeline's."""

    def prepare(self) -> None:
        """Load the labels."""
        self._postprocess = self.model.postprocess()
        self._outputs = self.model.parameters["network_outputs"].split(",")

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Postprocess request by request: nothing is shared."""
        with self.timed("postprocess"):
            return [self.isolated(self._responses, [request])[0] for request in requests]

    def _responses(self, requests: Sequence[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        # The masks of one large picture alone take seconds.
        deadline.extend()
        outputs = {name: self.rows(request, name) for name in self._outputs}
        parameters = self.parameters_of(request)
        count = len(next(iter(outputs.values())))
        results = self._postprocess(outputs, self._sizes(request), [parameters] * count)
        return self.respond({name: np.concatenate([one[name] for one in results]) for name in results[0]})

    def _sizes(self, request: Any) -> list[Size]:
        """The size of the request's picture, where results depend on it. Raises ``BadImage`` for one that cannot be."""
        if not self.takes(IMAGE_SIZE):
            return []
        # The ensemble gives the size of a picture that was checked; who asks this model alone may give any.
        sizes = self.rows(request, IMAGE_SIZE)
        if len(sizes) != 1:
            raise BadImage("bad_request", f"got the outputs for {len(sizes)} images; one request is one image")
        # The request by which Triton warms up is all zeros.
        height, width = (max(1, int(side)) for side in sizes[0])
        self.model.limits.check_size(height, width)
        return [(height, width)]


class Fused(FromImages):
    """``image`` to the pipeline's outputs, in one process."""

    def prepare(self) -> None:
        """Compile the definition, load the network and the labels."""
        if self.device == "gpu":
            from onestream.serving.models.on_gpu import fused_on_gpu

            self.on_gpu = fused_on_gpu(self)
            return
        self._engine = self.model.network()
        self._postprocess = self.model.postprocess()
        self.open_on_cpu()
        # Triton's threads go first: else its next batch waits for a core while other processes run the network.
        _go_later({threading.get_native_id()})

    def open_work(self, *, is_heavy: bool) -> Work:  # noqa: ARG002 (both are the same)
        """See ``FromImages.open_work``. The network, which threads may share, is loaded once."""
        steps = FusedSteps(self.model.pixels(), self._engine, self._postprocess, self.timed)
        return lambda callers: self._responses(steps, [caller.request for caller in callers])

    def answer(self, requests: Sequence[Any]) -> list[Any] | None:
        """Run the good images as one batch; each bad one gets its own error."""
        return self.answer_images(requests)

    def _responses(self, steps: FusedSteps, requests: Sequence[Any]) -> list[Any]:
        return [
            self.refuse(request, answer) if isinstance(answer, BadImage) else self.respond(answer)
            for request, answer in zip(requests, self.run_isolated(steps, requests, self.parameters_of), strict=True)
        ]


def split(outputs: Tensors, sizes: Sequence[int]) -> list[Tensors]:
    """Cut batched tensors into consecutive parts of the given batch sizes."""
    ends = np.cumsum(sizes)
    return [
        {name: value[end - size : end] for name, value in outputs.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]


def _go_later(threads: Iterable[int]) -> None:
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _LATER)


def _threads() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}
