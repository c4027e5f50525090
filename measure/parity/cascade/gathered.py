"""Which subjects a run on a cascade compares: by stage, and from picture to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from onestream.measure.parity.answers import Answering
from onestream.measure.parity.cascade.cut_regions import CutRegions, PhotoRegion
from onestream.measure.parity.cascade.ways import OpenCvWay, OurWay
from onestream.measure.parity.cascade.whole import BuiltCascade, WholeAnswering, WholeCascade
from onestream.measure.parity.gathered import Gathered, GatheredForPhotos, other_definition
from onestream.measure.parity.report import Kind
from onestream.measure.parity.served import Served, ServedModels
from onestream.measure.parity.subject import CannotCompare, Item, Observation, Photo, Refused, Subject
from onestream.measure.rapid_ocr import can_read, networks_of, open_rapid_ocr, settings_of
from onestream.preprocess import BackendMissing, Definition, PreprocessError
from onestream.preprocess.backends.base import ON_CPU, REFERENCE
from onestream.serving.cascade import Cascade
from onestream.serving.pipeline import Pipeline
from onestream.wire.install import install_command
from onestream.wire.tensor_names import PIXELS, QUADS, TEXTS


class ServedNetwork(Subject[Item]):
    """``NAME_STAGE_model``. ``address`` is host:port of the server's gRPC service. Raises ``NotServed``."""

    def __init__(self, model: str, address: str, reference: Subject[Item]) -> None:
        super().__init__("server", judged=True)
        self._model, self._reference = model, reference
        self._served = ServedModels(address, [model])
        self.name = self._served.title

    @property
    def digests(self) -> dict[str, str]:
        """See ``ServedModels.digests``."""
        return self._served.digests

    def observe(self, item: Item) -> Observation:
        """What the model returns."""
        expected = self._reference.observe(item)
        pixels = expected.network_pixels
        assert pixels is not None
        outputs = self._served.ask(self._model, PIXELS, pixels[None])
        return Observation({}, decoded_hw=expected.picture_hw, outputs=outputs)

    def close(self) -> None:
        """Close the connection."""
        self._served.close()


class RapidOcr(Subject[Photo]):
    """Reads as a cascade for which ``rapid_ocr.can_read`` holds.

    Raises ``BackendMissing`` naming the command that installs it, and ``WeightsError`` as ``fetch_network`` does.
    """

    def __init__(self, cascade: Cascade) -> None:
        super().__init__("rapidocr", judged=False)
        try:
            self._read = open_rapid_ocr(settings_of(cascade), networks_of(cascade))
        except ImportError as error:
            raise BackendMissing(
                f"rapidocr cannot be imported ({error}); run: {install_command(group='bench')}"
            ) from None

    def observe(self, photo: Photo) -> Observation:
        """The lines that it reads."""
        try:
            lines = self._read(photo.data)
        except Exception as error:  # the code is not ours
            raise Refused(f"{type(error).__name__}: {error}") from None
        answer = {
            QUADS: np.array([line.quad for line in lines], np.float32).reshape(1, -1, 4, 2),
            TEXTS: np.array([[line.text.encode() for line in lines]], object),
        }
        return Observation({}, answers={"": answer})


_OPENCV = {"opencv": "cv2"}


class _OfStage(Gathered[Item]):
    """What stages have in common: a server runs their networks alone."""

    def server(self, address: str) -> None:
        """See ``Gathered.server``."""
        (model,) = self.served_models
        served = ServedNetwork(model, address, self.reference(self._definition))
        self._add(served)
        self._check_digests(served.digests)

    @property
    def served_models(self) -> list[str]:
        """The network."""
        return [f"{self.pipeline.name}_model"]

    def _own_code(self, where: str) -> Subject[Item]:
        raise CannotCompare(_no_own_code(where))


class GatheredForFirstStage(_OfStage[Photo], GatheredForPhotos):
    """Subjects that take photos, for a stage that finds regions in them."""


class GatheredForRegions(_OfStage[PhotoRegion]):
    """Subjects that take regions of photos, for a later stage."""

    libraries: Mapping[str, str] = _OPENCV
    kind: Kind = "region"

    def reference(self, definition: Definition, *, name: str = "") -> Subject[PhotoRegion]:
        """See ``Gathered.reference``."""
        return CutRegions(OurWay(REFERENCE, self.pipeline.limits, name=name), definition)

    def backends(self) -> None:
        """See ``Gathered.backends``: regions are cut on the CPU."""
        try:
            self._add(CutRegions(OurWay(ON_CPU, self.pipeline.limits), self._definition))
        except PreprocessError as error:
            self.not_compared[f"{ON_CPU} (cpu)"] = str(error)

    def _library(self, name: str) -> Sequence[Subject[PhotoRegion]]:  # noqa: ARG002
        return [CutRegions(OpenCvWay(self.pipeline.limits), self._definition)]


class GatheredForWhole(Gathered[Photo]):
    """Subjects that take photos through all stages. Raises ``CannotCompare`` where the cascade was not built."""

    def __init__(self, cascade: Cascade, repository: Path, stack: ExitStack) -> None:
        first: Pipeline = next(iter(cascade.pipelines.values()))
        super().__init__(first.model_copy(update={"name": cascade.name}), stack)
        self.digest = ""
        self._cascade, self._built = cascade, BuiltCascade(repository, cascade)
        self._reference = WholeCascade(OurWay(REFERENCE, cascade.limits), self._built)
        self.libraries = _OPENCV | ({"rapidocr": "rapidocr"} if can_read(cascade) else {})

    def reference(self, definition: Definition, *, name: str = "") -> WholeCascade:  # noqa: ARG002
        """The cascade by the reference's pixels, whose definitions are the file's."""
        return self._reference

    def network(self, repository: Path) -> Answering:  # noqa: ARG002
        """Who answers by itself asks none."""
        return WholeAnswering(self._cascade)

    def backends(self) -> None:
        """See ``Gathered.backends``."""
        try:
            self._add(WholeCascade(OurWay(ON_CPU, self._cascade.limits), self._built))
        except PreprocessError as error:
            self.not_compared[f"{ON_CPU} (cpu)"] = str(error)

    def server(self, address: str) -> None:
        """See ``Gathered.server``."""
        served = Served(self._cascade.name, address)
        self._add(served)
        for model, digests in served.stage_digests.items():
            for name, stage in self._cascade.stages.items():
                if (digest := digests.get(name, "")) != stage.preprocess.digest:
                    what = f"stage {name} of the served model {model}"
                    self.problems.append(other_definition(what, digest, stage.preprocess))

    @property
    def served_models(self) -> list[str]:
        """Both forms, and the networks."""
        name = self._cascade.name
        return [name, f"{name}_fused", *(f"{stage.name}_model" for stage in self._cascade.pipelines.values())]

    def _library(self, name: str) -> Sequence[Subject[Photo]]:
        if name == "rapidocr":
            return [RapidOcr(self._cascade)]
        return [WholeCascade(OpenCvWay(self._cascade.limits), self._built)]

    def _own_code(self, where: str) -> Subject[Photo]:
        raise CannotCompare(_no_own_code(where))


def _no_own_code(where: str) -> str:
    return (
        f"--against {where}: a transform takes photos, and most stages of a cascade take regions; allowed are opencv, "
        "rapidocr, for the first stage torchvision and pillow, and none"
    )
