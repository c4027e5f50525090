"""Clients that know nothing of onestream, unmodified: as their manuals say, and with shapes that no model can take."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from patience import PATIENCE_S
from PIL import Image
from shared_server import CLASSIFY, Served, SharedServer
from small_models import write_model
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from windows import WINDOWS

from onestream.client import Client


def write_plus_one(folder: Path) -> None:
    write_model(folder, "plain_plus_one")


ARRAYS: dict[str, Any] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 200, 255], np.uint8),
    "INT16": np.array([-(2**15), -3, 2**15 - 1], np.int16),
    "INT64": np.array([-(2**63), 0, 2**63 - 1]),
    "FP16": np.array([-0.5, 3.25, 65504], np.float16),
    "FP32": np.array([-0.1, np.pi, 3e38], np.float32),
    "FP64": np.array([-0.1, np.pi, 1e308]),
    "BYTES": np.array([b"", b"\x00\xff", "Größe".encode()], np.object_),
}
MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.reversed(one) for one in request.inputs()]) for request in requests]

    def reversed(self, tensor):
        return pb_utils.Tensor(f"{tensor.name()}_reversed", tensor.as_numpy()[::-1].copy())
"""


def write_reversing(folder: Path) -> None:
    (folder / "reversing" / "1").mkdir(parents=True)
    (folder / "reversing" / "1" / "model.py").write_text(MODEL)
    types = {name: f"TYPE_{'STRING' if name == 'BYTES' else name}" for name in ARRAYS}
    inputs = [f'{{ name: "{name}" data_type: {kind} dims: [ -1 ] }}' for name, kind in types.items()]
    outputs = [one.replace('" data', '_reversed" data') for one in inputs]
    config = f'backend: "python"\ninput [ {", ".join(inputs)} ]\noutput [ {", ".join(outputs)} ]\n'
    (folder / "reversing" / "config.pbtxt").write_text(config)


REVERSING = Served("reversing", write_reversing)
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.serves(CLASSIFY, Served("plain_plus_one", write_plus_one), REVERSING, WINDOWS),
]
COFFEE = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
X = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}


@pytest.fixture(scope="module")
def triton(server: SharedServer) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(server.http_address) as client:
        yield client


def infer_url(server: SharedServer, model: str) -> str:
    return f"{server.http_url}/v2/models/{model}/infer"


@pytest.mark.parametrize("binary", [True, False])
def test_simple_http_infer_client(triton: Any, binary: bool) -> None:
    """``simple_http_infer_client.py``: inputs and outputs in JSON or as binary data, and the model's statistics."""
    tensor = tritonclient.http.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[1.5]], np.float32), binary_data=binary)
    output = tritonclient.http.InferRequestedOutput("y", binary_data=binary)
    assert triton.infer("plain_plus_one", [tensor], outputs=[output]).as_numpy("y").tolist() == [[2.5]]
    waiting = [triton.async_infer("plain_plus_one", [tensor], outputs=[output]) for _ in range(3)]
    assert [one.get_result().as_numpy("y").item() for one in waiting] == [2.5] * 3
    assert triton.get_inference_statistics("plain_plus_one")["model_stats"][0]["name"] == "plain_plus_one"


def test_image_client(triton: Any) -> None:
    """``image_client.py``: the model's metadata say what is sent, and the classes come by Triton's extension."""
    metadata, config = triton.get_model_metadata("classify_model"), triton.get_model_config("classify_model")
    (declared,), (produced,) = metadata["inputs"], metadata["outputs"]
    assert config["max_batch_size"] > 0
    _, height, width, _ = declared["shape"]
    pixels = np.asarray(Image.open(COFFEE).resize((width, height)), np.uint8)[None]
    tensor = tritonclient.http.InferInput(declared["name"], pixels.shape, declared["datatype"])
    tensor.set_data_from_numpy(pixels)
    output = tritonclient.http.InferRequestedOutput(produced["name"], class_count=3)
    classes = triton.infer(metadata["name"], [tensor], outputs=[output]).as_numpy(produced["name"])
    assert classes[0][0].decode().split(":")[1:] == ["967", "espresso"]


