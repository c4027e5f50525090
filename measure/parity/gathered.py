"""Which subjects a run compares, and why something is missing or wrong."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic

from onestream.measure.parity.answers import Answering
from onestream.measure.parity.library_baselines import LIBRARIES, MODULES, usual_code
from onestream.measure.parity.network import Network
from onestream.measure.parity.own_code import OwnCode
from onestream.measure.parity.report import Kind
from onestream.measure.parity.served import Served
from onestream.measure.parity.subject import CannotCompare, Item, Observation, Photo, Refused, Subject
from onestream.postprocess.average_precision import ap_installed
from onestream.preprocess import BadImage, Definition, Limits, PreprocessError, compile, first_difference
from onestream.preprocess.backends.base import REFERENCE, BackendName, Device
from onestream.preprocess.backends.table import BACKENDS
from onestream.preprocess.cuda.device import driver_visible
from onestream.serving.built.certificate import STAGES
from onestream.serving.pipeline import Pipeline
from onestream.wire.install import install_command


class Backend(Subject[Photo]):
    """One backend, with the definition compiled once for each stage. Raises as ``preprocess.compile`` does."""

    def __init__(
        self,
        definition: Definition,
        *,
        backend: BackendName,
        device: Device = "cpu",
        limits: Limits | None = None,
        name: str = "",
    ) -> None:
        super().__init__(
            name or f"{backend} ({device})", judged=True, backend=BACKENDS[backend].judged_as, device=device
        )
        self._compiled = {
            stage: compile(definition.stage(stage), backend=backend, device=device, limits=limits, max_batch_size=1)
            for stage in STAGES
        }

    def observe(self, photo: Photo) -> Observation:
        """All four stages."""
        samples = {}
        for stage, compiled in self._compiled.items():
            (sample,) = compiled.run([photo.data])
            if isinstance(sample, BadImage):
                raise Refused(str(sample))
            samples[stage] = sample
        return Observation(samples)

    def close(self) -> None:
        """Close all that was compiled."""
        for compiled in self._compiled.values():
            compiled.close()


def available_backends(definition: Definition, limits: Limits) -> tuple[list[Subject[Photo]], dict[str, str]]:
    """Every backend but the reference that can run the definition here, and why the others cannot, by name."""
    found: list[Subject[Photo]] = []
    absent: dict[str, str] = {}
    gpu = driver_visible()
    places = [(row.name, device) for row in BACKENDS.values() for device in row.devices if gpu or device == "cpu"]
    for backend, device in places:
        if backend == REFERENCE:
            continue
        try:
            found.append(Backend(definition, backend=backend, device=device, limits=limits))
        except (PreprocessError, RuntimeError) as error:  # DALI's own error on a GPU that cannot be used
            absent[f"{backend} ({device})"] = str(error)
    return found, absent


class Gathered(ABC, Generic[Item]):
    """The subjects of a run; ``stack`` closes them.

    ``libraries`` are the modules of the libraries that can be compared, ``kind`` and ``colors`` as in ``Report``;
    ``versions`` are those of libraries that are compared and compute no result of ours.
    """

    libraries: Mapping[str, str]
    kind: Kind = "photo"

    def __init__(self, pipeline: Pipeline, stack: ExitStack) -> None:
        self.pipeline, self._stack = pipeline, stack
        self._definition = pipeline.preprocess
        self.digest = self._definition.digest
        self.subjects: list[Subject[Item]] = []
        self.not_compared: dict[str, str] = {}
        self.problems: list[str] = []
        self.colors: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    @abstractmethod
    def reference(self, definition: Definition, *, name: str = "") -> Subject[Item]:
        """What is right by a definition."""

    @abstractmethod
    def backends(self) -> None:
        """Add every backend that runs here."""

    @abstractmethod
    def server(self, address: str) -> None:
        """Add a running server, by host:port of its gRPC service. Raises ``NotServed``."""

    @property
    @abstractmethod
    def served_models(self) -> list[str]:
        """What a server of our own must serve to be compared."""

    @abstractmethod
    def _library(self, name: str) -> Sequence[Subject[Item]]:
        """The usual code of a library. Raises ``BackendMissing``."""

    @abstractmethod
    def _own_code(self, where: str) -> Subject[Item]:
        """Code of the user's own, ``MODULE:NAME``. Raises ``NotATransform`` or ``CannotCompare``."""

    def network(self, repository: Path) -> Answering | None:
        """The built network; one of another definition is a problem, and its definition is compared instead."""
        built = Network.built(repository, self.pipeline)
        options = self.pipeline.postprocess
        what = "logits, top-1" if options.compares_outputs else options.parity_section
        if isinstance(built, str):
            self.not_compared[what] = built
            return None
        if built.definition.digest == self._definition.digest:
            if options.most_found and not ap_installed():
                self.not_compared["agreement AP"] = f"pycocotools is not installed: {install_command('detect')}"
            return built
        field = f", first difference: {first_difference(built.definition, self._definition)}"
        self.problems.append(
            other_definition("the built network", built.definition.digest, self._definition, field=field)
        )
        self.not_compared[what] = "the network was built with another definition"
        self._add(self.reference(built.definition, name="the built network's definition"))
        return None

    def other_code(self, asked: Sequence[str] | None) -> None:
        """Add the code asked for; the usual code of the libraries installed where nothing was asked."""
        if asked is None:
            for library, module in self.libraries.items():
                if importlib.util.find_spec(module) is not None:
                    try:
                        self._add(*self._library(library))
                    except PreprocessError as error:
                        self.not_compared[library] = str(error)
            return
        for name in asked:
            if name in self.libraries:
                self._add(*self._library(name))
            elif ":" in name:
                self._add(self._own_code(name))
            elif name != "none":
                allowed = ", ".join(self.libraries)
                raise CannotCompare(f"--against {name}: allowed are {allowed}, MODULE:NAME of your transform, and none")

    def start_server(self, repository: Path) -> str:
        """Start a server of our own on free ports, until the run ends; returns its address."""
        from onestream.serving.server.server import Server

        server = Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=self.served_models)
        return self._stack.enter_context(server).grpc_address

    def _add(self, *subjects: Subject[Item]) -> None:
        for subject in subjects:
            self._stack.callback(subject.close)
            self.subjects.append(subject)

    def _check_digests(self, digests: Mapping[str, str]) -> None:
        """A served model of another definition is a problem."""
        for model, digest in digests.items():
            if digest != self._definition.digest:
                self.problems.append(other_definition(f"the served model {model}", digest, self._definition))


