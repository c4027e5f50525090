"""A gRPC server that keeps the protocol of video streams and decodes nothing: each packet is a frame with a result.

It watches that the client keeps the protocol too: what it did wrong is in ``faults``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from client_fakes import classification, kind_of
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from onestream.client import Tensors
from onestream.wire.video import Close, Credit, Event, Open, Packet, Packets, unpack


@dataclass
class Behaviour:
    """How the server treats streams."""

    buffer_bytes: int = 64 * 1024
    refuse: tuple[str, str] | None = None
    """Refuse the stream, by code and reason."""
    error_message: str = ""
    """Answer the first message with an error within the conversation, which has no status."""
    frame_s: float = 0.0
    """How long it works on each frame."""
    fail_after: int | None = None
    """After so many frames of a connection, answer with ``failure``."""
    failure: tuple[str | grpc.StatusCode, str] = ("failed", "the network failed")
    """Code and reason, or a status of gRPC and its details, as where a server breaks."""
    end_after: int | None = None
    """After so many frames of a connection, say that it ended."""
    silent_after: int | None = None
    """After so many frames of a connection, say nothing more."""
    silent: bool = False
    before_opened: str = ""
    """Before it opens the stream, it sends events of this type for as long as the client listens."""
    talks: str = ""
    """In the place of saying nothing, it sends events of this type, which tell of nothing done."""
    overstates: bool = False
    """It says that it consumed more than was sent."""
    too_many_results: bool = False
    together: int = 1
    """How many results it sends at once where so many packets wait."""
    sees: Callable[[int], Tensors] = lambda number: classification((f"class {number}", number, 0.9), ("other", 1, 0.1))
    """What it answers to a frame, by its number; with ``together`` always in the same shapes."""


@dataclass
class Seen:
    """One stream, as the server saw it."""

    opened: Open | None = None
    packets: list[Packet] = field(default_factory=list)
    received_bytes: int = 0
    consumed_bytes: int = 0
    most_unconsumed_bytes: int = 0
    credit: int = 0
    sent: int = 0
    messages: int = 0
    sequence_id: int = 0
    closed: bool = False
    hung_up: bool = False
    answered: bool = False
    cancelled: bool = False
    waiting: deque[Packet] = field(default_factory=deque)
    over: bool = False


class FakeServer(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves ``MODEL_video`` of any name on a free port of this machine."""

    def __init__(self, behaviour: Behaviour | None = None, *, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.streams: list[Seen] = []
        self.faults: list[str] = []
        self._changed = threading.Condition()
        self._server = grpc.server(
            ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        )
        add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Break every connection."""
        self._server.stop(None).wait()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        seen = Seen()
        self.streams.append(seen)
        asked = [key for key, _ in context.invocation_metadata()]
        self._check("triton_grpc_error" not in asked, "the client asks for errors by which tritonserver 2.51 dies")

        def over() -> None:
            with self._changed:
                seen.over = True
                # Not by hung_up: of a cancelled call, too, gRPC may first say that its messages ended.
                seen.cancelled = not seen.answered
                self._changed.notify_all()

        context.add_callback(over)
        threading.Thread(target=self._read, args=(request_iterator, seen), daemon=True).start()
        yield from self._answer(seen, context)

    def _read(self, requests: Any, seen: Seen) -> None:
        try:
            for request in requests:
                with self._changed:
                    self._receive(request, seen)
                    self._changed.notify_all()
            with self._changed:
                seen.hung_up = True
                self._changed.notify_all()
        except grpc.RpcError:
            return
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")

    def _receive(self, request: Any, seen: Seen) -> None:
        (data,) = request.raw_input_contents
        (tensor,) = request.inputs
        message = unpack(data)
        parameters = request.parameters
        self._check(list(tensor.shape) == [len(data)], f"shape {list(tensor.shape)} of {len(data)} bytes")
        self._check(tensor.name == "message", f"input {tensor.name}")
        self._check(isinstance(message, Open) == (seen.messages == 0), "only the first message opens")
        seen.sequence_id = seen.sequence_id or parameters["sequence_id"].int64_param
        self._check(parameters["sequence_id"].int64_param == seen.sequence_id != 0, "one sequence id")
        seen.messages += 1
        if isinstance(message, Open):
            seen.opened, seen.credit = message, message.results
        if isinstance(message, Credit | Packets):
            seen.credit += message.results
            self._check(
                seen.opened is not None and seen.credit <= seen.opened.results, "more credit than results taken"
            )
        if isinstance(message, Close):
            seen.closed = True
        elif isinstance(message, Packets):
            self._check(not seen.closed, "packets behind the close")
            for packet in message.packets:
                seen.packets.append(packet)
                seen.waiting.append(packet)
                seen.received_bytes += len(packet.data)
            unconsumed = seen.received_bytes - seen.consumed_bytes
            seen.most_unconsumed_bytes = max(seen.most_unconsumed_bytes, unconsumed)
            self._check(unconsumed <= self.behaviour.buffer_bytes, f"{unconsumed} bytes are not consumed")

    def _check(self, right: bool, fault: str) -> None:
        if not right:
            self.faults.append(fault)

    def _answer(self, seen: Seen, context: Any) -> Iterator[Any]:
        with self._changed:
            self._changed.wait_for(lambda: seen.opened is not None or seen.over)
        if seen.over:
            return
        behaviour = self.behaviour
        while (behaviour.silent or behaviour.before_opened) and not seen.over:
            time.sleep(0.02)
            if behaviour.before_opened:
                yield self._event(behaviour.before_opened, seen)
        if behaviour.refuse is not None:
            yield from self._last_word(seen, *behaviour.refuse)
            return
        if behaviour.error_message:
            yield messages.ModelStreamInferResponse(error_message=behaviour.error_message)
            return
        kind = kind_of(behaviour.sees(0))
        yield self._event("opened", seen, buffer_bytes=behaviour.buffer_bytes, results=32, kind=kind)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        seen.over
                        or (seen.waiting and (seen.credit or behaviour.too_many_results))
                        or (seen.closed and not seen.waiting)
                    )
                )
                if seen.over:
                    return
                if not seen.waiting:
                    break
                count = max(1, min(behaviour.together, len(seen.waiting), seen.credit))
                packets = [seen.waiting.popleft() for _ in range(count)]
                seen.credit -= count
                index, seen.sent = seen.sent, seen.sent + count
                seen.consumed_bytes += sum(len(packet.data) for packet in packets)
            time.sleep(behaviour.frame_s)
            yield self._results(seen, index, packets)
            if seen.sent == behaviour.fail_after:
                if isinstance(behaviour.failure[0], grpc.StatusCode):
                    context.abort(*behaviour.failure)
                yield from self._last_word(seen, *behaviour.failure)
                return
            if seen.sent == behaviour.end_after:
                break
            while seen.sent == behaviour.silent_after and not seen.over:
                time.sleep(0.02)
                if behaviour.talks:
                    yield self._event(behaviour.talks, seen, buffer_bytes=behaviour.buffer_bytes, results=32)
        yield from self._last_word(seen, "done", "done" if seen.closed else "the server is tired")

    def _last_word(self, seen: Seen, code: str, reason: str) -> Iterator[Any]:
        yield self._event("ended", seen, code=code, reason=reason)
        with self._changed:
            self._changed.wait_for(lambda: seen.over or seen.hung_up)
            seen.answered = not seen.over

    def _results(self, seen: Seen, first: int, packets: list[Packet]) -> Any:
        indices = range(first, first + len(packets))
        frames = [
            {
                "index": index,
                "pts": packet.pts,
                "pts_seconds": None if packet.pts is None else float(packet.pts * seen.opened.time_base),
                "latency_ms": 1.5,
            }
            for index, packet in zip(indices, packets, strict=True)
        ]
        answer = self._event("results", seen, frames=frames)
        response = answer.infer_response
        found = [self.behaviour.sees(index) for index in indices]
        for name in found[0]:
            array = np.concatenate([tensors[name] for tensors in found])
            datatype = {"f": "FP32", "i": "INT32", "O": "BYTES"}[array.dtype.kind]
            response.outputs.add(name=name, datatype=datatype, shape=array.shape)
            response.raw_output_contents.append(_strings(*array.flat) if datatype == "BYTES" else array.tobytes())
        return answer

    def _event(self, kind: Any, seen: Seen, /, *, frames: Sequence[dict[str, Any]] = (), **fields: object) -> Any:
        event = Event(
            type=kind,
            consumed_bytes=seen.consumed_bytes + (1 << 20) * self.behaviour.overstates,
            decoded=seen.sent,
            inferred=seen.sent,
            dropped=seen.sent // 10,
            concealed=seen.sent // 20,
            color={"matrix": "bt601", "range": "limited", "matrix_from": "assumed", "range_from": "file"},
            fields=fields,
            frames=frames,
        )
        response = messages.ModelInferResponse(model_name="fake_video")
        response.outputs.add(name="event", datatype="BYTES", shape=[1])
        response.raw_output_contents.append(_strings(event.to_json().encode()))
        return messages.ModelStreamInferResponse(infer_response=response)


def _strings(*values: bytes) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)
