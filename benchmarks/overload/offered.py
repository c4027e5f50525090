"""Load that does not wait for answers: requests leave at random moments at a given rate, whatever the server does.

Callers who wait for an answer before they ask again send less when the server is slow, and hide what overload does.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc import aio
from tritonclient.grpc import service_pb2 as messages

from onestream.wire.tensor_names import IMAGE

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_CHANNELS = 4
_CALLERS = 8
_PATIENT_S = 30.0
_LATE_S = 0.05


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one run.

    ``answered_ms`` are the latencies of answers that came within the deadline, ``refused_ms`` of refusals because of
    load; both are counted from the moment a request was due to leave. ``expired`` got nothing within the deadline,
    ``failed`` got another error, whose text ``failure`` has. ``sent_late`` left more than 50 ms after they were due:
    the generator itself was overloaded.
    """

    offered: int = 0
    seconds: float = 0.0
    answered_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    expired: int = 0
    failed: int = 0
    failure: str = ""
    sent_late: int = 0

    @property
    def goodput_per_s(self) -> float:
        """Answers within the deadline, per second."""
        return len(self.answered_ms) / self.seconds


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the values that at least ``share`` of them do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def arrivals(rate_per_s: float, *, seconds: float, seed: int) -> list[float]:
    """The moments of a Poisson process, ascending, from 0 to below ``seconds``; of one seed always the same."""
    moments, chance = [], random.Random(seed)
    at = chance.expovariate(rate_per_s)
    while at < seconds:
        moments.append(at)
        at += chance.expovariate(rate_per_s)
    return moments


def capacity(address: str, model: str, photos: Sequence[bytes], *, seconds: float, warm_s: float = 0.0) -> float:
    """Images per second to 8 callers, each of whom waits for an answer before asking again."""
    bodies = [_body(model, photo, _PATIENT_S) for photo in photos]
    return asyncio.run(_saturate(address, bodies, seconds=seconds, warm_s=warm_s))


def offer(
    address: str,
    model: str,
    photos: Sequence[bytes],
    *,
    rate_per_s: float,
    seconds: float,
    deadline_s: float,
    seed: int,
    warm_s: float = 0.0,
) -> Outcome:
    """Send photos to a model by gRPC with Poisson arrivals, and wait for what is on its way at the end.

    Every request carries its deadline, as those of ``Client`` do. The first ``warm_s`` seconds are not counted.
    """
    moments = arrivals(rate_per_s, seconds=warm_s + seconds, seed=seed)
    bodies = [_body(model, photo, deadline_s) for photo in photos]
    return asyncio.run(_offer(address, bodies, moments, warm_s=warm_s, seconds=seconds, deadline_s=deadline_s))


def _body(model: str, photo: bytes, deadline_s: float) -> bytes:
    message = messages.ModelInferRequest(model_name=model, raw_input_contents=[photo])
    message.parameters["timeout"].int64_param = round(deadline_s * 1e6)
    message.inputs.add(name=IMAGE, datatype="UINT8", shape=[1, len(photo)])
    return bytes(message.SerializeToString())


async def _saturate(address: str, bodies: Sequence[bytes], *, seconds: float, warm_s: float) -> float:
    answered = 0
    began = time.monotonic()

    async def ask_again(caller: int) -> None:
        nonlocal answered
        number = caller
        while (at := time.monotonic() - began) < warm_s + seconds:
            await calls[caller % _CHANNELS](bodies[number % len(bodies)], timeout=_PATIENT_S)
            answered += at >= warm_s
            number += _CALLERS

    async with _connected(address) as calls:
        await asyncio.gather(*(ask_again(caller) for caller in range(_CALLERS)))
    return answered / (time.monotonic() - began - warm_s)


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[list[Any]]:
    """Calls of ModelInfer on several connections. Messages are made before and answers are not read: little work."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channels = [aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)]
    try:
        yield [channel.unary_unary(_METHOD) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


async def _offer(
    address: str, bodies: Sequence[bytes], moments: Sequence[float], *, warm_s: float, seconds: float, deadline_s: float
) -> Outcome:
    outcome = Outcome(seconds=seconds)
    began = time.monotonic()

    async def ask(number: int, due: float) -> None:
        late = time.monotonic() - began - due
        failed: aio.AioRpcError | None = None
        try:
            await calls[number % _CHANNELS](bodies[number % len(bodies)], timeout=deadline_s)
        except aio.AioRpcError as error:
            failed = error
        spent = time.monotonic() - began - due
        if due < warm_s:
            return
        outcome.offered += 1
        outcome.sent_late += late > _LATE_S
        code = failed.code() if failed else None
        if code == grpc.StatusCode.UNAVAILABLE:
            outcome.refused_ms.append(1000 * spent)
        elif code == grpc.StatusCode.DEADLINE_EXCEEDED or (failed is None and spent > deadline_s):
            outcome.expired += 1
        elif failed is None:
            outcome.answered_ms.append(1000 * spent)
        else:
            outcome.failed += 1
            outcome.failure = outcome.failure or f"{failed.code().name}: {failed.details()}"

    async with _connected(address) as calls:
        tasks: set[asyncio.Task[None]] = set()
        for number, due in enumerate(moments):
            await asyncio.sleep(max(0.0, began + due - time.monotonic()))
            task = asyncio.create_task(ask(number, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return outcome