def test_image_bytes(triton: Any) -> None:
    """The body is several MB: of a form that Triton's 8 MB stacks would not hold."""
    image = np.frombuffer(COFFEE.read_bytes() + bytes(6_000_000), np.uint8)[None]
    tensor = tritonclient.http.InferInput("image", image.shape, "UINT8")
    tensor.set_data_from_numpy(image)
    assert triton.infer("classify", [tensor]).as_numpy("labels")[0][0] == b"espresso"


def test_simple_http_shm_client(triton: Any) -> None:
    """``simple_http_shm_client.py``: a region is registered by a body in JSON."""
    region = shm.create_shared_memory_region("plain_in", "/onestream_plain_in", 4)
    try:
        shm.set_shared_memory_region(region, [np.array([[1.5]], np.float32)])
        triton.register_system_shared_memory("plain_in", "/onestream_plain_in", 4)
        tensor = tritonclient.http.InferInput("x", [1, 1], "FP32")
        tensor.set_shared_memory("plain_in", 4)
        assert triton.infer("plain_plus_one", [tensor]).as_numpy("y").item() == 2.5
        triton.unregister_system_shared_memory("plain_in")
    finally:
        shm.destroy_shared_memory_region(region)


def test_arrays_of_every_type_are_read_and_written_exactly(triton: Any) -> None:
    """With the NumPy that is installed, 1 or 2."""
    inputs = [tritonclient.http.InferInput(name, array.shape, name) for name, array in ARRAYS.items()]
    for tensor, array in zip(inputs, ARRAYS.values(), strict=True):
        tensor.set_data_from_numpy(array)
    result = triton.infer("reversing", inputs)
    for name, array in ARRAYS.items():
        found = result.as_numpy(f"{name}_reversed")
        assert (found.dtype, found.tolist()) == (array.dtype, array[::-1].tolist()), name


def test_requests_in_json(server: SharedServer) -> None:
    answer = requests.post(infer_url(server, "plain_plus_one"), json={"inputs": [X]}, timeout=60)
    assert answer.json()["outputs"][0]["data"] == [2.5]
    image = COFFEE.read_bytes()
    tensor = {"name": "image", "shape": [1, len(image)], "datatype": "UINT8", "data": [list(image)]}
    answer = requests.post(infer_url(server, "classify_fused"), json={"inputs": [tensor]}, timeout=60)
    labels = {output["name"]: output["data"] for output in answer.json()["outputs"]}["labels"]
    assert labels[0] == "espresso"


@pytest.mark.parametrize("model", ["classify", "classify_fused"])
def test_of_a_repeated_key_the_first_is_used(server: SharedServer, model: str) -> None:
    image = COFFEE.read_bytes()
    tensor = json.dumps({"name": "image", "shape": [1, len(image)], "datatype": "UINT8", "data": list(image)})
    body = f'{{"id": "a", "id": "b", "parameters": {{"top_k": 1, "top_k": 3}}, "inputs": [{tensor}]}}'
    answer = requests.post(infer_url(server, model), data=body, timeout=60).json()
    assert (answer["id"], answer["outputs"][0]["shape"]) == ("a", [1, 1])


