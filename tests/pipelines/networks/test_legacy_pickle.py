"""Legacy checkpoints: tensors in their own order, and files that were made to harm their reader, which it refuses."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onestream.pipelines.networks.errors import CheckpointError
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint

ROOT = Path(__file__).parents[3]
HEADER = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
KEYS, STORAGE = pickle.dumps(["0"], 2), (4).to_bytes(8, "little") + np.arange(4, dtype="<f4").tobytes()
"""The storage '0' is 0, 1, 2, 3."""
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI4\nNtQI0\n"
DOUBLED = b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(100))
DOUBLED_LISTS = b"".join(b"]q%c(h%ch%ce0" % (n + 1, n, n) for n in range(60))
HOSTILE = {
    "a key of a million levels": b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "a storage of a million levels": b")" + b"\x85" * 1_000_000 + b"Q.",
    "a key of 2**100 parts": b"})q\x00" + DOUBLED + b"h\x64Ns.",
    "a name of 2**60 parts": b"(d]q\x000" + DOUBLED_LISTS + b"h\x3c\x85Ns.",
    "a shape of 2**60 parts": b"(dS'w'\n]q\x000" + DOUBLED_LISTS + TENSOR + b"h\x3c)I00\nNtRs.",
    "a memo of 2**31 places": b"]r\xff\xff\xff\x7f.",
    "a storage of 2**62 numbers": b"(dS'w'\n" + TENSOR.replace(b"I4", b"L4611686018427387904L") + b")I0\n)tRs.",
}
READ = """
import sys
from pathlib import Path
from onestream.pipelines.networks.errors import CheckpointError
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint
try:
    read_legacy_checkpoint(Path(sys.argv[1]))
except CheckpointError as error:
    print(str(error))
"""


def checkpoint(folder: Path, objects: bytes, keys: bytes = KEYS) -> Path:
    path = folder / "legacy.pth"
    path.write_bytes(HEADER + objects + keys + STORAGE)
    return path


def one_tensor(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The pickle of {"w": tensor} over storage '0'."""
    placed = b"I%d\n" % offset + b"".join(pickle.dumps(dims, 0)[:-1] for dims in (shape, strides))
    return b"(dS'w'\n" + TENSOR.removesuffix(b"I0\n") + placed + b"I00\nccollections\nOrderedDict\n)RtRs."


def test_strided_tensors_are_read_in_their_own_order(tmp_path: Path) -> None:
    tensors = read_legacy_checkpoint(checkpoint(tmp_path, one_tensor(0, (2, 2), (1, 2))))
    np.testing.assert_array_equal(tensors["w"], [[0, 2], [1, 3]])
    assert tensors["w"].flags.c_contiguous


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(1, (4,), (1,)), (0, (2, 2), (3, 1)), (-1, (2,), (1,)), (3, (2,), (-1,)), (0, (10**9,), (0,)), (0, (2, 2), (1,))],
)
def test_tensors_outside_their_storage(
    tmp_path: Path, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    with pytest.raises(CheckpointError, match="tensor 'w'"):
        read_legacy_checkpoint(checkpoint(tmp_path, one_tensor(offset, shape, strides)))


class RunsACommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "was_here"
    malicious = pickle.dumps(RunsACommand(f"echo > '{marker}'"), 2)
    pickle.loads(malicious)
    assert marker.exists(), "the attack must work on a plain unpickler, or this test shows nothing"
    marker.unlink()

    (tmp_path / "plain.pth").write_bytes(malicious)
    for path in (tmp_path / "plain.pth", checkpoint(tmp_path, malicious)):
        with pytest.raises(CheckpointError, match=r"system.*allowed are only"):
            read_legacy_checkpoint(path)
        assert not marker.exists()


def test_names_stand_for_tensors_only_and_cannot_be_altered(tmp_path: Path) -> None:
    named = {
        f"names '{name}'": b"c%b\n%b\n." % tuple(name.encode().split())
        for name in ("builtins eval", "torch.storage _load_from_bytes", "collections deque", "torch HalfStorage")
    }
    for said, objects in {**named, "attribute": b"ctorch._utils\n_rebuild_tensor_v2\n(N(dS'hook'\nI1\nstb."}.items():
        with pytest.raises(CheckpointError, match=said):
            read_legacy_checkpoint(checkpoint(tmp_path, objects))


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def read_apart(path: Path) -> str:
    """What the reader says, in a process that may crash alone."""
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=bounded)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HOSTILE, "storage keys of a million levels"])
def test_a_hostile_pickle_is_refused_in_one_short_line(tmp_path: Path, name: str) -> None:
    nested = b"])" + b"\x85" * 1_000_000 + b"a."
    said = read_apart(checkpoint(tmp_path, HOSTILE.get(name, b"}."), KEYS if name in HOSTILE else nested))
    assert said.startswith("cannot read legacy.pth as a legacy PyTorch checkpoint: ")
    assert said.count("\n") == 1
    assert len(said) < 300


PIECES = st.one_of(
    st.sampled_from(b")(]}t\x85\x86\x87suaeQRb012N\x94\x8f\x90\x91").map(lambda code: bytes([code])),
    st.sampled_from([b"q\x00", b"q\x01", b"h\x00", b"h\x01"]),
    st.sampled_from([b"S'0'\n", b"I4\n", b"L-1L\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n", TENSOR]),
    st.binary(max_size=3),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=40), keys=st.one_of(st.just(KEYS), st.binary(max_size=20)))
def test_no_pickle_raises_anything_else(tmp_path: Path, pieces: list[bytes], keys: bytes) -> None:
    path = checkpoint(tmp_path, b"".join(pieces) + b".", keys)
    with contextlib.suppress(CheckpointError):
        read_legacy_checkpoint(path)
