"""Clients that go on asking while something about the server changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from onestream.client import Client

T = TypeVar("T")
_PAUSE_S = 0.05
"""Between a client's questions, so that all of them leave the server time for what changes."""


@dataclass(frozen=True)
class Seen(Generic[T]):
    """What a client of a form saw, and when it asked."""

    asked_at: float
    form: str
    answer: T | Exception


@contextmanager
def clients_that_go_on(
    urls: Sequence[str], forms: Sequence[str], questions: Sequence[Callable[[Client, str], T]]
) -> Iterator[list[Seen[T]]]:
    """A client of each form at each URL, which asks one question after the other until the block ends.

    The list grows meanwhile; an error of any kind is an answer too.
    """
    stop, seen = threading.Event(), list[Seen[T]]()

    def go_on(url: str, form: str) -> None:
        with Client(url, timeout_s=60) as client:
            while not stop.wait(_PAUSE_S):
                for question in questions:
                    asked_at = time.monotonic()
                    try:
                        seen.append(Seen(asked_at, form, question(client, form)))
                    except Exception as error:  # any at all
                        seen.append(Seen(asked_at, form, error))

    threads = [threading.Thread(target=go_on, args=(url, form)) for url in urls for form in forms]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
