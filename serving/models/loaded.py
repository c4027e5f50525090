"""A built model, read from its folder and checked against its stamps: what Triton's models and ``InProcess`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onestream.postprocess.kinds import (
    Opening,
    Postprocess,
    Tensors,
    labels_beside,
    read_postprocess,
    without_stages,
)
from onestream.postprocess.parameters import NO_PARAMETERS, Parameters
from onestream.preprocess import (
    WHOLE_PICTURE,
    BadImage,
    Compiled,
    Definition,
    Limits,
    StampMismatch,
    compile,
    first_difference,
)
from onestream.preprocess.backends.base import ON_CPU
from onestream.preprocess.headers.reader import Encoded, read_header
from onestream.serving.engine import CpuEngine
from onestream.serving.engine.cpu import Inputs
from onestream.serving.engine.stamp import check_same
from onestream.serving.engine.table import CPU_ENGINES, ENGINE_PARAMETER, ONNX_RUNTIME
from onestream.serving.errors import BadPipeline, NetworkFailed
from onestream.wire.kinds import KIND_PARAMETER, STAGES_PARAMETER
from onestream.wire.tensor_names import IMAGE_SIZE, LABELS, PIXELS, PIXELS_OF

if TYPE_CHECKING:
    from onestream.postprocess.kinds import AnyPostprocess
    from onestream.preprocess.geometry import Quads, Size
    from onestream.serving.cascade import ServedStage
    from onestream.serving.models.stage_runners import Networks, OwnNetworks, Pixels
    from onestream.serving.models.stages import OpenStage, Stages
    from onestream.serving.pipeline import GpuOptions

Pictures = Mapping[str, Encoded]
"""The pictures of a request beside its image, by the names of the network's inputs that take their pixels."""

Timed = Callable[[str], AbstractContextManager[None]]
"""Counts the time of its block under a step's name."""


def untimed(_step: str) -> AbstractContextManager[None]:
    """Count nothing."""
    return nullcontext()


class Counts:
    """The counters of a model. These count nothing."""

    def count(self, family: str, more: int, **labels: str) -> None:
        """Add to a counter."""

    def objects(self, labels: Iterable[bytes]) -> None:
        """Count objects that were found, by the names of their classes."""


