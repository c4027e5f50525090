"""Hostile streams of every kind known, sent by a raw gRPC client, beside good ones whose frames are compared.

A hostile stream is a list of requests that are sent at once, so that many of them are queued when the server ends it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from onestream.client import Client, OnestreamError
from onestream.client.video.demux import open_file
from onestream.wire.tensor_names import EVENT, IMAGE, MESSAGE
from onestream.wire.video import Close, Credit, Event, Open, Packet, Packets, pack

KILLS_TRITON = (("triton_grpc_error", "true"),)
"""Metadata by which an error ends a call with a status; tritonserver 2.51 dies by it where messages are queued, unless
`onestream serve` runs it."""

_AT_ONCE = 8
_QUEUED = 60
"""Messages behind the one that ends the stream: in the field three streams of so many killed the server."""
_CALL_S = 8.0
"""A stream that the server keeps is given up by its hostile client after so long."""
_BUFFER_BYTES = 4 * 1024 * 1024

Requests = list[Any]
Kind = Callable[["Clip", random.Random], Requests]


@dataclass(frozen=True)
class Clip:
    """A video's format and packets, and the model to which they go."""

    model: str
    opening: Open
    packets: tuple[Packet, ...]

    @classmethod
    def read(cls, path: Path, *, pipeline: str) -> Clip:
        """All packets of a file. Raises ``client.UnreadableInput``."""
        feed = open_file(path, path.name, realtime=False, format=None)
        try:
            return cls(f"{pipeline}_video", replace(feed.format, results=64), tuple(feed.packets()))
        finally:
            feed.close()

    def requests(self, *said: bytes) -> Requests:
        """Requests of one stream."""
        sequence_id = random.getrandbits(62) + 1
        return [self.request(data, sequence_id) for data in said]

    def request(self, data: bytes, sequence_id: int) -> Any:
        """One request as our own client sends it."""
        request = messages.ModelInferRequest(model_name=self.model)
        request.parameters["sequence_id"].int64_param = sequence_id
        request.inputs.append(
            messages.ModelInferRequest.InferInputTensor(name=MESSAGE, datatype="UINT8", shape=[len(data)])
        )
        request.raw_input_contents.append(data)
        return request

    @property
    def queue(self) -> list[bytes]:
        """Good packets, a message each, that are on their way when the stream ends."""
        return [pack(Packets((self.packets[number % len(self.packets)],))) for number in range(_QUEUED)]

    def opened(self, *said: bytes) -> Requests:
        """An open stream, these messages, and the queue behind them."""
        return self.requests(pack(self.opening), *said, *self.queue)

    def refused(self, **fields: Any) -> Requests:
        """A stream that may not be opened."""
        return self.requests(pack(replace(self.opening, **fields)), *self.queue)

    def fed(self, data: bytes) -> Requests:
        """An open stream with one packet of this content among good ones."""
        return self.opened(pack(Packets(self.packets[:3])), pack(Packets((Packet(data, 3, 3, 1, True),))))

    def flooded(self, data: bytes) -> Requests:
        """A stream of start codes whose first packet has this content."""
        opening = replace(self.opening, extradata=b"")
        return self.requests(pack(opening), pack(Packets((Packet(data, 0, 0, 1, True),))), *self.queue)


def _mutated(clip: Clip, chance: random.Random) -> Requests:
    packets = []
    for packet in clip.packets:
        data = bytearray(packet.data)
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        packets.append(pack(Packets((replace(packet, data=bytes(data)),))))
    return clip.requests(pack(clip.opening), *packets, pack(Close()))


