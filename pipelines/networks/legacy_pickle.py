"""Reads PyTorch's legacy checkpoint files with NumPy only, without executing anything in them.

Before 1.6, `torch.save` wrote five pickles one after another (magic number, protocol, byte order, the
objects, the storage keys) and then the raw storages. The objects refer to the storages by key and to a
handful of names; here these names become inert values, and every other name is refused.
"""

import math
import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from onestream.pipelines.networks.errors import CheckpointError

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_STORAGE_DTYPES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch LongStorage": np.dtype("<i8"),
}
_MOST_PARTS = 1000
"""Values in one tuple, counting those of the tuples inside it; a tensor's description has about 30. Python hashes and
frees nested tuples by recursion, so that some ten thousand levels, or a tuple that repeats itself, never come back."""
_LONGEST_REASON = 200
_NUMBERS_END = 2**63
_CONTAINERS = ("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT", "EMPTY_SET")
_FILLING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")


class _StorageReference(NamedTuple):
    type_name: str
    key: str
    length: int


class _TensorReference(NamedTuple):
    storage: _StorageReference
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _RebuildTensor:
    """Stands for `torch._utils._rebuild_tensor_v2`; without a `__dict__`, so a pickle cannot alter it."""

    __slots__ = ()

    def __call__(
        self,
        storage: _StorageReference,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        *_gradient_settings: object,
    ) -> _TensorReference:
        return _TensorReference(storage, offset, shape, strides)


_ALLOWED: dict[str, Any] = {
    "collections OrderedDict": OrderedDict,
    "torch._utils _rebuild_tensor_v2": _RebuildTensor(),
    **{name: name for name in _STORAGE_DTYPES},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name} {global_name}"
        if name not in _ALLOWED:
            raise CheckpointError(f"it names {name!r}; allowed are only {sorted(_ALLOWED)}")
        return _ALLOWED[name]

    def persistent_load(self, pid: Any, /) -> _StorageReference:
        match pid:
            case ("storage", str(type_name), str(key), str(), int(length), None) if type_name in _STORAGE_DTYPES:
                return _StorageReference(type_name, key, length)
        raise CheckpointError(f"it refers to something that is no plain storage of {list(_STORAGE_DTYPES)}")


def read_legacy_checkpoint(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a legacy (not zip) PyTorch state dict by name.

    float32 and int64 tensors of any shape are read; the arrays are C-contiguous copies. Nothing in the file
    is executed: only names that stand for tensors are accepted.

    Raises:
        CheckpointError: the file is something else, is truncated, or holds anything but named tensors.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        try:
            return _read(stream)
        except OSError:
            raise
        except Exception as error:  # a damaged pickle may raise almost any exception
            reason = str(error)[:_LONGEST_REASON]
            raise CheckpointError(f"cannot read {path.name} as a legacy PyTorch checkpoint: {reason}") from error


def _load(stream: IO[bytes]) -> Any:
    """The next pickle, after a look at its instructions, since the unpickler obeys what harms it."""
    begin = stream.tell()
    _check_parts(stream)
    stream.seek(begin)
    return _Unpickler(stream).load()


def _check_parts(stream: IO[bytes]) -> None:
    """Follow the instructions with a count of parts in place of each value; None stands for a mark."""
    counts: list[int | None] = []
    memo: dict[Any, int] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            key = len(memo) if opcode.name == "MEMOIZE" else argument
            if key is None or key > number:
                raise CheckpointError(f"it stores its value number {number} at most as number {key}")
            memo[key] = counts[-1] or 0
            continue
        popped: list[int] = []
        for kind in reversed(opcode.stack_before):
            if kind is pickletools.stackslice:
                while (count := counts.pop()) is not None:
                    popped.append(count)
            elif kind is not pickletools.markobject:
                popped.append(counts.pop() or 0)
        if opcode.name == "MARK":
            counts.append(None)
        elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
            counts.append(memo[argument])
        elif opcode.name in _FILLING:
            counts.append(popped[-1])
        elif opcode.stack_after:
            # What is in lists and dicts does not count: these are never hashed.
            parts = 1 if opcode.name in _CONTAINERS else 1 + sum(popped)
            if parts > _MOST_PARTS:
                raise CheckpointError(f"it nests more than {_MOST_PARTS} values in one")
            counts.extend([parts] * len(opcode.stack_after))


def _read(stream: IO[bytes]) -> dict[str, np.ndarray[Any, Any]]:
    header = [_load(stream) for _ in range(3)]
    if header[:2] != [_MAGIC_NUMBER, _PROTOCOL_VERSION]:
        raise CheckpointError("it does not begin with the magic number and protocol version 1001")
    if not header[2]["little_endian"]:
        raise CheckpointError("its numbers are big-endian; only little-endian files are read")
    references = _load(stream)
    keys = _load(stream)
    if not isinstance(references, dict):
        raise CheckpointError(f"it holds {type(references).__name__}; expected a dict of named tensors")
    for name, reference in references.items():
        if not isinstance(name, str) or not isinstance(reference, _TensorReference):
            raise CheckpointError(f"an entry is {type(reference).__name__}; expected a named tensor")
    stored = {reference.storage.key: reference.storage for reference in references.values()}
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in stored for key in keys):
        raise CheckpointError("its storages are not those of its tensors")
    storages = {key: _read_storage(stream, stored[key]) for key in keys}
    return {name: _tensor(name, reference, storages) for name, reference in references.items()}


def _read_storage(stream: IO[bytes], storage: _StorageReference) -> np.ndarray[Any, Any]:
    length = int.from_bytes(stream.read(8), "little")
    if length != storage.length:
        raise CheckpointError(f"storage {storage.key} has {length} numbers where {storage.length} are declared")
    dtype = _STORAGE_DTYPES[storage.type_name]
    try:
        data = stream.read(length * dtype.itemsize)
    except (MemoryError, OverflowError):
        data = b""
    if len(data) != length * dtype.itemsize:
        raise CheckpointError(f"it ends inside storage {storage.key}: it is truncated")
    return np.frombuffer(data, dtype)


def _tensor(name: str, reference: _TensorReference, storages: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    storage = storages[reference.storage.key]
    offset, shape, strides = reference.offset, reference.shape, reference.strides
    if not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise CheckpointError(f"tensor {name!r} has a shape or strides of no tuple")
    if not all(isinstance(number, int) and abs(number) < _NUMBERS_END for number in (offset, *shape, *strides)):
        raise CheckpointError(f"tensor {name!r} has sizes that are no whole numbers below 2**63")
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise CheckpointError(f"tensor {name!r} has shape {shape}, strides {strides} and offset {offset}")
    count = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if count > storage.size or (count > 0 and last >= storage.size):
        raise CheckpointError(f"tensor {name!r} of shape {shape} does not fit in its storage of {storage.size} numbers")
    strides_bytes = [stride * storage.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, strides_bytes, writeable=False)
    return view.copy(order="C")
