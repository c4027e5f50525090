"""Exits with 0 when every model of the server on this machine can answer, else with 1 and one line that says why.

It asks for readiness and sends no image: while the server is merely busy an image would wait in its queues. Readiness
is reliable here, because `onestream serve` takes it back when a model's process dies, and a model becomes ready only
after it has answered its warm-up requests.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request

READY_PATH = "/v2/health/ready"


def main() -> None:
    """Ask once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="Triton's HTTP service")
    parser.add_argument("--timeout-s", type=float, default=4.0, help="how long it may take to answer")
    options = parser.parse_args()
    # The loopback address must not be asked through a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(options.url + READY_PATH, timeout=options.timeout_s).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"not ready: {options.url}{READY_PATH} answers {error.code}")
    except (OSError, ValueError) as error:
        sys.exit(f"no answer from {options.url}{READY_PATH}: {error}")


if __name__ == "__main__":
    main()
