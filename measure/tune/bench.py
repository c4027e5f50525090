"""Measures settings side by side: a real server for each, rounds in which every one is measured, none always first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import get_args

import yaml

from onestream.measure.built_networks import take_over
from onestream.measure.tune.decide import ROUNDS, Measurement, hopeless
from onestream.measure.tune.knobs import Device, differences, text, with_value
from onestream.measure.tune.loads import Load, LoadFailed
from onestream.measure.tune.search import OutOfTime, SettingFailed
from onestream.postprocess.agreement import Agreement
from onestream.preprocess import PreprocessError
from onestream.serving.building.build import Built, build
from onestream.serving.built.here import price_of
from onestream.serving.cascade import read_file
from onestream.serving.engine.network_files import NETWORK_FILE, float_beside
from onestream.serving.errors import BadPipeline, ServingError
from onestream.serving.pipeline import CpuPrecision, ServingOptions
from onestream.serving.server.server import Server

_SHORTEST_S, _LONGEST_S = 0.3, 10.0
_LEAST_ANSWERS = 20
"""In one measurement, as far as the longest allows: of fewer, the mixture of images decides."""
_COMPARISONS_IN_A_BUDGET = 10
_SHARE_OF_ONE = (2 + 3) / (2 * _COMPARISONS_IN_A_BUDGET)
"""Of the budget: measurements of one comparison of two settings, and of the last one of three."""
_WARM_UP_S = 1.0
# The first start on a GPU builds the network's engine, which takes minutes.
_STARTUP_TIMEOUT_S: dict[Device, float | None] = {"cpu": None, "gpu": 1200.0}


def measurement_s(budget_s: float) -> float:
    """Seconds of one measurement: so that ten comparisons take the whole budget, if servers took no time to start."""
    return min(max(budget_s / (_COMPARISONS_IN_A_BUDGET * ROUNDS * 2), _SHORTEST_S), _LONGEST_S)


class Workshop:
    """Builds a repository for each setting, as ``onestream build`` would; the network is built once and linked.

    ``folder`` takes them. ``built`` is a repository in which the network may have been built before; it is read only.
    """

    def __init__(
        self,
        pipeline_file: Path,
        *,
        onnx_file: Path | None,
        onnx_files: Mapping[str, Path] = MappingProxyType({}),
        folder: Path,
        built: Path,
    ) -> None:
        self._file, self._folder = pipeline_file, folder
        self._before = built
        self._built: dict[CpuPrecision, Path] = dict.fromkeys(get_args(CpuPrecision), built)
        self._onnx_file, self._onnx_files = onnx_file, onnx_files
        self._name = read_file(pipeline_file).name
        self._repositories: dict[ServingOptions, Built] = {}
        self._numbers = count()

    def repository(self, options: ServingOptions, *, progress: Callable[[str], None] = lambda _: None) -> Path:
        """The repository of a setting. Raises ``ServingError`` or ``PreprocessError``."""
        return self._build(options, progress).folder

    def agreements(self, options: ServingOptions) -> tuple[CpuPrecision, dict[str, Agreement]]:
        """The precision below float32 in which the networks were calibrated before, and how far they agree with it.

        That is by the pipeline or its stages, as their certificates say; empty, in float32, where they were not.
        """
        precision: CpuPrecision = options.precision
        if precision == "float32":
            found = sorted(self._before.glob(f"{self._name}_*/*/{float_beside(Path(NETWORK_FILE)).name}"))
            if not found:
                return "float32", {}
            precision = price_of(found[0].with_name(NETWORK_FILE)).precision
        changed = with_value(options, "precision", precision)
        assert changed is not None
        try:
            built = self._build(changed, lambda _: None)
        except BadPipeline:
            return "float32", {}
        return precision, {name: found.agreement for name, found in built.quantizations.items()}

    def _build(self, options: ServingOptions, progress: Callable[[str], None]) -> Built:
        if options not in self._repositories:
            folder = self._folder / str(next(self._numbers))
            repository = folder / "model_repository"
            take_over(self._name, self._built[options.precision], repository)
            self._repositories[options] = build(
                self._pipeline_file(options, folder),
                folder=repository,
                onnx_file=self._onnx_file,
                onnx_files=self._onnx_files,
                beside=self._file.parent,
                progress=progress,
            )
            self._built[options.precision] = repository
        return self._repositories[options]

    def _pipeline_file(self, options: ServingOptions, folder: Path) -> Path:
        data = yaml.safe_load(self._file.read_text(encoding="utf-8"))
        data |= {"name": self._name, "serving": options.model_dump(mode="json")}
        file = folder / "pipelines" / self._file.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        return file


class Servers:
    """Running servers by setting, each with one model and what it needs. A context manager that stops them all."""

    def __init__(self, workshop: Workshop, *, model: str, device: Device) -> None:
        self._workshop, self._model, self._device = workshop, model, device
        self._running: dict[ServingOptions, Server] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep(())

    def __contains__(self, options: ServingOptions) -> bool:
        return options in self._running

    def get(self, options: ServingOptions) -> Server:
        """The server of a setting, started where it does not run. Raises ``ServingError`` or ``PreprocessError``."""
        if options not in self._running:
            server = Server(
                self._workshop.repository(options),
                http_port=0,
                grpc_port=0,
                metrics_port=0,
                device=self._device,
                models=[self._model],
                startup_timeout_s=_STARTUP_TIMEOUT_S[self._device],
            )
            server.start()
            self._running[options] = server
        return self._running[options]

    def keep(self, settings: Sequence[ServingOptions]) -> None:
        """Stop the servers of all other settings."""
        for options in [running for running in self._running if running not in settings]:
            self._running.pop(options).stop()


class Bench:
    """Compares settings under a load until a deadline. ``say`` is told what happens, in a few words."""

    def __init__(
        self,
        servers: Servers,
        load: Load,
        *,
        model: str,
        budget_s: float,
        deadline: float,
        p99_ms: float | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._servers, self._load, self._model = servers, load, model
        self._began, self._deadline, self._p99_ms, self._say = deadline - budget_s, deadline, p99_ms, say
        self._start_s = self._round_s = 0.0
        self.duration_s = measurement_s(budget_s)
        self.least_minutes = 0
        """With which one setting is tried, after ``warm_up``: whole minutes, for measurements get longer with them."""

    def warm_up(self, start: ServingOptions, *, start_s: float) -> Measurement:
        """Measure the start once, and how long that takes; ``start_s`` is what its server's start took.

        Where answers are few, as those of cascades, measurements become longer. Raises ``SettingFailed``.
        """
        self._measure(start, min(_WARM_UP_S, self.duration_s))
        began = monotonic()
        sample = self._measure(start)
        self._round_s = monotonic() - began
        needed_s = min(_LEAST_ANSWERS / max(sample.images_per_s, 1e-3), _LONGEST_S)
        if needed_s > self.duration_s:
            self._round_s += needed_s - self.duration_s
            self.duration_s = needed_s
        self._start_s = start_s + _WARM_UP_S
        least_s = monotonic() - self._began + self._needed_s(2)
        self.least_minutes = math.ceil(least_s / (1 - _SHARE_OF_ONE) / 60)
        return sample

    def _needed_s(self, settings: int) -> float:
        """Seconds of a comparison, and of what follows: what is found is measured again, with start and defaults."""
        return 3 * self._start_s + ROUNDS * (settings + 3) * self._round_s

    def __call__(self, settings: Sequence[ServingOptions], *, final: bool = False) -> list[list[Measurement]]:
        """Measure settings in interleaved rounds, as ``search.Compare`` describes."""
        if not final and monotonic() + self._needed_s(len(settings)) > self._deadline:
            raise OutOfTime
        self._servers.keep(settings)
        for options in settings:
            if options not in self._servers:
                self._start(options)
        what = "what was found, again" if final else text(differences(settings[0], settings[1]))
        samples: list[list[Measurement]] = [[] for _ in settings]
        for index in range(ROUNDS):
            self._say(f"{what}: round {index + 1} of {ROUNDS}{_speeds(samples)}")
            order = list(range(len(settings)))
            for which in order if index % 2 == 0 else order[::-1]:
                samples[which].append(self._measure(settings[which]))
            if not final and hopeless(samples[0], samples[1], p99_ms=self._p99_ms):
                break
        return samples

    def _start(self, options: ServingOptions) -> None:
        self._say("starting a server")
        try:
            self._servers.get(options)
        except (ServingError, PreprocessError) as error:
            raise SettingFailed(options, str(error)) from None
        self._measure(options, min(_WARM_UP_S, self.duration_s))

    def _measure(self, options: ServingOptions, duration_s: float | None = None) -> Measurement:
        try:
            server = self._servers.get(options)
            return self._load.measure(server.grpc_address, self._model, duration_s=duration_s or self.duration_s)
        except LoadFailed as error:
            raise SettingFailed(options, str(error)) from None


def _speeds(samples: list[list[Measurement]]) -> str:
    """The last speeds side by side; empty before the first round."""
    speeds = " against ".join(f"{one[-1].images_per_s:.0f}" for one in samples if one)
    return speeds and f", {speeds} images/s"