class LoadedModel:
    """The definition, the limits and the parameters of a model, and what opens its parts on the CPU.

    Args:
        folder: the model's, such as ``model_repository/classify_fused``.
        parameters: those of its configuration.
        name: the model's.
        batch: the most images at once.
        version: the folder of the version with the networks.
        threads: of decoding, on a CPU of the network, too; by default what the configuration says.
        engine: runs every network on a CPU; by default that of the configuration.
        counts: counts what is found and what is dropped.
        warn: called with a line about what works but should not stay so.

    Attributes:
        definition: the model's; a cascade decodes the picture whole, and its stages have definitions of their own.
        served: the stages of a cascade, else none.
        stamped: each folder with a definition, and the definition.

    Raises ``StampMismatch`` where parts of the model do not belong together.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, str],
        *,
        name: str,
        batch: int,
        version: str = "1",
        threads: int | None = None,
        engine: type[CpuEngine] | None = None,
        counts: Counts | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.version_folder = folder, folder / version
        self.parameters, self.name, self.batch = parameters, name, max(1, batch)
        self.kind = parameters.get(KIND_PARAMETER)
        self._threads, self._warn = threads, warn
        self._engine = engine or CPU_ENGINES[parameters.get(ENGINE_PARAMETER, ONNX_RUNTIME.name)].on_cpu()
        self._counts = counts or Counts()
        self.served: tuple[ServedStage, ...] = ()
        if STAGES_PARAMETER in parameters:
            from onestream.serving.cascade import SERVED_STAGES

            self.served = SERVED_STAGES.validate_json(parameters[STAGES_PARAMETER])
            self.definition = WHOLE_PICTURE
            self.stamped = {
                self.stage_folder(one): self._read(self.stage_folder(one), one.definition, one.definition_digest)
                for one in self.served
            }
        else:
            stamp = Definition.from_json(parameters["definition"])
            self.definition = self._read(folder, stamp, parameters["definition_digest"])
            self.stamped = {folder: self.definition}

    @cached_property
    def limits(self) -> Limits:
        """The limits that are checked before an image is decoded."""
        return Limits.model_validate_json(self.parameters["limits"])

    @cached_property
    def threads(self) -> int:
        """The threads of decoding and of a network on a CPU."""
        return int(self.parameters["threads"]) if self._threads is None else self._threads

    @property
    def gpu_options(self) -> GpuOptions:
        """The pipeline's options for a GPU."""
        from onestream.serving.pipeline import GpuOptions

        options = GpuOptions.model_validate_json(self.parameters["gpu"])
        return options if self._threads is None else options.model_copy(update={"decode_threads": self._threads})

    @cached_property
    def options(self) -> AnyPostprocess:
        """The postprocessing of a model that is no cascade."""
        return read_postprocess(self.parameters["postprocess"])

    def stage_folder(self, stage: ServedStage) -> Path:
        """The folder with a stage's definition and labels."""
        return self.folder / STAGES_PARAMETER / stage.name

    def network(self, file: str = "model.onnx", definition: Definition | None = None) -> CpuEngine:
        """The engine of a network on the CPU.

        Raises ``BadPipeline`` where there is no such file, and ``StampMismatch`` where it was built with another
        definition, by default the model's.
        """
        path = self.version_folder / file
        if not path.is_file():
            raise BadPipeline(f"{self.name} holds no {file}; build it with onestream build")
        opened = self._engine(path, threads=self.threads)
        if opened.definition is None:
            raise StampMismatch(f"model {self.name}: {file} carries no definition; build it with onestream build")
        check_same(opened.definition, definition or self.definition, one_is=file, other_is=f"model {self.name}")
        if (price := opened.price) is not None:
            from onestream.serving.built import here

            if slower := here.warning(path, price, threads=self.threads):
                self._warn(f"model {self.name}: {slower}")
        return opened

    def own_networks(self) -> OwnNetworks:
        """The networks of a cascade's stages in this process."""
        from onestream.serving.models.stage_runners import OwnNetworks

        return OwnNetworks({one.name: self.network(f"{one.name}.onnx", one.definition) for one in self.served})

    def pixels(self) -> Compiled:
        """The definition up to its pixels, on the CPU. For one thread at a time."""
        return compile(
            self.definition.pixels(),
            backend=ON_CPU,
            limits=self.limits,
            max_batch_size=self.batch,
            threads=self.threads,
        )

    def postprocess(self, *, has_tail: bool = False) -> Postprocess:
        """The function from the network's outputs to the tensors of the model's kind.

        ``has_tail`` says that the network ends in the nodes that ``onestream.serving.graph.onnx_postprocess`` appends.
        """
        opened = self._opened(self.options, self.definition, self.folder, has_tail=has_tail)
        return without_stages(self.options, opened, self.count_left_out)

    def count_left_out(self, count: int) -> None:
        """Count the regions of a picture that bounds left out."""
        self._counts.count("onestream_regions_left_out_total", count)

    def stages(self) -> list[OpenStage]:
        """The stages of a cascade, for one thread."""
        from onestream.serving.models.stages import OpenStage

        return [
            OpenStage.of(one, self._opened(one.postprocess, one.definition, self.stage_folder(one)))
            for one in self.served
        ]

    def open_stages(
        self,
        networks: Networks[Pixels],
        *,
        timed: Timed = untimed,
        looked_at: Callable[[str, Quads], None] = lambda _stage, _quads: None,
        **options: int,
    ) -> Stages[Pixels]:
        """The stages of a cascade on the CPU, for one thread; the arguments are as of ``Stages``."""
        from onestream.serving.models.stage_runners import samples_on_cpu
        from onestream.serving.models.stages import Stages

        return Stages(
            self.stages(),
            networks,
            lambda stage: samples_on_cpu(stage.definition, self.limits),
            limits=self.limits,
            timed=timed,
            looked_at=looked_at,
            **options,
        )

    def _opened(
        self, options: AnyPostprocess, definition: Definition, folder: Path, *, has_tail: bool = False
    ) -> Postprocess:
        """The postprocessing by options, with the labels in a folder; what it finds is counted."""
        postprocess = options.open(
            Opening(
                definition,
                labels=labels_beside(options, folder),
                has_tail=has_tail,
                dropped=lambda count: self._counts.count("onestream_candidates_dropped_total", count),
                full=lambda: self._counts.count("onestream_candidates_full_total", 1),
            )
        )
        if not options.names_objects:
            return postprocess

        def counted(outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = ()) -> list[Tensors]:
            found = postprocess(outputs, sizes, parameters)
            for one in found:
                self._counts.objects(one[LABELS][0])
            return found

        return counted

    def _read(self, folder: Path, stamped: Definition, digest: str) -> Definition:
        """The definition in a folder, which the configuration must carry too. Raises ``StampMismatch``."""
        definition = Definition.from_json((folder / "definition.json").read_text())
        if definition.digest != digest:
            raise StampMismatch(
                f"model {self.name}: config.pbtxt was built with definition {digest[:12]}, the definition.json beside "
                f"it is {definition.digest[:12]}; first difference: "
                f"{first_difference(stamped, definition) or 'the digest itself'}. "
                "Build the pipeline again: onestream build"
            )
        return definition


