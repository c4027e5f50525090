"""Pipelines and models that are loaded and unloaded while a server runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from onestream.serving.built.versions import (
    FORMS,
    VIDEO,
    models_in,
    networks_asked,
    parameters_of,
    version_of,
    version_steps,
)
from onestream.serving.errors import ServingError
from onestream.serving.server.errors import ServerError
from onestream.serving.server.rollout import LOAD_TIMEOUT_S, READY
from onestream.serving.server.triton.control import ControlError
from onestream.serving.server.triton.process import TritonProcess


class Loading:
    """Changes what one server serves, until it ends. For one thread at a time.

    Args:
        triton: gives the tritonserver that runs now.
        announce: receives one line for every change.
    """

    def __init__(self, triton: Callable[[], TritonProcess], *, announce: Callable[[str], None]) -> None:
        self._triton, self._announce = triton, announce
        self._changes: dict[str, bool] = {}

    def models(self) -> list[dict[str, str]]:
        """The models of the repository as it is now, and what else is loaded, by name.

        Each has a *name*, a *state* of Triton's or ``NOT LOADED``, its *pipeline* and the *reason* of a failure, both
        empty where there is none.
        """
        repository, states = self._repository, self._triton().model_states()
        return [
            {
                "name": name,
                "state": (states[name].state if name in states else "") or "NOT LOADED",
                "pipeline": parameters_of(repository, name).get("pipeline", ""),
                "reason": states[name].reason if name in states else "",
            }
            for name in sorted({*models_in(repository), *(name for name, state in states.items() if state.state)})
        ]

    def load(self, name: str) -> list[str]:
        """Load a pipeline with its forms, or one model, as the repository holds it now; returns what was loaded.

        Raises:
            ServingError: it is not there, does not load, or another version of it is served; what was served stays.
        """
        served = self._triton().view.served(name)
        if served != 1:
            raise ServingError(f"version {served} of {name} is served; change versions with `onestream rollout`")
        models, before, triton = self._asked(name), self._ready(), self._triton()
        new = [model for model in self._own(name) if model not in before]
        triton.view.bring(new)
        try:
            for model in models:
                triton.control.load(model, timeout_s=LOAD_TIMEOUT_S)
        except ControlError as error:
            self._undo(new, before)
            raise ServerError(f"{model} does not load: {error}") from None
        self._changes[name] = True
        self._announce(f"{name}: loaded {', '.join(models)}")
        return models

    def unload(self, name: str) -> list[str]:
        """Unload a pipeline with its forms and steps, or one model; requests inside are answered.

        Returns what was unloaded. Raises ``ServingError`` where it is not loaded, or a loaded ensemble needs it.
        """
        ready = self._ready()
        loaded = [model for model in self._own(name) if model in ready]
        if not loaded:
            raise ServingError(f"{name} is not loaded; loaded are {', '.join(ready) or 'no models'}")
        for ensemble, steps in self._triton().control.ensembles().items():
            if ensemble not in loaded and (needed := sorted(steps & set(loaded))):
                raise ServingError(f"{ensemble} needs {', '.join(needed)}; unload that first")
        for model in loaded:
            self._triton().control.unload(model)
        self._changes[name] = False
        self._announce(f"{name}: unloaded {', '.join(loaded)}")
        return loaded

    def again(self) -> None:
        """Make the same changes to a tritonserver that was started in the place of another."""
        for name, is_loaded in list(self._changes.items()):
            try:
                (self.load if is_loaded else self.unload)(name)
            except (ServingError, ControlError) as error:
                self._announce(f"{name}: {error}")

    @property
    def _repository(self) -> Path:
        return self._triton().view.repository

    def _asked(self, name: str) -> list[str]:
        """What is loaded by name, in this order: networks before those that ask them, the steps with their ensemble."""
        repository = self._repository
        if not (repository / name / "config.pbtxt").is_file():
            raise ServingError(
                f"{repository} holds no model {name}, only: {', '.join(models_in(repository)) or 'none'}"
            )
        if parameters_of(repository, name).get("pipeline") != name or version_of(repository, name):
            return [name]
        forms = [form for form in (f"{name}{end}" for end in (*FORMS, VIDEO)) if (repository / form).is_dir()]
        networks = [network for form in forms for network in networks_asked(repository, form)]
        return list(dict.fromkeys([*networks, *forms]))

    def _own(self, name: str) -> list[str]:
        """All that is loaded for a name, in the order in which it is unloaded."""
        return list(dict.fromkeys([*reversed(self._asked(name)), *version_steps(self._repository, name, 1)]))

    def _undo(self, new: Sequence[str], before: Sequence[str]) -> None:
        """Unload what was begun. Triton is not ready while a load has failed, until something loads in its place."""
        triton, ready = self._triton(), self._ready()
        for model in new:
            with contextlib.suppress(ControlError):
                if model not in ready and before:
                    triton.view.stand_in(model, before[0])
                    triton.control.load(model, timeout_s=LOAD_TIMEOUT_S)
                triton.control.unload(model)

    def _ready(self) -> list[str]:
        return sorted(name for name, state in self._triton().model_states().items() if state.state == READY)
