"""Prints the pip requirements of TensorRT's Python bindings that fit the TensorRT library on this machine.

Triton's container has the libraries and no bindings. ``tensorrt-cuXX-bindings`` on PyPI is a wheel of the bindings
alone, linked with ``libnvinfer.so.MAJOR``; ``tensorrt-cuXX`` is the Python package over it. Both are installed with
``--no-deps``: their dependency ``tensorrt-cuXX-libs`` would bring gigabytes of a second TensorRT.
"""

from __future__ import annotations

import argparse
import ctypes
import sys

# Bindings for CUDA 12 and 13 link the same libraries; 13 is what the container has.
PACKAGES = ("tensorrt-cu13", "tensorrt-cu13-bindings")
MAJORS = range(19, 9, -1)


def find_library() -> str | None:
    """The newest libnvinfer that the system's loader finds, in LD_LIBRARY_PATH too; None where there is none."""
    for major in MAJORS:
        try:
            ctypes.CDLL(f"libnvinfer.so.{major}")
        except OSError:
            continue
        return f"libnvinfer.so.{major}"
    return None


def requirements(library: str) -> list[str]:
    """The requirements for a TensorRT library, named by its path or as the system's loader finds it.

    The last part of a library's version, its build, is left open: a container can hold a build that was never
    published, and builds of one patch release have one binary interface.

    Raises OSError if it cannot be loaded, AttributeError if it is no TensorRT.
    """
    loaded = ctypes.CDLL(library)
    version = ".".join(str(getattr(loaded, f"getInferLib{part}Version")()) for part in ("Major", "Minor", "Patch"))
    return [f"{package}=={version}.*" for package in PACKAGES]


def main() -> None:
    """Print the requirements on one line; exit with 1 and the reason where there is no TensorRT."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library", nargs="?", help="the TensorRT library; without it, the system's libnvinfer")
    parser.add_argument(
        "--if-there", action="store_true", help="where there is no TensorRT, print none and exit with 0"
    )
    options = parser.parse_args()
    library = options.library or find_library()
    if library is None and options.if_there:
        print("none")
        return
    if library is None:
        sys.exit("no TensorRT (libnvinfer.so) on this machine; install in Triton's container, or with TENSORRT=none")
    try:
        print(*requirements(library))
    except (OSError, AttributeError) as error:
        sys.exit(f"{library} is not a TensorRT library: {error}")


if __name__ == "__main__":
    main()
