"""What the fused form does with encoded pictures on a CPU, in Triton's model and in processes without Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from onestream.postprocess.kinds import Postprocess, Tensors
from onestream.postprocess.parameters import NO_PARAMETERS, Parameters
from onestream.preprocess import BadImage, Compiled
from onestream.preprocess.headers.reader import Encoded, read_header
from onestream.serving.engine import OnnxRuntimeEngine


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """A definition, a network and a postprocessing, for one thread.

    ``timed`` counts the time of its block under a step's name.
    """

    compiled: Compiled
    network: OnnxRuntimeEngine
    postprocess: Postprocess
    timed: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()

    def __call__(self, images: Sequence[Encoded], parameters: Sequence[Parameters] = ()) -> list[Tensors | BadImage]:
        """The outputs of each picture, with a batch dimension of 1, or why it is refused. Raises as engines do.

        ``parameters`` are those of each picture's request, or empty.
        """
        with self.timed("preprocess"):
            samples = self.compiled.run(images)
            sizes = [
                None if isinstance(sample, BadImage) else read_header(image).oriented_hw
                for image, sample in zip(images, samples, strict=True)
            ]
        good = [
            (sample, size, own)
            for sample, size, own in zip(samples, sizes, parameters or [NO_PARAMETERS] * len(images), strict=True)
            if not isinstance(sample, BadImage) and size is not None
        ]
        answers: Iterator[Tensors] = iter(())
        if good:
            with self.timed("network"):
                # Sides may depend on the picture, so that the images of a batch have shapes of their own.
                outputs = [self.network.run(pixels[None]) for pixels, _, _ in good]
            with self.timed("postprocess"):
                answers = iter(
                    [self.postprocess(one, [size], [own])[0] for one, (_, size, own) in zip(outputs, good, strict=True)]
                )
        return [sample if isinstance(sample, BadImage) else next(answers) for sample in samples]
