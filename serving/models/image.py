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

from onestream.preprocess import BadImage
from onestream.preprocess.geometry import Size
from onestream.serving.models import deadline
from onestream.serving.models.base import Adapter, Asked, FromImages
from onestream.serving.models.heavy_pictures import Work
from onestream.serving.models.loaded import FusedSteps, run_network, run_pictures
from onestream.wire.tensor_names import IMAGE_SIZE

_LATER = 10
"""Steps of the operating system's priority, of which 19 is the last to get a core."""


_Run = Callable[[str, list[Any]], Sequence[Any]]
"""Makes the pixels of images for an input of the network, or a ``BadImage`` for each that is refused."""


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

            runs = {name: device_pixels(self, name) for name in self.output_names if name != IMAGE_SIZE}
            self._run_on_gpu: _Run = lambda name, images: runs[name](images)

    def open_work(self, *, is_heavy: bool) -> Work:  # noqa: ARG002 (both are the same)
        """See ``FromImages.open_work``."""
        compiled = self.model.pixels()

        def on_cpu(_name: str, images: list[Any]) -> Sequence[Any]:
            return compiled.run(images)

        return lambda callers: self._responses(on_cpu, [caller.request for caller in callers])

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Decode a batch; a bad image is an error of its own request only."""
        if self.device == "cpu":
            return self.answer_on_cpu(requests)
        return self.isolated(partial(self._responses, self._run_on_gpu), requests)

    def _responses(self, run: _Run, requests: Sequence[Any]) -> list[Any]:
        with self.timed("preprocess"):
            samples = self.run_isolated(partial(self._tensors, run), requests)
        return [
            self.refuse(request, sample) if isinstance(sample, BadImage) else pb_utils.InferenceResponse(sample)
            for request, sample in zip(requests, samples, strict=True)
        ]

    def _tensors(self, run: _Run, asked: list[Asked]) -> list[list[Any] | BadImage]:
        """The outputs for requests: pixels of their pictures, and the image's size where the postprocessing reads that.

        On a GPU the pixels are tensors of Triton's already.
        """
        found: list[list[Any] | BadImage] = []
        for one, samples in zip(
            asked, run_pictures(run, [one.image for one in asked], [one.pictures for one in asked]), strict=True
        ):
            if isinstance(samples, BadImage):
                found.append(samples)
                continue
            on_cpu = self.device == "cpu"
            tensors = [pb_utils.Tensor(name, made[None]) if on_cpu else made for name, made in samples.items()]
            if IMAGE_SIZE in self.output_names:
                tensors.append(pb_utils.Tensor(IMAGE_SIZE, np.array([one.image.header.oriented_hw], np.int32)))
            found.append(tensors)
        return found


class Network(Adapter):
    """The network's inputs to its outputs, on the CPU; on a GPU a backend of Triton's own does this."""

    def prepare(self) -> None:
        """Load the network."""
        self._engine = self.model.network()

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Run the network for each request of the batch."""
        return self.isolated(self._responses, requests)

    def _responses(self, requests: Sequence[Any]) -> list[Any]:
        with self.timed("network"):
            # Engines of a CPU run one image after the other, whose outputs may have sizes of their own.
            outputs = [run_network(self._engine, self.inputs_of(request)) for request in requests]
        return [self.respond(one) for one in outputs]


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
        return self.responses_of(steps, requests)


def _go_later(threads: Iterable[int]) -> None:
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _LATER)


def _threads() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}
