"""The server's part of a rollout: it loads a version beside the served one, switches, keeps it or returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from onestream.serving.built.versions import (
    Pin,
    built_versions,
    networks_asked,
    read_pins,
    version_forms,
    version_name,
    version_steps,
    write_pin,
)
from onestream.serving.errors import ServingError
from onestream.serving.server.errors import ServerError
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.model_processes import find_model_processes
from onestream.serving.server.triton.process import TritonProcess

LOAD_TIMEOUT_S = 120.0
READY = "READY"
_ANSWERED_TIMEOUT_S = 600.0
"""More than the pages take that wait for a cascade; a process that hangs ends itself before (``models.deadline``)."""
_POLL_S = 0.1


class Rollout:
    """One rollout of one pipeline. ``end`` it, however it went: what was not kept is undone.

    Args:
        triton: gives the tritonserver that runs now.
        pipeline: its name.
        announce: receives one line for every change of what is served.
    """

    def __init__(self, triton: Callable[[], TritonProcess], pipeline: str, *, announce: Callable[[str], None]) -> None:
        self._triton = triton
        self._pipeline = pipeline
        self._announce = announce
        self._before = self.serving

    @property
    def serving(self) -> int:
        """The version that clients get now."""
        return self._triton().view.served(self._pipeline)

    def status(self) -> dict[str, object]:
        """The served version, the one before it, all that were built, and the address of the server's gRPC service."""
        repository = self._repository
        pin = read_pins(repository).get(self._pipeline, Pin())
        built = built_versions(repository, self._pipeline)
        if not built:
            raise ServingError(f"{repository} holds no pipeline {self._pipeline}")
        endpoints = self._triton().endpoints
        return {
            "serving": self.serving,
            "url": f"{endpoints.reachable_host}:{endpoints.grpc_port}",
            "previous": pin.previous,
            "built": built,
            "repository": str(repository.resolve()),
        }

    def load(self, version: int) -> None:
        """Load a version beside the one that is served, and wait until Triton has warmed it up.

        Raises:
            ServingError: it was not built or does not load; then nothing of it stays.
        """
        if version == self.serving:
            raise ServingError(f"version {version} of {self._pipeline} is what is served now")
        try:
            self._load(version)
        except ServingError:
            self._unload(version)
            self._clear_failures(version)
            raise

    def switch(self, version: int) -> None:
        """Let the pipeline's name mean a version that was loaded.

        Raises:
            ServingError: it could not; the version from before is served.
        """
        old = self.serving
        try:
            self._switch(version)
        except ServingError as error:
            self._switch(old)
            raise ServingError(f"the switch failed, version {old} is served again: {error}") from None

    def keep(self) -> None:
        """Pin the version that is served, for the next start too, and unload the others.

        Raises:
            ServingError: the pin cannot be written; then nothing is changed.
        """
        pin = Pin(version=self.serving, previous=self._before if self._before != self.serving else None)
        try:
            write_pin(self._repository, self._pipeline, pin)
        except OSError as error:
            raise ServingError(f"the pin cannot be written: {error.strerror}") from None
        self._before = self.serving
        self._unload_others()

    def end(self) -> None:
        """Return to the version from before where the new one was not kept, and unload what is not served."""
        try:
            if self.serving != self._before:
                self._switch(self._before)
            self._unload_others()
        except ServingError as error:
            self._announce(f"{self._pipeline}: could not return to version {self._before}: {error}")

    @property
    def _repository(self) -> Path:
        return self._triton().view.repository

    def _steps(self, version: int) -> list[str]:
        return version_steps(self._repository, self._pipeline, version)

    def _switch(self, version: int) -> None:
        self._load(version)
        triton = self._triton()
        for model in triton.view.point(self._pipeline, version):
            self._control(triton.control.load, model)
        self._announce(f"{self._pipeline}: version {version} is served")

    def _load(self, version: int) -> None:
        triton = self._triton()
        models = [*version_forms(self._pipeline, version), *self._steps(version)]
        if self._loaded(models) == models:
            return
        failure: ServingError | None = None
        for model in triton.view.add(self._pipeline, version):
            try:
                self._control(triton.control.load, model)
            except ServerError as error:
                failure = failure or error
        triton.check_loaded(models)
        if failure:
            raise failure

    def _unload_others(self) -> None:
        for version in built_versions(self._repository, self._pipeline):
            if version != self.serving:
                self._unload(version)

    def _unload(self, version: int) -> None:
        """The forms first, then what they need, where that is not what is served."""
        self._unload_models(version_forms(self._pipeline, version))
        if version != self.serving:
            self._wait_until_answered(version)
            self._unload_models(self._steps(version))

    def _unload_models(self, models: Sequence[str]) -> None:
        triton = self._triton()
        for model in self._known(models):
            try:
                triton.control.unload(model)
            except ControlError as error:
                raise ServerError(str(error)) from None

    def _wait_until_answered(self, version: int) -> None:
        """Wait for the requests inside a version that asks its networks by itself.

        Triton ends a process when it has answered them. Of the steps of an ensemble it waits by itself, of the networks
        that a process asks it knows nothing.
        """
        if not networks_asked(self._repository, version_name(self._pipeline, version)):
            return
        # The name that clients call was version 1 itself until the first switch; since then it has no process.
        asking = {version_forms(self._pipeline, version)[0], *([self._pipeline] if version == 1 else [])}
        triton = self._triton()
        deadline = time.monotonic() + _ANSWERED_TIMEOUT_S
        while time.monotonic() < deadline:
            if not any(process.model in asking for process in find_model_processes(triton.pid).running):
                return
            time.sleep(_POLL_S)

    def _clear_failures(self, version: int) -> None:
        """Make the server ready again, which for Triton it is not while a load has failed, even of an unloaded model.

        Something that loads, in the place of what does not, is the only way to make Triton forget that.
        """
        triton = self._triton()
        for model in self._known([*version_forms(self._pipeline, version), *self._steps(version)]):
            triton.view.stand_in(model, self._pipeline)
            self._control(triton.control.load, model)
        self._unload(version)

    def _loaded(self, models: Sequence[str]) -> list[str]:
        states = self._triton().model_states()
        return [model for model in models if model in states and states[model].state == READY]

    def _known(self, models: Sequence[str]) -> list[str]:
        states = self._triton().model_states()
        return [model for model in models if model in states and states[model].state]

    def _control(self, method: Callable[..., None], model: str) -> None:
        try:
            method(model, timeout_s=LOAD_TIMEOUT_S)
        except ControlError as error:
            raise ServerError(f"model '{model}' failed to load: {error}") from None
