"""The model of video streams in this process: its own sessions, threads and encoder, without Triton."""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from patience import PATIENCE_S
from triton_stand_in import Response

from onestream.client.video.sources import File
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import EVENT, VIDEO
from onestream.wire.video import Close, Message, Open, Packets, pack


@dataclass
class Stream:
    """One client's stream: what it sends, and what it was sent. ``rest`` are packets that it keeps back."""

    model: Any
    number: int
    frames: list[tuple[Mapping[str, Any], bytes]] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None
    gone: bool = False
    rest: Packets = field(default_factory=lambda: Packets(()))
    changed: threading.Condition = field(default_factory=threading.Condition)

    def say(self, message: Message | bytes) -> None:
        content = np.frombuffer(message if isinstance(message, bytes) else pack(message), np.uint8)
        sender = self if isinstance(message, Open) else _Unheard()
        request = types.SimpleNamespace(given=content, get_response_sender=lambda: sender)
        request.correlation_id, request.request_id = (lambda: self.number), (lambda: "")
        self.model.answer([request])

    def is_cancelled(self) -> bool:
        return self.gone

    def send(self, *responses: Response, flags: int = 0) -> None:  # noqa: ARG002
        with self.changed:
            for response in responses:
                event = json.loads(response.tensors[EVENT][0])
                for row, frame in enumerate(event.get("frames", ())):
                    self.frames.append((frame, response.tensors[VIDEO][row].tobytes()))
                if event["type"] == "ended":
                    self.ended = event["fields"]
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (len(self.frames), self.ended)


class _Unheard:
    """The sender of a message that is not answered."""

    def send(self, *_responses: Any, flags: int = 0) -> None:
        pass

    def is_cancelled(self) -> bool:
        return False


def a_model(folder: Path, pipeline: Pipeline, *, kind: str) -> Any:
    """The video model of a pipeline, loaded as on an instance of this ``kind``, CPU or GPU. To be finalized."""
    from onestream.serving.video.model import Video

    folder.mkdir(exist_ok=True)
    definition = pipeline.preprocess
    (folder / "definition.json").write_text(definition.canonical_json())
    parameters = {
        "definition": definition.canonical_json(),
        "definition_digest": definition.digest,
        "pipeline": "matte",
        "network_outputs": "person",
        "network_batch": "4",
        "postprocess": pipeline.postprocess.model_dump_json(),
        "video": pipeline.video.model_dump_json(),
    }
    config = {
        "input": [],
        "output": [{"name": EVENT}, {"name": VIDEO}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        "max_batch_size": 0,
    }
    model = Video()
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_repository": str(folder),
            "model_version": "1",
            "model_name": "matte_video",
            "model_instance_kind": kind,
            "model_instance_device_id": "0",
            "model_instance_name": "matte_video_0_1",
        }
    )
    return model


def begin(model: Any, clip: Path, *, number: int = 1, packets: int | None = None) -> Stream:
    """Open a stream of a file as a client does, and send its packets, or the first of them."""
    stream, feed = Stream(model, number), File(clip).connect()
    stream.say(replace(feed.format, results=1000))
    found = tuple(feed.packets())
    feed.close()
    stream.say(Packets(found[:packets]))
    if packets is None:
        stream.say(Close())
    else:
        stream.rest = Packets(found[packets:])
    return stream


def composed(model: Any, clip: Path, *, number: int = 1) -> list[tuple[Mapping[str, Any], bytes]]:
    """What events say of a clip's frames, without what depends on the time, and their packets of H.264."""
    stream = begin(model, clip, number=number)
    stream.wait_for(lambda: stream.ended)
    assert stream.ended == {"code": "done", "reason": "done"}
    return [({key: value for key, value in said.items() if key != "latency_ms"}, data) for said, data in stream.frames]


def pictures(*packets: bytes) -> list[Any]:
    """What a decoder of H.264 shows of these packets."""
    context: Any = av.CodecContext.create("h264", "r")
    return [frame for data in (*packets, None) for frame in context.decode(av.Packet(data) if data else None)]
