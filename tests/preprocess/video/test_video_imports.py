"""What the package needs: PyAV, named where it is missing, and never PyTorch."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_missing_packages_are_named_with_the_command() -> None:
    code = """
import sys
sys.modules[{missing!r}] = None
from onestream.preprocess.errors import BackendMissing
try:
    from onestream.preprocess import Decode, Definition
    from onestream.preprocess.video import Clip, ClipMaker
    definition = Definition(operations=(Decode(),))
    ClipMaker(definition, Clip(num_frames=1), backend="reference")
    ClipMaker(definition, Clip(num_frames=1), backend={backend!r})
except BackendMissing as error:
    print(error)
"""
    assert (
        run(code.format(missing="av", backend="pyav"))
        == "onestream.preprocess.video needs PyAV: pip install -e '.[video]' in onestream's checkout"
    )
    expected = "the compiled resize needs numba: pip install -e '.[train]' in onestream's checkout"
    assert run(code.format(missing="numba", backend="pyav")) == expected
    found = run(code.format(missing="nvidia.dali", backend="dali"))
    assert found == (
        "the dali backend needs nvidia-dali: pip install -e '.[train]' in onestream's checkout; "
        "pip install -e '.[cpu]' in onestream's checkout to serve"
    )
