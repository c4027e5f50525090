"""Exits with 0 when the server on this machine can answer, else with 1 and one line that says why.

By default it asks whether every model is ready, and sends no image: while the server is merely busy an image would wait
in its queues. Readiness is reliable here, because `onestream serve` takes it back when a model's process dies, and a
model becomes ready only after it has answered its warm-up requests. With ``--infer`` it sends a photo and wants an
answer, for probes that have time.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from pathlib import Path

READY_PATH = "/v2/health/ready"
PHOTO = Path(__file__).parent.parent / "examples" / "photos" / "cat.jpg"


def main() -> None:
    """Ask once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="Triton's HTTP service")
    parser.add_argument("--timeout-s", type=float, default=4.0, help="how long it may take to answer")
    parser.add_argument("--infer", metavar="MODEL", help="a pipeline that must answer for a photo")
    parser.add_argument("--photo", type=Path, default=PHOTO, help="the image that --infer sends")
    options = parser.parse_args()
    path = f"/v2/models/{options.infer}/infer" if options.infer else READY_PATH
    request = urllib.request.Request(options.url + path)
    if options.infer:
        try:
            request.data = options.photo.read_bytes()
        except OSError as error:
            sys.exit(f"cannot read {options.photo}: {error.strerror}")
        # The whole body is the image: a JSON head of no bytes, then the input's.
        request.add_header("Inference-Header-Content-Length", "0")
        request.add_header("Content-Type", "application/octet-stream")
    # The loopback address must not be asked through a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=options.timeout_s).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"not ready: {options.url}{path} answers {error.code}")
    except (OSError, ValueError) as error:
        sys.exit(f"no answer from {options.url}{path}: {error}")


if __name__ == "__main__":
    main()
