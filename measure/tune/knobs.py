"""The options that are tuned, and the values worth trying: a pure function of the machine and of the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, ValidationError

from onestream.preprocess.backends.base import GpuBackendName
from onestream.preprocess.backends.table import BACKENDS
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.pipeline import CpuOptions, CpuPrecision, GpuOptions, ServingOptions
from onestream.serving.server.fit import instances_for

Device = Literal["cpu", "gpu"]
Value = int | float | str

_CPU_BATCHES = (1, 2, 4, 8, 16)
_GPU_BATCHES = (8, 16, 32, 64, 128, 256)
_MOST_THREADS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class Knob:
    """One field of ``ServingOptions`` and the values to try.

    ``field`` is its name, with a dot where it is a field of a field: ``gpu.decode``. Of ``ordered`` values the search
    tries neighbours of the best one; of others all. Among numbers a word, *cores* or *auto*, has its place at
    ``cores_stands_for``.
    """

    field: str
    values: tuple[Value, ...]
    ordered: bool = True
    cores_stands_for: int = 0

    def of(self, options: ServingOptions) -> Value:
        """The value in these options."""
        return value_of(options, self.field)

    def rank(self, value: Value) -> float:
        """A number to order values by."""
        return self.cores_stands_for if isinstance(value, str) else value


def knobs_for(
    device: Device,
    *,
    cores: int,
    concurrency: int,
    ensemble: bool,
    one_more: bool = False,
    less_precision: CpuPrecision = "float32",
    engines: Sequence[str] = (),
) -> tuple[Knob, ...]:
    """The knobs of a machine, the ones that usually matter most first.

    ``concurrency`` is the number of requests in flight: no batch can be larger. ``ensemble`` tells whether ``NAME`` is
    tuned in place of ``NAME_fused``, ``one_more`` whether its ``cpu_instances: cores`` makes a process more than there
    are cores, ``less_precision`` that in which the network was calibrated for a CPU, ``engines`` those for a CPU that
    are installed.
    """
    if device == "gpu":
        auto = GpuOptions().threads_for(cores)
        knobs = [
            Knob("gpu.decode", ("gpu", "hybrid", "cpu"), ordered=False),
            Knob("gpu.backend", get_args(GpuBackendName), ordered=False),
            Knob("gpu.max_batch_size", _up_to(concurrency, _GPU_BATCHES)),
            Knob("gpu.decode_threads", _up_to(cores, (1, 2, 4, 8)), cores_stands_for=auto),
            Knob("gpu.instances", (1, 2, 3)),
            Knob("gpu.decode_streams", (1, 2, 4, 8)),
            Knob("gpu.cpu_entropy_megapixels", (0.0, 0.25, 1.0)),
        ]
        if not ensemble:
            knobs.append(Knob("gpu.batches_in_flight", (1, 2, 3, 4)))
    else:
        counts = sorted({1, max(1, cores // 2), cores, cores + 1})
        meant = cores + 1 if one_more else instances_for(cores)
        instances = tuple("cores" if count == meant else count for count in counts)
        threads = tuple(sorted({*_up_to(cores, (1, 2, 4, 8, 16)), cores}))
        knobs = [
            Knob("max_batch_size", _up_to(concurrency, _CPU_BATCHES)),
            Knob("cpu_instances", instances, cores_stands_for=meant),
            Knob("cpu_threads", threads),
        ]
        if concurrency < cores:
            knobs.reverse()
        precisions = tuple(dict.fromkeys(("float32", less_precision)))
        knobs = [Knob("precision", precisions, ordered=False), Knob("cpu.engine", tuple(engines), False), *knobs]
    return tuple(knob for knob in knobs if len(knob.values) > 1)


def sensible(options: ServingOptions, *, device: Device, cores: int) -> bool:
    """Whether a setting is worth a measurement.

    A CPU with twice as many busy threads as cores only switches, and not every engine computes in bfloat16. Some of
    what a GPU is told has no effect elsewhere.
    """
    if device == "gpu":
        gpu, default = options.gpu, GpuOptions()
        on_streams = BACKENDS[gpu.backend].decodes_on_streams and gpu.decode != "cpu"
        return (on_streams or gpu.decode_streams == default.decode_streams) and (
            gpu.decode == "gpu" or gpu.cpu_entropy_megapixels == default.cpu_entropy_megapixels
        )
    if options.precision == "bf16" and not CPU_ENGINES[options.cpu.engine].in_bfloat16:
        return False
    processes = instances_for(cores) if options.cpu_instances == "cores" else options.cpu_instances
    return processes * options.cpu_threads <= _MOST_THREADS_PER_CORE * cores


def neighbours(knob: Knob, options: ServingOptions, *, up: bool) -> list[Value]:
    """Of an ordered knob, the values above (or below) the one in ``options``, nearest first."""
    current = knob.rank(knob.of(options))
    ranked = sorted((knob.rank(value), value) for value in knob.values)
    above = [value for rank, value in ranked if rank > current]
    below = [value for rank, value in ranked if rank < current]
    return above if up else below[::-1]


def with_value(options: ServingOptions, field: str, value: Value) -> ServingOptions | None:
    """The options, of a pipeline or a cascade, with one field changed; None where they do not allow it."""
    data = options.model_dump()
    *parents, last = field.split(".")
    target = data
    for parent in parents:
        target = target[parent]
    target[last] = value
    try:
        return type(options).model_validate(data)
    except ValidationError:
        return None


def value_of(options: ServingOptions, field: str) -> Value:
    """The value of a field, named as in ``Knob``."""
    found = _field(options, field)
    if not isinstance(found, (int, float, str)):
        raise TypeError(f"serving.{field} is {found!r}; expected a number or a word")
    return found


def settings(options: ServingOptions, knobs: tuple[Knob, ...]) -> dict[str, Value]:
    """The values of all knobs, by field."""
    return {knob.field: knob.of(options) for knob in knobs}


def differences(options: ServingOptions, before: ServingOptions) -> dict[str, object]:
    """The fields, named as in ``Knob``, whose values are others than before."""
    nested: dict[str, type[BaseModel]] = {"cpu": CpuOptions, "gpu": GpuOptions}
    fields = [field for field in ServingOptions.model_fields if field not in nested]
    fields += [f"{name}.{field}" for name, model in nested.items() for field in model.model_fields]
    pairs = {field: (_field(options, field), _field(before, field)) for field in fields}
    return {field: value for field, (value, was) in pairs.items() if value != was}


def text(values: Mapping[str, object]) -> str:
    """Settings in one line, such as ``max_batch_size 8, cpu_instances cores``."""
    return ", ".join(f"{field} {value}" for field, value in values.items())


def _field(options: ServingOptions, name: str) -> object:
    found: object = options
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _up_to(most: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value for value in values if value <= most) or values[:1]
