"""Shapes that Triton lets through and no model can take: each is its own request's error, in one sentence, at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from patience import PATIENCE_S
from shared_server import CLASSIFY, SharedServer
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from windows import WINDOWS

from onestream.client import Client

COFFEE = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
BYTES = {"UINT8": 1, "FP32": 4}


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.serves(CLASSIFY, WINDOWS),
]


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