def with_head(image: bytes) -> tuple[bytes, dict[str, str]]:
    """The body of an image as binary data behind its JSON, and the header that tells the JSON's length."""
    parameters = {"binary_data_size": len(image)}
    tensor = {"name": "image", "shape": [1, len(image)], "datatype": "UINT8", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + image, {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize("kind", [None, "application/octet-stream", "application/json", "image/jpeg"])
def test_requests_in_binary(server: SharedServer, kind: str | None) -> None:
    body, headers = with_head(COFFEE.read_bytes())
    headers |= {"Content-Type": kind} if kind else {}
    answer = requests.post(infer_url(server, "classify"), data=body, headers=headers, timeout=60)
    assert "espresso" in answer.text


@pytest.mark.parametrize("padding", [0, 6_000_000])
@pytest.mark.parametrize("model", ["classify", "plain_plus_one"])
def test_curl_without_a_type(server: SharedServer, tmp_path: Path, model: str, padding: int) -> None:
    """curl calls every body a form."""
    body, headers = with_head(COFFEE.read_bytes() + bytes(padding))
    if model == "plain_plus_one":
        body, headers = json.dumps({"inputs": [X]}).encode() + b" " * padding, {}
    (tmp_path / "body").write_bytes(body)
    named = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    command = ["curl", "-s", "--data-binary", f"@{tmp_path / 'body'}", *named, infer_url(server, model)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert (b"espresso" if model == "classify" else b"2.5") in done.stdout


BYTES = {"UINT8": 1, "FP32": 4}


@pytest.fixture(scope="module")
def stub(server: SharedServer) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


def by_grpc(stub: GRPCInferenceServiceStub, model: str, name: str, dtype: str, shape: list[int]) -> str:
    """What is said of a request with zeros of this shape, without its batch where that is 0."""
    request = messages.ModelInferRequest(model_name=model)
    request.inputs.append(messages.ModelInferRequest.InferInputTensor(name=name, datatype=dtype, shape=shape))
    request.raw_input_contents.append(bytes(size_of(dtype, shape)))
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, timeout=PATIENCE_S)
    error: Any = caught.value
    return f"{error.code().name}: {error.details()}"


def by_http(server: SharedServer, model: str, name: str, dtype: str, shape: list[int]) -> str:
    size = size_of(dtype, shape)
    tensor = {"name": name, "datatype": dtype, "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    url = f"{server.http_url}/v2/models/{model}/infer"
    answer = requests.post(url, data=head + bytes(size), headers=headers, timeout=PATIENCE_S)
    return f"{answer.status_code}: {answer.json()['error']}"


def size_of(dtype: str, shape: list[int]) -> int:
    return BYTES[dtype] * prod(shape[1:] if shape[0] == 0 else shape)


@pytest.mark.parametrize(
    ("model", "name", "dtype", "shape"),
    [
        *(
            (form, "image", "UINT8", shape)
            for form in ("classify", "classify_fused", "classify_preprocess")
            for shape in ([0, 0], [0, 3], [0, 70_000])
        ),
        ("classify_model", "pixels", "UINT8", [0, 224, 224, 3]),
        ("classify_postprocess", "logits", "FP32", [0, 1000]),
        ("windows_model", "pixels", "UINT8", [0, 0, 0, 3]),
        ("windows_model", "pixels", "UINT8", [0, 64, 64, 3]),
    ],
)
def test_a_batch_of_none_is_answered(
    server: SharedServer, stub: GRPCInferenceServiceStub, model: str, name: str, dtype: str, shape: list[int]
) -> None:
    # An ensemble takes them for a batch of one.
    expected = "bad image ("
    if model != "classify":
        expected += "bad_request): got a batch of 0; one request is one image"
    said = by_grpc(stub, model, name, dtype, shape)
    assert said.startswith("INVALID_ARGUMENT: ")
    assert expected in said
    said = by_http(server, model, name, dtype, shape)
    assert said.startswith("400: ")
    assert expected in said


def test_others_that_share_its_batch_have_their_answers(server: SharedServer, stub: GRPCInferenceServiceStub) -> None:
    with Client(server.grpc_url, timeout_s=PATIENCE_S) as client, ThreadPoolExecutor(8) as pool:
        alone = client.classify(COFFEE, pipeline="classify_fused").labels
        bad = [pool.submit(by_grpc, stub, "classify_fused", "image", "UINT8", [0, 70_000]) for _ in range(30)]
        items = client.classify_many([COFFEE] * 30, pipeline="classify_fused", in_flight=16)
        assert all(item.unwrap().labels == alone for item in items)
        assert all("got a batch of 0" in one.result() for one in bad)


@pytest.mark.parametrize("shape", [[1, 7, 3, 3], [2, 7, 3, 3]])
def test_what_the_network_does_not_take_is_told_in_one_sentence(
    server: SharedServer, stub: GRPCInferenceServiceStub, shape: list[int]
) -> None:
    for said in (
        by_grpc(stub, "windows_model", "pixels", "UINT8", shape),
        by_http(server, "windows_model", "pixels", "UINT8", shape),
    ):
        assert said.startswith(("INTERNAL: ", "500: "))
        assert f"the network failed on pixels of shape {shape}: " in said
        for trace in ("/", "\n", "At:", "File", "line", ".py"):
            assert trace not in said
