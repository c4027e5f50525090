"""Nothing in preprocess needs PyTorch unless training is asked for."""

from __future__ import annotations

import subprocess
import sys

ROOMS = ("preprocess", "preprocess.backends.dali", "preprocess.interop.to_torchvision", "preprocess.video.clips.maker")


def test_only_training_needs_torch_and_names_the_command_without_it() -> None:
    imports = ", ".join(f"onestream.{room}" for room in (*ROOMS, "cli.parity"))
    code = (
        f"import sys, {imports}; assert 'torch' not in sys.modules; "
        "sys.modules['torch'] = None; print('so far'); import onestream.preprocess.training"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "so far\n"), done.stderr
    assert done.stderr.strip().endswith(
        "BackendMissing: onestream.preprocess.training needs PyTorch: pip install -e '.[train]' in onestream's checkout"
    )
