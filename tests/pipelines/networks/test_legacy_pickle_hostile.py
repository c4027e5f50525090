"""Legacy checkpoints that were made to harm their reader: each is refused by the reader's own error, soon."""

from __future__ import annotations

import contextlib
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onestream.pipelines.networks.errors import CheckpointError
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow
HEADER = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
KEYS, STORAGE = pickle.dumps(["0"], 2), (4).to_bytes(8, "little") + bytes(16)
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
    path = folder / "hostile.pth"
    path.write_bytes(HEADER + objects + keys + STORAGE)
    return path


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def read_apart(path: Path) -> str:
    """What the reader says, in a process that may crash alone."""
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=bounded)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_in_one_short_line(tmp_path: Path, name: str) -> None:
    said = read_apart(checkpoint(tmp_path, HOSTILE[name]))
    assert said.startswith("cannot read hostile.pth as a legacy PyTorch checkpoint: ")
    assert said.count("\n") == 1
    assert len(said) < 300


def test_storage_keys_of_a_million_levels_are_refused(tmp_path: Path) -> None:
    nested = b"])" + b"\x85" * 1_000_000 + b"a."
    assert "cannot read" in read_apart(checkpoint(tmp_path, b"}.", keys=nested))


PIECES = st.one_of(
    st.sampled_from(
        [b"(", b")", b"]", b"}", b"t", b"\x85", b"\x86", b"\x87", b"s", b"u", b"a", b"e", b"Q", b"R", b"b"]
    ),
    st.sampled_from(
        [b"0", b"1", b"2", b"N", b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"\x94", b"\x8f", b"\x90", b"\x91"]
    ),
    st.sampled_from([b"S'0'\n", b"I4\n", b"L-1L\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n", TENSOR]),
    st.binary(max_size=3),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=40), keys=st.one_of(st.just(KEYS), st.binary(max_size=20)))
def test_no_pickle_raises_anything_else(tmp_path: Path, pieces: list[bytes], keys: bytes) -> None:
    path = checkpoint(tmp_path, b"".join(pieces) + b".", keys)
    with contextlib.suppress(CheckpointError):
        read_legacy_checkpoint(path)
