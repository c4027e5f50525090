"""How long a model process may work on one batch.

A process that hangs in native code may hold Python's lock for ever, so no thread of its own can end it, and Triton
takes it for healthy. The kernel's timer needs neither: SIGALRM, which nothing handles, ends the process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

BATCH_DEADLINE_S = 60.0
"""Several times what the heaviest batch that the limits allow takes on a busy machine (about 20 s)."""


def extend() -> None:
    """Let this process live for another ``BATCH_DEADLINE_S`` seconds, and not longer without a further word."""
    signal.setitimer(signal.ITIMER_REAL, BATCH_DEADLINE_S)


@contextmanager
def batch_deadline() -> Iterator[None]:
    """Let the block take ``BATCH_DEADLINE_S`` seconds; after that the kernel ends this process.

    An earlier word of ``extend`` counts again after it.
    """
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, BATCH_DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
