"""The model of video streams in this process: its own sessions, threads and encoder, without Triton.

``triton`` stands in the place of the module that Triton gives its Python models; the network is a function.
"""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from patience import PATIENCE_S

from onestream.client.video.sources import File
from onestream.serving.pipeline import Pipeline
from onestream.wire.tensor_names import EVENT, MESSAGE, VIDEO
from onestream.wire.video import Close, Message, Open, Packets, pack

Array = npt.NDArray[Any]
Network = Callable[[Array], Array]
"""Pixels (frames, height, width, channels), uint8, to the person's probabilities (frames, height, width)."""


class Tensor:
    """Triton's: a name and values."""

    def __init__(self, name: str, values: Array) -> None:
        self.name, self.values = name, values

    @classmethod
    def from_dlpack(cls, name: str, given: Any) -> Tensor:
        return cls(name, given.numpy())

    def as_numpy(self) -> Array:
        return self.values


def triton(network: Network) -> types.ModuleType:
    """A module to stand in ``sys.modules["triton_python_backend_utils"]``; ``said`` has what models logged."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.said = []
    module.Logger = types.SimpleNamespace(
        log_info=module.said.append, log_warn=module.said.append, log_error=module.said.append
    )

    class InferenceRequest:
        def __init__(self, *, inputs: list[Tensor], **_options: Any) -> None:
            self._pixels = inputs[0].values

        def exec(self) -> Any:
            # A network on a GPU would read it there, and give back memory of its own.
            person = Tensor("person", np.array(network(self._pixels.copy()), np.float32))
            return types.SimpleNamespace(has_error=lambda: False, outputs=[person])

    module.Tensor, module.InferenceRequest = Tensor, InferenceRequest
    module.InferenceResponse = lambda tensors: {one.name: one.values for one in tensors}
    module.PreferredMemory = lambda _kind: None
    module.TRITONSERVER_MEMORY_CPU, module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 0, 1
    module.get_input_tensor_by_name = lambda request, _name: Tensor(MESSAGE, request.content)
    module.get_output_tensor_by_name = lambda response, name: next(one for one in response.outputs if one.name == name)
    counter = types.SimpleNamespace(increment=lambda _more: None, set=lambda _value: None)
    module.MetricFamily = lambda **_options: types.SimpleNamespace(Metric=lambda labels: counter)  # noqa: ARG005
    module.MetricFamily.GAUGE = module.MetricFamily.COUNTER = 0
    return module


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
        self.model.answer(
            [
                types.SimpleNamespace(
                    content=content,
                    get_response_sender=lambda: sender,
                    correlation_id=lambda: self.number,
                    request_id=lambda: "",
                )
            ]
        )

    def is_cancelled(self) -> bool:
        return self.gone

    def send(self, *responses: Mapping[str, Array], flags: int = 0) -> None:  # noqa: ARG002
        with self.changed:
            for response in responses:
                event = json.loads(response[EVENT][0])
                for row, frame in enumerate(event.get("frames", ())):
                    self.frames.append((frame, response[VIDEO][row].tobytes()))
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
    assert pipeline.video is not None
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