def run_pictures(
    run: Callable[[str, list[Encoded]], Sequence[Any]], images: Sequence[Encoded], pictures: Sequence[Pictures]
) -> list[dict[str, Any] | BadImage]:
    """The pixels of each request by the network's inputs, or why one of its pictures is refused.

    ``run`` makes the pixels of encoded images for such an input, or a ``BadImage``. ``pictures`` are those beside each
    of ``images``, or empty.
    """
    found: list[dict[str, Any] | BadImage] = [
        sample if isinstance(sample, BadImage) else {PIXELS: sample} for sample in run(PIXELS, list(images))
    ]
    for name in pictures[0] if pictures else ():
        left = [(index, one) for index, one in enumerate(found) if not isinstance(one, BadImage)]
        samples = run(name, [pictures[index][name] for index, _ in left]) if left else []
        for (index, one), sample in zip(left, samples, strict=True):
            if isinstance(sample, BadImage):
                found[index] = sample.named(name.removeprefix(PIXELS_OF))
            else:
                one[name] = sample
    return found


def run_network(network: CpuEngine, inputs: Inputs) -> Tensors:
    """The network's outputs. Raises ``NetworkFailed``, of which the engine's error is the cause, for any of these."""
    try:
        return network.run(inputs)
    except Exception as error:  # ONNX Runtime's exceptions share no public base class
        shapes = ", ".join(f"{name} of shape {list(inputs[name].shape)}" for name in network.input_names)
        reason = f"the network failed on {shapes}: {type(error).__name__}"
        raise NetworkFailed(reason) from error.with_traceback(None)


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """A definition, a network and a postprocessing on the CPU, for one thread."""

    compiled: Compiled
    network: CpuEngine
    postprocess: Postprocess
    timed: Timed = untimed

    def __call__(
        self,
        images: Sequence[Encoded],
        parameters: Sequence[Parameters] = (),
        inputs: Sequence[Inputs] = (),
        pictures: Sequence[Pictures] = (),
    ) -> list[Tensors | BadImage]:
        """The outputs of each picture, with a batch dimension of 1, or why it is refused. Raises ``NetworkFailed``.

        ``parameters``, ``inputs``, the network's beside the picture with a batch dimension of 1, and other ``pictures``
        are those of each picture's request, or empty.
        """
        with self.timed("preprocess"):
            samples = run_pictures(lambda _name, some: self.compiled.run(some), images, pictures)
            sizes = [
                None if isinstance(sample, BadImage) else read_header(image).oriented_hw
                for image, sample in zip(images, samples, strict=True)
            ]
        good = [
            ({**{name: one[None] for name, one in sample.items()}, **self._size(size), **beside}, size, own)
            for sample, size, own, beside in zip(
                samples, sizes, parameters or [NO_PARAMETERS] * len(images), inputs or [{}] * len(images), strict=True
            )
            if not isinstance(sample, BadImage) and size is not None
        ]
        answers: Iterator[Tensors] = iter(())
        if good:
            with self.timed("network"):
                # Sides may depend on the picture, so that the images of a batch have shapes of their own.
                outputs = [run_network(self.network, one) for one, _, _ in good]
            with self.timed("postprocess"):
                answers = iter(
                    [self.postprocess(one, [size], [own])[0] for one, (_, size, own) in zip(outputs, good, strict=True)]
                )
        return [sample if isinstance(sample, BadImage) else next(answers) for sample in samples]

    def _size(self, size_hw: Size) -> Inputs:
        """The size of a picture as the network takes it; none where it does not."""
        return {IMAGE_SIZE: np.array([size_hw], np.int32)} if IMAGE_SIZE in self.network.input_names else {}
