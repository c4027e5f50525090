"""Puts a load of real photos on a running server with perf_analyzer. Needs Python and perf_analyzer, no packages.

What comes after ``--`` goes to perf_analyzer: ``bench.py -m classify -- --percentile 99``.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def input_data(folder: Path) -> str:
    """All images of a folder as perf_analyzer's input data: one request each, sent in turn, of as many bytes as it has.

    Exits where there are none.
    """
    images = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not images:
        sys.exit(f"no images in {folder}; expected names that end in {', '.join(sorted(SUFFIXES))}")
    contents = [path.read_bytes() for path in images]
    print(f"{len(images)} images of {folder}, {sum(map(len, contents)) / len(contents) / 1000:.0f} kB on average")
    requests = [{"image": {"content": {"b64": base64.b64encode(c).decode()}, "shape": [len(c)]}} for c in contents]
    return json.dumps({"data": requests})


def wait_until_ready(url: str, timeout_s: float) -> None:
    """Return when all models of the server are ready; exit when that takes longer than ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"the server at {url} was not ready within {timeout_s:g} s: {error}")
        time.sleep(0.5)


def main() -> None:
    """Wait for the server, then become perf_analyzer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="classify_fused", help="a pipeline: NAME, or NAME_fused")
    parser.add_argument("--host", default="127.0.0.1", help="where the server is")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--photos", type=Path, default=Path("examples/photos"), help="folder of images")
    parser.add_argument("--concurrency-range", default="1:33:8", help="requests in flight, START:END:STEP")
    parser.add_argument("--wait-s", type=float, default=60.0, help="how long the server may take to become ready")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write perf_analyzer's --input-data, and end")
    parser.add_argument("others", nargs="*", metavar="-- OPTIONS", help="of perf_analyzer")
    options = parser.parse_args()
    data = input_data(options.photos)
    if options.write:
        options.write.write_text(data)
        return
    wait_until_ready(f"http://{options.host}:{options.http_port}", options.wait_s)
    command = os.environ.get("PERF_ANALYZER", "perf_analyzer")
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        file.write(data)
    arguments = ["-m", options.model, "-i", "grpc", "-u", f"{options.host}:{options.grpc_port}"]
    arguments += ["--input-data", file.name, "--concurrency-range", options.concurrency_range, *options.others]
    sys.stdout.flush()
    try:
        os.execvp(command, [command, *arguments])
    except OSError as error:
        sys.exit(
            f"cannot run {command}: {error.strerror}; run this in Triton's SDK image, or pip install perf-analyzer"
        )


if __name__ == "__main__":
    main()
