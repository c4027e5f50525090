"""A program: rename in ``wire`` what two sides must agree on, then see whether they still do.

Arguments: the checkout, and an empty folder.
"""

# ruff: noqa: E402 (what is imported later takes the new names)

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np

from onestream.wire import limits, refusals, tensor_names

for name in [name for name in vars(tensor_names) if name.isupper()]:
    setattr(tensor_names, name, f"renamed_{name}")
limits.DEFAULT_MAX_BODY_BYTES, limits.MAX_BODY_BYTES_PARAMETER = 12345, "most_bytes"
limits.MAX_PIXELS_PARAMETER, limits.MAX_INPUT_VALUES_PARAMETER = "most_pixels", "most_values"
limits.DEFAULT_TIMEOUT_S, limits.TIMEOUT_PARAMETER = 77, "patience_s"
refusals.MAY_BE_SENT_AGAIN = "; ask once more"
refusals.QUEUE_IS_FULL, refusals.WAITED_TOO_LONG = "no place is left", "it took too long"
from onestream.wire import kinds

kinds.KIND_PARAMETER = "renamed_kind"
# The server's models import it; nothing here calls it.
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")

from onestream.client import Classification, ServerOverloaded, ServerUnavailable, calls
from onestream.client._transports import grpc_calls, http_calls
from onestream.client._transports.base import InferRequest, RequestMetadata
from onestream.client._transports.refusals import refusal
from onestream.client.retries import Deadline
from onestream.client.video.results import encoded_in, result_of
from onestream.postprocess.kinds import Opening
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import Limits
from onestream.preprocess.headers.base import Header
from onestream.preprocess.limits import undecodable
from onestream.serving.building import pipeline_repository
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine.base import EngineTensor
from onestream.serving.models import heavy_pictures
from onestream.serving.pipeline import Pipeline
from onestream.serving.proxy.settings import PublicModel, public_models

ROOT, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
PIPELINE = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
REQUEST = InferRequest("classify", RequestMetadata("id"), b"x")
OUTPUTS, LABELS = [NetworkOutput("logits", "float32", (5,))], "a\nb\nc\nd\ne\n"


def tensors() -> None:
    """The generated models have the tensors that the client sends and reads."""
    planned = pipeline_repository.plan(PIPELINE, OUTPUTS, labels=LABELS)
    for path, content in planned.files(source="anywhere").items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_bytes(content)
    config = from_text((FOLDER / "classify" / "config.pbtxt").read_text())
    (sent,) = json.loads(http_calls.infer(REQUEST, timeout_s=1.0).body[0])["inputs"]
    (also_sent,) = grpc_calls.infer(REQUEST, timeout_s=1.0).message.inputs
    assert {one.name for one in config.input} == {sent["name"], also_sent.name} == {"renamed_IMAGE"}
    options = PIPELINE.postprocess.model_copy(update={"activation": "softmax"})
    postprocess = options.open(Opening(PIPELINE.preprocess, labels=list("abcde")))
    (outputs,) = postprocess({"logits": np.array([[1.0, 3.0, 2.0, 0.0, -1.0]], np.float32)}, [])
    assert {one.name for one in config.output} == set(outputs)
    by_call = Classification.from_tensors("classify", outputs, "id", 1.0).labels
    assert [label.label for label in by_call] == ["b", "c", "a", "d", "e"]
    by_stream = result_of("classification", "m", {name: value[0] for name, value in outputs.items()}, 1.0)
    assert isinstance(by_stream, Classification)
    assert by_stream.labels == by_call
    video = from_text((FOLDER / "classify_video" / "config.pbtxt").read_text())
    assert (video.input[0].name, video.output[0].name) == ("renamed_MESSAGE", "renamed_EVENT")
    picture = {"renamed_VIDEO": np.zeros(3, np.uint8)}
    assert encoded_in(picture, {"key": True, "width": 2, "height": 2}) is not None


def limit() -> None:
    """The size limit and the timeout are the same for all where none is stated, and read where one is."""
    assert Limits().max_body_bytes == PublicModel(name="any").max_body_bytes == 12345
    unknown = calls.limits_of({}, max_answer_bytes=1)
    assert (unknown.body_bytes, unknown.timeout_s) == (12345, Deadline(None).timeout_s) == (12345, 77)
    changed = PIPELINE.model_copy(update={"serving": PIPELINE.serving.model_copy(update={"timeout_s": 99})})
    assert PIPELINE.serving.timeout_s == 77
    for planned, timeout_s in ((PIPELINE, 77), (changed, 99)):
        files = pipeline_repository.plan(planned, OUTPUTS, labels=LABELS).files(source="anywhere")
        for model in ("classify", "classify_fused"):
            config = from_text(files[f"{model}/config.pbtxt"].decode())
            parameters = {key: {"string_value": value.string_value} for key, value in config.parameters.items()}
            read = calls.limits_of({"parameters": parameters}, max_answer_bytes=1)
            assert (read.body_bytes, read.timeout_s) == (PIPELINE.limits.max_body_bytes, timeout_s)
            assert (read.kind, read.pixels) == ("classification", PIPELINE.limits.max_pixels)
    silent = PIPELINE.model_copy(update={"video": None})
    points = EngineTensor("points", "float32", (-1, 2))
    files = pipeline_repository.plan(silent, OUTPUTS, inputs=[points], labels=LABELS).files(source="anywhere")
    config = from_text(files["classify_fused/config.pbtxt"].decode())
    parameters = {key: {"string_value": value.string_value} for key, value in config.parameters.items()}
    read = calls.limits_of({"parameters": parameters}, max_answer_bytes=1)
    assert read.input_values == PIPELINE.limits.max_input_values
    stated = PIPELINE.limits.max_body_bytes
    assert {model.max_body_bytes for model in public_models(FOLDER) if not model.streams} == {stated} != {12345}


def texts() -> None:
    """The client knows the refusals that the server writes."""
    no_memory = undecodable(Header("PNG", 30000, 30000), "damaged", MemoryError()).reason
    assert isinstance(refusal("INTERNAL", no_memory, model="m", url="u"), ServerUnavailable)
    for text in (refusals.QUEUE_IS_FULL, heavy_pictures.WAITED_TOO_LONG):
        assert isinstance(refusal("INTERNAL", text, model="m", url="u"), ServerOverloaded)


tensors()
limit()
texts()
print("agreed")
