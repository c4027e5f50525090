"""Clients of the protocol that know nothing of onestream, unmodified, against the real server: as their manuals say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from PIL import Image
from shared_server import CLASSIFY, Served, SharedServer
from small_models import write_model


def write_plus_one(folder: Path) -> None:
    write_model(folder, "plain_plus_one")


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.serves(CLASSIFY, Served("plain_plus_one", write_plus_one)),
]
COFFEE = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
X = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.5]}


@pytest.fixture(scope="module")
def triton(server: SharedServer) -> Iterator[Any]:
    with tritonclient.http.InferenceServerClient(server.http_address) as client:
        yield client


def infer_url(server: SharedServer, model: str) -> str:
    return f"{server.http_url}/v2/models/{model}/infer"


# ---------------------------------------------------------------- tritonclient.http, as in Triton's examples


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


# ---------------------------------------------------------------- requests and curl


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
