"""Reads PyTorch's legacy checkpoint files with NumPy only, without executing anything in them.

Before 1.6, `torch.save` wrote five pickles one after another (magic number, protocol, byte order, the
objects, the storage keys) and then the raw storages. The objects refer to the storages by key and to a
handful of names; here these names become inert values, and every other name is refused.
"""

import math
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from serving.errors import ServingError

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_STORAGE_DTYPES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch LongStorage": np.dtype("<i8"),
}


class CheckpointError(ServingError, ValueError):
    """The file is not a legacy checkpoint of plain tensors, is cut short, or names something not allowed."""


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
        raise CheckpointError(f"it refers to a storage as {pid!r}; expected a plain storage of {list(_STORAGE_DTYPES)}")


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
            raise CheckpointError(f"cannot read {path.name} as a legacy PyTorch checkpoint: {error}") from error


def _read(stream: IO[bytes]) -> dict[str, np.ndarray[Any, Any]]:
    header = [_Unpickler(stream).load() for _ in range(3)]
    if header[:2] != [_MAGIC_NUMBER, _PROTOCOL_VERSION]:
        raise CheckpointError("it does not begin with the magic number and protocol version 1001")
    if not header[2]["little_endian"]:
        raise CheckpointError("its numbers are big-endian; only little-endian files are read")
    references = _Unpickler(stream).load()
    keys = _Unpickler(stream).load()
    if not isinstance(references, dict):
        raise CheckpointError(f"it holds {type(references).__name__}; expected a dict of named tensors")
    for name, reference in references.items():
        if not isinstance(name, str) or not isinstance(reference, _TensorReference):
            raise CheckpointError(f"entry {name!r} is {type(reference).__name__}; expected a named tensor")
    stored = {reference.storage.key: reference.storage for reference in references.values()}
    storages = {key: _read_storage(stream, stored[key]) for key in keys}
    return {name: _tensor(name, reference, storages) for name, reference in references.items()}


def _read_storage(stream: IO[bytes], storage: _StorageReference) -> np.ndarray[Any, Any]:
    length = int.from_bytes(stream.read(8), "little")
    if length != storage.length:
        raise CheckpointError(f"storage {storage.key} has {length} numbers where {storage.length} are declared")
    dtype = _STORAGE_DTYPES[storage.type_name]
    data = stream.read(length * dtype.itemsize)
    if len(data) != length * dtype.itemsize:
        raise CheckpointError(f"it ends inside storage {storage.key}: it is truncated")
    return np.frombuffer(data, dtype)


def _tensor(name: str, reference: _TensorReference, storages: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    storage = storages[reference.storage.key]
    offset, shape, strides = reference.offset, reference.shape, reference.strides
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise CheckpointError(f"tensor {name!r} has shape {shape}, strides {strides} and offset {offset}")
    count = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if count > storage.size or (count > 0 and last >= storage.size):
        raise CheckpointError(f"tensor {name!r} of shape {shape} does not fit in its storage of {storage.size} numbers")
    strides_bytes = [stride * storage.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, strides_bytes, writeable=False)
    return view.copy(order="C")
