"""Nothing in preprocess needs PyTorch unless training is asked for."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_only_training_imports_torch() -> None:
    rooms = (
        "preprocess",
        "preprocess.backends.dali",
        "preprocess.interop.to_torchvision",
        "preprocess.video.clips.maker",
    )
    imports = ", ".join(f"onestream.{room}" for room in (*rooms, "cli.parity"))
    done = run(f"import sys, {imports}; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_without_torch_training_names_the_command() -> None:
    done = run("import sys; sys.modules['torch'] = None; import onestream.preprocess.training")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "BackendMissing: onestream.preprocess.training needs PyTorch: pip install '.[train]' in onestream's checkout"
    )
