"""Nothing in preprocess needs PyTorch unless training is asked for."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_only_training_imports_torch() -> None:
    rooms = "preprocess.backends.dali, preprocess.to_torchvision, preprocess.video.maker, onestream.parity.command"
    done = run(f"import sys, preprocess, {rooms}; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_without_torch_training_names_the_command() -> None:
    done = run("import sys; sys.modules['torch'] = None; import preprocess.training")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "preprocess.errors.BackendMissing: preprocess.training needs PyTorch: pip install 'onestream[train]'"
    )
