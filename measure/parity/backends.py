"""Our own backends as subjects."""

from __future__ import annotations

from onestream.measure.parity.subject import Observation, Photo, Refused, Subject
from onestream.preprocess import BadImage, Definition, Limits, PreprocessError, compile
from onestream.preprocess.backends.base import BackendName, Device
from onestream.preprocess.cuda.device import driver_visible
from onestream.serving.built.certificate import STAGES


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
        # The reference, of another definition, is judged as the backend nearest to it.
        judge: BackendName = "dali" if backend == "reference" else backend
        super().__init__(name or f"{backend} ({device})", judged=True, backend=judge, device=device)
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
    places: list[tuple[BackendName, Device]] = [("dali", "cpu")]
    if driver_visible():
        places += [("dali", "gpu"), ("cvcuda", "gpu")]
    for backend, device in places:
        try:
            found.append(Backend(definition, backend=backend, device=device, limits=limits))
        except (PreprocessError, RuntimeError) as error:  # DALI's own error on a GPU that cannot be used
            absent[f"{backend} ({device})"] = str(error)
    return found, absent