def other_definition(what: str, digest: str, file: Definition, *, field: str = "") -> str:
    """The problem that something was built with another definition than the pipeline file's."""
    return (
        f"{what} has definition {digest[:12] or 'none'}, the pipeline file {file.digest[:12]}{field}; "
        "run onestream build"
    )


class GatheredForPhotos(Gathered[Photo]):
    """Subjects that take photos."""

    libraries = MODULES

    def reference(self, definition: Definition, *, name: str = "") -> Subject[Photo]:
        """See ``Gathered.reference``."""
        return Backend(definition, backend=REFERENCE, limits=self.pipeline.limits, name=name)

    def backends(self) -> None:
        """See ``Gathered.backends``."""
        found, absent = available_backends(self._definition, self.pipeline.limits)
        self._add(*found)
        self.not_compared |= absent

    def server(self, address: str) -> None:
        """See ``Gathered.server``."""
        served = Served(self.pipeline.name, address)
        for model, names in served.left_out.items():
            self.not_compared[model] = f"it takes {', '.join(names)} too, which photos alone do not give"
        self._check_digests(served.digests)
        if served.shows_any:
            self._add(served)
        else:
            served.close()

    @property
    def served_models(self) -> list[str]:
        """Both forms."""
        return [self.pipeline.name, f"{self.pipeline.name}_fused"]

    def _library(self, name: str) -> Sequence[Subject[Photo]]:
        return usual_code(next(library for library in LIBRARIES if library == name), self._definition)

    def _own_code(self, where: str) -> Subject[Photo]:
        return OwnCode(where, self._definition)
