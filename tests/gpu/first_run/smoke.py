"""First: what the machine is; memory, kernels, one network, one JPEG, one resize. Carries the network and the base."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import metadata

from call import Call

PACKAGES = ("torch", "numpy", "cuda-core", "cuda-bindings", "onnx", "onnxruntime", "pillow", "opencv-python-headless")
PROGRAMS = ("nvidia-smi", "nvcc", "compute-sanitizer", "ncu")


def version(package: str) -> str | None:
    """Of a package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpus() -> str | None:
    """Names, memory and driver as nvidia-smi tells them; None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    call = Call("smoke")
    call.note("python", platform.python_version())
    call.note("packages", {package: version(package) for package in PACKAGES})
    call.note("programs", {program: shutil.which(program) for program in PROGRAMS})
    call.note("gpus", gpus())
    call.pytest("smoke", "tests/gpu/test_gpu_smoke.py", limit_s=300)
    call.finish()
