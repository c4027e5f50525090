"""The GPU memory of tensors that wait between the steps of ensembles: Triton's CUDA memory pool.

A tensor that finds the pool full goes through the host's memory. Triton takes pinned memory first, which its Python
backend cannot fill from a GPU (server issues 7148 and 8177, read in r26.06): the copy fails, is only logged, and the
response leaves with what was there before. So there must be no pinned memory (``TRITON_FLAGS``); from other memory the
pixels are right, and late.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from onestream.serving.built.triton_config import CONFIG_FOR, from_text

NO_PINNED_MEMORY = "--pinned-memory-pool-byte-size=0"
TRITONS_POOL = 64 << 20
"""Triton's default, which everything else has: frames of videos, and gaps between tensors of different sizes."""
_BATCHES_THAT_WAIT, _LEAST_THAT_WAIT = 4, 256
_MUCH = 1 << 30
_GRANULE = 512
"""Of the pool's allocator, in bytes."""
_SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "FP16": 2, "BF16": 2, "UINT16": 2, "INT16": 2, "FP64": 8, "INT64": 8}
_OTHER_SIZE = 4

Pools = dict[int | None, int]
"""Bytes by the number of a GPU; None is what each of the GPUs needs on top, whose tensors are on all."""


def usual_queue(max_batch_size: int) -> int:
    """How many requests of a priority may wait where a build decides; assumed of a queue without a bound."""
    return max(_BATCHES_THAT_WAIT * max_batch_size, _LEAST_THAT_WAIT)


def pools(configs: Mapping[str, ModelConfig]) -> Pools:
    """The memory of what may wait between the steps of all ensembles, at most; empty where nothing waits on a GPU.

    A step's queue, the batches that it works on and the one that is being made up, and the batches that the step before
    is giving away, are each counted in full. ``configs`` are those for a GPU by their models.
    """
    found: Pools = {}
    for maker, tensor, taker in _handed_over(configs):
        size = _bytes_of(maker, tensor) * _most_waiting(maker, taker)
        for gpu in {gpu for group in maker.instance_group for gpu in (group.gpus or [None])}:
            found[gpu] = found.get(gpu, 0) + size
    return found


def largest(wanted: Pools) -> int:
    """The bytes of the pool of the GPU that needs most."""
    return (
        TRITONS_POOL + wanted.get(None, 0) + max((size for gpu, size in wanted.items() if gpu is not None), default=0)
    )


def unbounded(configs: Mapping[str, ModelConfig]) -> str:
    """What no pool can hold, in words; empty where every queue before a model on a GPU has a bound."""
    names = sorted({taker.name for _, _, taker in _handed_over(configs) if _is_on_gpu(taker) and not _queue(taker)})
    if not names:
        return ""
    return (
        f"any number of pictures may wait before {', '.join(names)}, and those that find the pool full go through the "
        "host's memory"
    )


def notes(configs: Mapping[str, ModelConfig]) -> list[str]:
    """What the builder of a repository should know, a line each; nothing where queues are bounded and memory small."""
    found, size = [], largest(pools(configs))
    if reason := unbounded(configs):
        found.append(f"on a GPU {reason}; serving.gpu.max_queue_size: auto bounds them")
    if size > _MUCH:
        found.append(
            f"each GPU sets {size >> 20} MB aside for what waits between the steps of all models in this repository; a "
            "smaller serving.gpu.max_queue_size or max_batch_size takes less"
        )
    return found


def configs_in(repository: Path) -> dict[str, ModelConfig]:
    """The configurations for a GPU of a repository by their models, without those that cannot be read."""
    found = {}
    for path in sorted(repository.glob(f"*/{CONFIG_FOR['gpu']}")):
        try:
            found[path.parent.name] = from_text(path.read_text(encoding="utf-8"))
        except (text_format.ParseError, UnicodeDecodeError):
            # Triton reads it next and says what is wrong with it.
            continue
    return found


def triton_flags(wanted: Pools, *, gpus: int) -> list[str]:
    """Arguments of tritonserver on a machine with this many GPUs; one that it does not have does no harm."""
    flags = [NO_PINNED_MEMORY]
    if wanted:
        numbers = sorted({*range(gpus), *(gpu for gpu in wanted if gpu is not None)})
        sizes = {gpu: wanted.get(gpu, 0) + wanted.get(None, 0) for gpu in numbers}
        flags += [f"--cuda-memory-pool-byte-size={gpu}:{TRITONS_POOL + size}" for gpu, size in sizes.items() if size]
    return flags


def _handed_over(configs: Mapping[str, ModelConfig]) -> list[tuple[ModelConfig, str, ModelConfig]]:
    """Each tensor that a step on a GPU gives to another: its model, its name there, the model that takes it."""
    # A dictionary keeps the order, and what two ensembles share is there once.
    found: dict[tuple[str, str, str], None] = {}
    for ensemble in configs.values():
        steps = [step for step in ensemble.ensemble_scheduling.step if step.model_name in configs]
        makers = {whole: (step.model_name, name) for step in steps for name, whole in step.output_map.items()}
        for step in steps:
            for maker, tensor in (makers[whole] for whole in step.input_map.values() if whole in makers):
                if _is_on_gpu(configs[maker]):
                    found[maker, tensor, step.model_name] = None
    return [(configs[maker], tensor, configs[taker]) for maker, tensor, taker in found]


def _is_on_gpu(config: ModelConfig) -> bool:
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def _bytes_of(config: ModelConfig, tensor: str) -> int:
    """The bytes of one sample in the pool; 0 where they depend on the picture, of strings, and where none is stated."""
    # Triton completes the configurations of other models itself.
    output = next((one for one in config.output if one.name == tensor), None)
    if output is None or min(output.dims, default=1) < 0 or output.data_type == DataType.TYPE_STRING:
        return 0
    size: int = prod(output.dims) * _SIZES.get(DataType.Name(output.data_type).removeprefix("TYPE_"), _OTHER_SIZE)
    return -(-size // _GRANULE) * _GRANULE


def _queue(config: ModelConfig) -> int:
    batching = config.dynamic_batching
    return int(batching.default_queue_policy.max_queue_size) * max(1, int(batching.priority_levels))


def _most_waiting(maker: ModelConfig, taker: ModelConfig) -> int:
    """Samples on one GPU, where all that wait may be."""
    taken, given = max(1, int(taker.max_batch_size)), max(1, int(maker.max_batch_size))
    queue = _queue(taker) or usual_queue(taken)
    return queue + taken * (_instances(taker) + 1) + given * _instances(maker)


def _instances(config: ModelConfig) -> int:
    return int(sum(group.count for group in config.instance_group))
