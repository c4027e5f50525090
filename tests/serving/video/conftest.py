"""A server's process on a GPU made of host memory, before anything that knows a GPU or Triton is imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from host_gpu import fake_cvcuda
from triton_stand_in import TRITON, imported_anew, triton
from video_machine import RELOADED, Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = Machine()
    stand_ins = {TRITON: triton(), "cvcuda": fake_cvcuda(), "PyNvVideoCodec": found.nvdec}
    with imported_anew(*RELOADED, **stand_ins), pytest.MonkeyPatch.context() as patched:
        patched.setattr("onestream.preprocess.cuda.device.open_device", lambda *_index: found)
        yield found
