"""Which subjects a run on a definition that ends in patches compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from onestream.measure.parity.gathered import Gathered
from onestream.measure.parity.patches.subjects import ImageProcessor, InProcess, Literal, image_processors
from onestream.measure.parity.subject import CannotCompare, Photo, Subject
from onestream.preprocess import CannotCompile, CannotImport, Definition
from onestream.preprocess.interop import to_huggingface
from onestream.preprocess.interop.huggingface.files import Config
from onestream.preprocess.interop.source import named_object
from onestream.serving.pipeline import Pipeline


class GatheredForPatches(Gathered[Photo]):
    """Subjects that make patches of photos. ``config`` is the image processor's, if the definition was read of one."""

    libraries: Mapping[str, str] = MappingProxyType({"transformers": "transformers"})

    def __init__(self, pipeline: Pipeline, stack: ExitStack, config: Config | None) -> None:
        super().__init__(pipeline, stack)
        self._config = config

    def reference(self, definition: Definition, *, name: str = "") -> Subject[Photo]:
        """See ``Gathered.reference``."""
        return Literal(definition, self.pipeline.limits, name)

    def network(self, repository: Path) -> None:  # noqa: ARG002  # patches are all that is answered
        """None: no network takes patches alone."""
        return

    def backends(self) -> None:
        """``Processor``; on a CPU it is the only one."""
        self._add(InProcess(self._definition, self.pipeline.limits))

    def server(self, address: str) -> None:
        """See ``Gathered.server``. Raises ``CannotCompare``."""
        raise CannotCompare(f"patches are compared in process, not of a server; got {address}")

    @property
    def served_models(self) -> list[str]:
        """See ``Gathered.served_models``. Raises ``CannotCompare``."""
        raise CannotCompare("patches are compared in process, not of a server; leave --serve out")

    def other_code(self, asked: Sequence[str] | None) -> None:
        """See ``Gathered.other_code``; transformers is what patches are for, and asked for unless *none* is."""
        super().other_code(["transformers"] if asked is None else asked)

    def _library(self, name: str) -> Sequence[Subject[Photo]]:
        try:
            config = self._config or to_huggingface(self._definition)
        except CannotCompile as error:
            raise CannotCompile(
                f"{error}; give its folder, config or id in place of the definition, or --against none"
            ) from None
        found = image_processors(self._definition, config)
        self.versions[name] = metadata.version(name)
        return found

    def _own_code(self, where: str) -> Subject[Photo]:
        try:
            return ImageProcessor(where, named_object(where), self._definition, judged=False)
        except CannotImport as error:
            raise CannotCompare(f"--against {error}") from None
