"""One run of a report: finds what can be compared, measures it, and closes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from onestream.measure.image_files import expand
from onestream.measure.parity import heatmap, photos
from onestream.measure.parity.backends import Backend, available_backends
from onestream.measure.parity.bench import Bench
from onestream.measure.parity.library_baselines import LIBRARIES, MODULES, usual_code
from onestream.measure.parity.network import Network
from onestream.measure.parity.own_code import NotATransform, OwnCode
from onestream.measure.parity.report import Report
from onestream.measure.parity.served import NotServed, Served
from onestream.measure.parity.subject import Photo, Subject
from onestream.preprocess import Definition, PreprocessError, first_difference
from onestream.serving.building.certificate import library_versions
from onestream.serving.errors import ServingError
from onestream.serving.pipeline import Pipeline

Progress = Callable[[str, int, int | None], None]
"""Takes what is being done, how many photos are done, and of how many (None: not known)."""


class CannotCompare(Exception):
    """Nothing can be compared; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare. ``images`` empty takes the bundled photos; ``against`` None takes the libraries installed.

    ``against`` holds names of libraries (``others.LIBRARIES``), ``MODULE:NAME`` of transforms, or *none*.
    """

    pipeline_file: Path
    images: Sequence[str] = ()
    repository: Path = Path("model_repository")
    url: str | None = None
    serve: bool = False
    against: Sequence[str] | None = None
    heatmap: Path | None = None


def run(options: Options, *, progress: Progress = lambda _text, _done, _total: None) -> Report:
    """Make the report. Raises ``CannotCompare``."""
    try:
        return _run(options, progress)
    except (PreprocessError, ServingError, NotServed, NotATransform) as error:
        raise CannotCompare(str(error)) from None


def _run(options: Options, progress: Progress) -> Report:
    pipeline = Pipeline.from_file(options.pipeline_file)
    definition = pipeline.preprocess
    if options.heatmap is not None:
        heatmap.check_installed()
    found, unreadable = _photos(options.images)
    with ExitStack() as stack:
        gathered = _Gathered(pipeline, stack)
        network = gathered.network(options.repository)
        gathered.backends()
        if options.serve:
            progress("starting Triton", 0, None)
            gathered.start_server(options.repository)
        elif options.url is not None:
            gathered.server(options.url)
        gathered.other_code(options.against)
        reference = Backend(definition, backend="reference", limits=pipeline.limits)
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            progress("comparing", done, len(found))

        subjects = gathered.subjects
        measured, bad = Bench(definition, reference, network).measure(subjects, found, on_photo=count)
        report = Report(
            pipeline=pipeline.name,
            definition_digest=definition.digest,
            versions=library_versions(),
            photos=[photo.name for photo in found] + list(unreadable),
            bad_images=unreadable | bad,
            problems=gathered.problems,
            not_compared=gathered.not_compared,
            subjects=measured,
        )
        if not report.compared:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in report.bad_images.items())
            raise CannotCompare(f"none of the images can be used: {reasons}")
        if options.heatmap is not None:
            progress("drawing", 0, None)
            heatmap.draw(options.heatmap, report, reference, subjects, found)
        return report


def _photos(images: Sequence[str]) -> tuple[list[Photo], dict[str, str]]:
    if not images:
        return photos.bundled(), {}
    paths = expand(images)
    if not paths:
        raise CannotCompare(f"no images in {', '.join(images)}")
    return photos.read(paths)


class _Gathered:
    """The subjects of a run, and why something is missing or wrong."""

    def __init__(self, pipeline: Pipeline, stack: ExitStack) -> None:
        self._pipeline, self._stack = pipeline, stack
        self._definition = pipeline.preprocess
        self.subjects: list[Subject] = []
        self.not_compared: dict[str, str] = {}
        self.problems: list[str] = []

    def _add(self, subject: Subject) -> None:
        self._stack.callback(subject.close)
        self.subjects.append(subject)

    def _add_all(self, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            self._add(subject)

    def network(self, repository: Path) -> Network | None:
        """The built network; one of another definition is a problem, and its definition is compared instead."""
        built = Network.built(repository, self._pipeline.name)
        if isinstance(built, str):
            self.not_compared["logits, top-1"] = built
            return None
        if built.definition.digest == self._definition.digest:
            return built
        self.problems.append(self._other_definition("the built network", built.definition.digest, built.definition))
        self.not_compared["logits, top-1"] = "the network was built with another definition"
        name = "the built network's definition"
        self._add(Backend(built.definition, backend="reference", limits=self._pipeline.limits, name=name))
        return None

    def _other_definition(self, what: str, digest: str, other: Definition | None = None) -> str:
        field = f", first difference: {first_difference(other, self._definition)}" if other is not None else ""
        return (
            f"{what} has definition {digest[:12] or 'none'}, the pipeline file {self._definition.digest[:12]}{field}; "
            "run onestream build"
        )

    def backends(self) -> None:
        """Every backend that runs here."""
        found, absent = available_backends(self._definition, self._pipeline.limits)
        for subject in found:
            self._add(subject)
        self.not_compared |= absent

    def other_code(self, asked: Sequence[str] | None) -> None:
        """The code asked for; the usual code of the libraries installed where nothing was asked."""
        if asked is None:
            for library in LIBRARIES:
                if importlib.util.find_spec(MODULES[library]) is not None:
                    try:
                        self._add_all(usual_code(library, self._definition))
                    except PreprocessError as error:
                        self.not_compared[library] = str(error)
            return
        for name in asked:
            known = next((library for library in LIBRARIES if library == name), None)
            if known is not None:
                self._add_all(usual_code(known, self._definition))
            elif ":" in name:
                self._add(OwnCode(name, self._definition))
            elif name != "none":
                allowed = ", ".join(LIBRARIES)
                raise CannotCompare(f"--against {name}: allowed are {allowed}, MODULE:NAME of your transform, and none")

    def start_server(self, repository: Path) -> None:
        """A server of our own on free ports, until the run ends."""
        from onestream.serving.server.server import Server

        name = self._pipeline.name
        server = Server(repository, http_port=0, grpc_port=0, metrics_port=0, models=[name, f"{name}_fused"])
        self.server(self._stack.enter_context(server).grpc_address)

    def server(self, address: str) -> None:
        """A running server."""
        served = Served(self._pipeline.name, address)
        self._add(served)
        for model, digest in served.digests.items():
            if digest != self._definition.digest:
                self.problems.append(self._other_definition(f"the served model {model}", digest))