def _ahead(clip: Clip, chance: random.Random) -> Requests:
    data = chance.randbytes(_BUFFER_BYTES // 4)
    return clip.opened(*[pack(Packets((Packet(data, n, n, 1, True),))) for n in range(8)])


def _changed(clip: Clip, change: Callable[[Any, int], None]) -> Requests:
    """A good stream in which one request of Triton's is wrong, so that Triton itself refuses it."""
    requests = clip.opened()
    for place, request in enumerate(requests[1:_QUEUED]):
        change(request, place)
    return requests


def _unknown_model(request: Any, place: int) -> None:
    request.model_name = "nobody_video" if place % 3 == 0 else request.model_name


def _wrong_input(request: Any, place: int) -> None:
    request.inputs[0].name = "nothing" if place % 3 == 0 else request.inputs[0].name


def _wrong_type(request: Any, place: int) -> None:
    request.inputs[0].datatype = "FP32" if place % 3 == 0 else "UINT8"


def _pictures(clip: Clip, chance: random.Random) -> Requests:
    """What the models of images refuse, in a stream as well."""
    requests = []
    for _ in range(_QUEUED):
        data = chance.randbytes(100)
        tensor = messages.ModelInferRequest.InferInputTensor(name=IMAGE, datatype="UINT8", shape=[1, len(data)])
        requests.append(
            messages.ModelInferRequest(
                model_name=clip.model.removesuffix("_video"), inputs=[tensor], raw_input_contents=[data]
            )
        )
    return requests


KINDS: dict[str, Kind] = {
    "pictures too large": lambda clip, _: clip.refused(width=9999, height=9999),
    "unknown codec": lambda clip, _: clip.refused(codec="theora"),
    "too many frames a second": lambda clip, _: clip.refused(fps=10_000.0),
    "no results wanted": lambda clip, _: clip.refused(results=0),
    "an older version": lambda clip, _: clip.refused(version=1),
    "a header of floods": lambda clip, _: clip.refused(extradata=b"\0\0\1\x67" * 10_000),
    "random header": lambda clip, chance: clip.refused(extradata=chance.randbytes(200)),
    "garbage as a message": lambda clip, chance: clip.opened(chance.randbytes(500)),
    "garbage alone": lambda clip, chance: clip.requests(*[chance.randbytes(100) for _ in range(_QUEUED)]),
    "a message cut short": lambda clip, chance: clip.opened(clip.queue[0][: chance.randrange(1, 40)]),
    "opened twice": lambda clip, _: clip.opened(pack(clip.opening), b""),
    "packets before the opening": lambda clip, _: clip.requests(*clip.queue, pack(clip.opening)),
    "packets behind the close": lambda clip, _: clip.opened(pack(Close())),
    "garbage as packets": lambda clip, chance: clip.fed(chance.randbytes(20_000)),
    "flood of start codes": lambda clip, _: clip.flooded(b"\0\0\1\x65" * 1_000_000),
    "flood of information": lambda clip, _: clip.flooded(b"\0\0\1\6" + (b"\5\x10" + b"A" * 16) * 200_000),
    "a packet beyond the buffer": lambda clip, chance: clip.fed(chance.randbytes(_BUFFER_BYTES + 1)),
    "far too much ahead": _ahead,
    "credit without end": lambda clip, _: clip.opened(pack(Credit(1 << 20))),
    "credit for nothing": lambda clip, _: clip.requests(pack(clip.opening), *[pack(Credit(0))] * _QUEUED),
    "empty packets": lambda clip, _: clip.requests(pack(clip.opening), *[pack(Packets(()))] * _QUEUED),
    "nothing behind the opening": lambda clip, _: clip.requests(pack(clip.opening)),
    "mutated packets": _mutated,
    "bad pictures": _pictures,
}
"""What is sent; each ends by the server's word, or by its client's patience, at which it vanishes."""

REFUSED_BY_TRITON: dict[str, Kind] = {
    "unknown model": lambda clip, _: _changed(clip, _unknown_model),
    "input of another name": lambda clip, _: _changed(clip, _wrong_input),
    "input of another type": lambda clip, _: _changed(clip, _wrong_type),
}
"""What is answered with Triton's own errors. *Unknown model*, among good messages, ends tritonserver 2.51 now and then
(an assertion of gRPC's)."""


def attack(stub: Any, requests: Requests, *, header: bool) -> str:
    """Send a hostile stream; how it ended: the code of the server's last event, or gRPC's status."""
    # The stream stays open for the sender, as that of a client that waits for results.
    over = threading.Event()

    def contents() -> Iterator[Any]:
        yield from requests
        over.wait(_CALL_S)

    call = stub.ModelStreamInfer(contents(), metadata=KILLS_TRITON if header else (), timeout=_CALL_S)
    try:
        for answer in call:
            if answer.error_message:
                return "Triton's error"
            code = _code_in(answer.infer_response)
            if code is not None:
                return code
        return "ended"
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        over.set()
        # What the server still holds of it is let go, as where a client vanishes.
        call.cancel()


def _code_in(response: Any) -> str | None:
    for output, data in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == EVENT:
            event = Event.from_json(data[4:])
            return str(event.fields["code"]) if event.type == "ended" else None
    return None


@contextmanager
def connected(url: str, token: str | None) -> Iterator[Any]:
    """A stub of the server's; ``url`` and ``token`` as ``client.Client`` takes them."""
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    opened = grpc.insecure_channel(parts.netloc, options=options)
    if parts.scheme == "grpcs":
        credentials = grpc.ssl_channel_credentials()
        if token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        opened = grpc.secure_channel(parts.netloc, credentials, options=options)
    with opened as channel:
        yield GRPCInferenceServiceStub(channel)


class GoodStreams:
    """Plays a clip again and again, and compares every frame with what came before the attacks.

    ``hurt`` says what was different or failed.
    """

    def __init__(self, url: str, token: str | None, clip: Path, *, pipeline: str) -> None:
        self._client = Client(url, token=token, timeout_s=60)
        self._clip, self._pipeline = clip, pipeline
        self._expected = self._play()
        self._stop = threading.Event()
        self.streams = self.frames = 0
        self.longest_s = 0.0
        self.hurt: list[str] = []

    def _play(self) -> list[Any]:
        with self._client.stream(self._clip, pipeline=self._pipeline) as frames:
            return [(frame.frame_index, frame.pts, frame.tensors) for frame in frames]

    def run(self) -> None:
        """Until ``stop``."""
        while not self._stop.is_set():
            self.play_once()

    def play_once(self) -> None:
        """One stream, compared."""
        began_s = time.monotonic()
        try:
            found = self._play()
            self._compare(found)
            self.frames += len(found)
        except OnestreamError as error:
            self.hurt.append(f"{type(error).__name__}: {error}")
        self.streams += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _compare(self, found: list[Any]) -> None:
        if [one[:2] for one in found] != [one[:2] for one in self._expected]:
            self.hurt.append(f"frames {[one[0] for one in found]} came, not those of the first run")
            return
        for (index, _, tensors), (_, _, expected) in zip(found, self._expected, strict=True):
            for name, values in tensors.items():
                # Batches of another size are summed in another order, nothing else.
                same = (
                    np.allclose(values, expected[name], atol=1e-4)
                    if values.dtype.kind == "f"
                    else np.array_equal(values, expected[name])
                )
                if not same:
                    self.hurt.append(f"frame {index}: {name} differs")

    def stop(self) -> None:
        """Let ``run`` come to its end."""
        self._stop.set()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def measure(
    *,
    url: str,
    clip: Path,
    streams: int,
    seed: int,
    progress: Callable[[str], None],
    pipeline: str = "classify",
    token: str | None = None,
    headers: Sequence[bool] = (False, True),
    triton_refuses: bool = False,
) -> dict[str, object]:
    """Send ``streams`` hostile streams to the server at ``url`` beside good ones of ``clip``, H.264.

    Args:
        url: the server's address, or the proxy's; gRPC.
        clip: a short video that the server takes.
        streams: hostile streams in all; the kinds take turns.
        seed: of all that is random.
        progress: receives a line now and then.
        pipeline: whose ``_video`` model is attacked.
        token: for a proxy.
        headers: with and without ``KILLS_TRITON``, in turn.
        triton_refuses: send ``REFUSED_BY_TRITON`` too, which tritonserver 2.51 may not survive.

    Returns:
        ``alive`` after all, ``hostile`` and how they ended (``ends`` by kind), ``good_streams`` and ``good_frames``
        that were compared, what was ``hurt``, and the longest good stream in seconds.
    """
    kinds = {**KINDS, **(REFUSED_BY_TRITON if triton_refuses else {})}
    good = GoodStreams(url, token, clip, pipeline=pipeline)
    hostile = Clip.read(clip, pipeline=pipeline)
    ends: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    playing = threading.Thread(target=good.run, name="good-streams", daemon=True)
    playing.start()

    def one(number: int) -> None:
        name = list(kinds)[number % len(kinds)]
        header = headers[number // len(kinds) % len(headers)]
        with connected(url, token) as stub:
            ends[name][attack(stub, kinds[name](hostile, random.Random(seed + number)), header=header)] += 1
        if number % 100 == 0:
            progress(f"{number} of {streams} hostile streams, {good.streams} good ones, {len(good.hurt)} hurt")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, range(streams)))
    good.stop()
    playing.join()
    hurt_before = len(good.hurt)
    good.play_once()
    good.close()
    return {
        "alive": len(good.hurt) == hurt_before,
        "hostile": streams,
        "ends": {name: dict(counts) for name, counts in ends.items()},
        "good_streams": good.streams,
        "good_frames": good.frames,
        "hurt": good.hurt,
        "longest_good_stream_s": round(good.longest_s, 3),
    }
