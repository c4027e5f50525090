"""The server's statistics of a model, as numbers that can be subtracted.

Triton counts from the moment a model is loaded. Two snapshots and their difference tell about the time
between them::

    before = client.statistics("classify")
    ...                                              # send images
    spent = client.statistics("classify") - before
    for step in spent.steps:
        print(step.model, step.compute_infer_ms, "ms")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onestream.client import fields

_PHASES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Who answers at an address: ``name`` and ``version`` are the server's own words."""

    url: str
    name: str
    version: str
    extensions: tuple[str, ...]

    @classmethod
    def from_wire(cls, url: str, said: Mapping[str, Any]) -> ServerInfo:
        """Who answers at ``url``, from the server's metadata. Raises UnexpectedResponse for what is none."""
        extensions = fields.sequence(said.get("extensions", ()), "the server's extensions")
        return cls(
            url=url,
            name=fields.text(said.get("name", ""), "the server's name"),
            version=fields.text(said.get("version", ""), "the server's version"),
            extensions=tuple(fields.text(extension, "an extension") for extension in extensions),
        )


@dataclass(frozen=True, slots=True)
class Phase:
    """A count of events, and the time that they took altogether."""

    count: int = 0
    total_ns: int = 0

    @property
    def mean_ms(self) -> float:
        """Milliseconds each time; 0 when it never happened."""
        return self.total_ns / self.count / 1e6 if self.count else 0.0

    def __sub__(self, earlier: Phase) -> Phase:
        return Phase(self.count - earlier.count, self.total_ns - earlier.total_ns)


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Counts and times of one model, and of the models it calls when it is an ensemble.

    A request that ran in a batch counts the whole batch's time, since that is how long it waited: the ``_ms``
    values are means over requests and say what a request experienced. ``inference_count`` counts images,
    ``execution_count`` counts batches, so their ratio is the mean batch size. Both of an ensemble count
    requests, because an ensemble does not execute anything itself. Triton 2.51 counts an image that a
    Python model refuses as a success of that model, and twice among the failures of the ensemble around it.
    """

    model: str
    inference_count: int
    execution_count: int
    success: Phase
    fail: Phase
    queue: Phase
    compute_input: Phase
    compute_infer: Phase
    compute_output: Phase
    steps: tuple[ModelStatistics, ...] = ()

    @property
    def request_ms(self) -> float:
        """From the request's arrival at the model until its answer, per successful request."""
        return self.success.mean_ms

    @property
    def queue_ms(self) -> float:
        """Waiting for an instance and for batch-mates, per request."""
        return self.queue.mean_ms

    @property
    def compute_input_ms(self) -> float:
        """Gathering the inputs, per request."""
        return self.compute_input.mean_ms

    @property
    def compute_infer_ms(self) -> float:
        """The model itself, per request."""
        return self.compute_infer.mean_ms

    @property
    def compute_output_ms(self) -> float:
        """Handing out the outputs, per request."""
        return self.compute_output.mean_ms

    @property
    def mean_batch_size(self) -> float:
        """Images per execution; 0 when nothing was executed."""
        return self.inference_count / self.execution_count if self.execution_count else 0.0

    def __sub__(self, earlier: ModelStatistics) -> ModelStatistics:
        """The statistics since ``earlier``, a snapshot of the same model.

        Raises ValueError for another model or other steps, and when counts went down, which means that
        the model was loaded anew in between.
        """
        if self.model != earlier.model or len(self.steps) != len(earlier.steps):
            raise ValueError(f"snapshots of different models: {earlier.model!r} and {self.model!r}")
        if self.inference_count < earlier.inference_count:
            raise ValueError(
                f"{self.model!r} was loaded anew between the snapshots: {earlier.inference_count} inferences "
                f"before, {self.inference_count} now"
            )
        return ModelStatistics(
            model=self.model,
            inference_count=self.inference_count - earlier.inference_count,
            execution_count=self.execution_count - earlier.execution_count,
            **{name: getattr(self, name) - getattr(earlier, name) for name in _PHASES},
            steps=tuple(now - then for now, then in zip(self.steps, earlier.steps, strict=True)),
        )

    @classmethod
    def from_wire(
        cls, model: str, versions: Iterable[Mapping[str, Any]], *, steps: tuple[ModelStatistics, ...] = ()
    ) -> ModelStatistics:
        """The sum over the served versions, each as Triton's statistics extension writes it in JSON.

        Raises UnexpectedResponse for what is none.
        """
        listed = fields.sequence(list(versions), "the statistics of the versions")
        rows = [fields.mapping(row, "the statistics of a version") for row in listed]
        return cls(
            model=model,
            inference_count=sum(fields.long(row.get("inference_count", 0), "inference_count") for row in rows),
            execution_count=sum(fields.long(row.get("execution_count", 0), "execution_count") for row in rows),
            **{name: _sum_phase(rows, name) for name in _PHASES},
            steps=steps,
        )


def _sum_phase(rows: Iterable[Mapping[str, Any]], name: str) -> Phase:
    times = [fields.mapping(row.get("inference_stats", {}), "inference_stats") for row in rows]
    parts = [fields.mapping(time.get(name, {}), name) for time in times]
    return Phase(
        count=sum(fields.long(part.get("count", 0), f"the count of {name}") for part in parts),
        total_ns=sum(fields.long(part.get("ns", 0), f"the ns of {name}") for part in parts),
    )
