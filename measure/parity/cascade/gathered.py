"""Which subjects a run on a cascade compares: by stage, and from picture to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from onestream.measure.parity.answers import Answering
from onestream.measure.parity.cascade.cut_regions import CutRegions, PhotoRegion
from onestream.measure.parity.cascade.rapid import RapidOcr
from onestream.measure.parity.cascade.served_network import ServedNetwork
from onestream.measure.parity.cascade.ways import OpenCvWay, OurWay
from onestream.measure.parity.cascade.whole import BuiltCascade, WholeAnswering, WholeCascade
from onestream.measure.parity.gathered import Gathered, GatheredForPhotos, other_definition
from onestream.measure.parity.report import Kind
from onestream.measure.parity.served import Served
from onestream.measure.parity.subject import CannotCompare, Item, Photo, Subject
from onestream.measure.rapid_ocr import can_read
from onestream.preprocess import Definition, PreprocessError
from onestream.serving.cascade import Cascade
from onestream.serving.pipeline import Pipeline

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
        return CutRegions(OurWay("reference", self.pipeline.limits, name=name), definition)

    def backends(self) -> None:
        """See ``Gathered.backends``: regions are cut on the CPU."""
        try:
            self._add(CutRegions(OurWay("dali", self.pipeline.limits), self._definition))
        except PreprocessError as error:
            self.not_compared["dali (cpu)"] = str(error)

    def _library(self, name: str) -> Sequence[Subject[PhotoRegion]]:  # noqa: ARG002
        return [CutRegions(OpenCvWay(self.pipeline.limits), self._definition)]


class GatheredForWhole(Gathered[Photo]):
    """Subjects that take photos through all stages. Raises ``CannotCompare`` where the cascade was not built."""

    def __init__(self, cascade: Cascade, repository: Path, stack: ExitStack) -> None:
        first: Pipeline = next(iter(cascade.pipelines.values()))
        super().__init__(first.model_copy(update={"name": cascade.name}), stack)
        self.digest = ""
        self._cascade, self._built = cascade, BuiltCascade(repository, cascade)
        self._reference = WholeCascade(OurWay("reference", cascade.limits), self._built)
        self.libraries = _OPENCV | ({"rapidocr": "rapidocr"} if can_read(cascade) else {})

    def reference(self, definition: Definition, *, name: str = "") -> WholeCascade:  # noqa: ARG002
        """The cascade by the reference's pixels, whose definitions are the file's."""
        return self._reference

    def network(self, repository: Path) -> Answering:  # noqa: ARG002
        """Who answers by itself asks none."""
        return WholeAnswering()

    def backends(self) -> None:
        """See ``Gathered.backends``."""
        try:
            self._add(WholeCascade(OurWay("dali", self._cascade.limits), self._built))
        except PreprocessError as error:
            self.not_compared["dali (cpu)"] = str(error)

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
