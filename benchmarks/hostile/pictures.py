"""Good pictures from many callers with bad ones among them: every good one must get the answer that it gets alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile.attackers import bad_pictures
from onestream.client import Client, OnestreamError

CALLERS = 24
BAD_SHARE = 0.15
ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 60.0
_OF_ONE_CALL = ("latency_ms", "request_id")


@dataclass(slots=True)
class Counts:
    """What callers sent and met; ``hurt`` counts good pictures that got an error or another answer, by how."""

    good: int = 0
    bad: int = 0
    hurt: Counter[str] = field(default_factory=Counter)


def measure(
    *, urls: Sequence[str], forms: Sequence[str], requests: int, seed: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Send so many requests in all from 24 callers, who take turns with the addresses and ask every form.

    Returns, for each form, ``good`` and ``bad`` (how many were sent), ``hurt`` (how many good ones were) and ``how``.
    """
    photos = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]
    found = {}
    for form in forms:
        with Client(urls[0], timeout_s=_TIMEOUT_S) as client:
            alone = [_answer(client, photo, form) for photo in photos]

        def call(number: int, form: str = form, alone: Sequence[dict[str, Any]] = tuple(alone)) -> Counts:
            random = Random(f"{seed} {form} {number}")
            return _call(urls[number % len(urls)], form, photos, alone, requests // CALLERS, random)

        with ThreadPoolExecutor(CALLERS) as callers:
            of_callers = list(callers.map(call, range(CALLERS)))
        how = sum((one.hurt for one in of_callers), Counter[str]())
        found[form] = {
            "good": sum(one.good for one in of_callers),
            "bad": sum(one.bad for one in of_callers),
            "hurt": how.total(),
            "how": dict(how),
        }
        progress(f"{form}: {found[form]}")
    return found


def _call(
    url: str, form: str, photos: Sequence[bytes], alone: Sequence[dict[str, Any]], requests: int, random: Random
) -> Counts:
    counts = Counts()
    bad = bad_pictures(photos[0], random)
    with Client(url, timeout_s=_TIMEOUT_S) as client, Client(url, timeout_s=_TIMEOUT_S, retries=0) as hostile:
        for _ in range(requests):
            if random.random() < BAD_SHARE:
                counts.bad += 1
                with contextlib.suppress(OnestreamError):
                    hostile.predict(next(bad), pipeline=form)
                continue
            counts.good += 1
            index = random.randrange(len(photos))
            try:
                if _answer(client, photos[index], form) != alone[index]:
                    counts.hurt["another answer"] += 1
            except OnestreamError as error:
                counts.hurt[f"{type(error).__name__}: {str(error)[:100]}"] += 1
    return counts


def _answer(client: Client, photo: bytes, form: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.predict(photo, pipeline=form).to_dict()
    return {name: value for name, value in answer.items() if name not in _OF_ONE_CALL}
