"""Parameters of requests on a real Triton: each request has its own, in every form, protocol and batch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import pytest
from colored_cells import GRID, picture, write_clip
from grpc import RpcError, insecure_channel
from patience import wait_until
from shared_server import CLASSIFY, SharedServer
from tritonclient import grpc, http
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from onestream.client import BadStream, Client, InvalidRequest
from onestream.client.images import encode

WEAK, STRONG = 77, 204
"""Red of cells with the scores 0.3 and 0.8."""


pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(CLASSIFY, detectors.RED_CELLS, GRID)]


def cells() -> np.ndarray:
    """Cells with the scores 1, 0.8 and 0.3."""
    pixels = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    for column, red in enumerate((255, STRONG, WEAK)):
        pixels[:8, 16 * column : 16 * column + 8, 0] = red
    return pixels


ASKED: list[tuple[dict[str, float], list[float]]] = [
    ({}, [1, 0.8]),
    ({"score_threshold": 0.9}, [1]),
    ({"score_threshold": 0.1, "iou_threshold": 0.3}, [1, 0.8, WEAK / 255]),
    ({"score_threshold": 0.1, "max_detections": 2}, [1, 0.8]),
    ({"max_detections": 1}, [1]),
    ({"score_threshold": 1}, []),
]


@pytest.mark.parametrize("form", ["cells", "cells_fused"])
def test_requests_of_one_batch_have_each_their_own(client: Client, form: str) -> None:
    def scores(parameters: dict[str, float]) -> list[float]:
        return client.detect(cells(), pipeline=form, parameters=parameters).scores.tolist()

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(scores, [parameters for parameters, _ in ASKED] * 4))
    for seen, (_, expected) in zip(found, ASKED * 4, strict=True):
        np.testing.assert_allclose(seen, expected, atol=1e-6)


@pytest.mark.parametrize("form", ["classify", "classify_fused"])
def test_the_best_of_the_classes(client: Client, photos: dict[str, bytes], form: str) -> None:
    five = client.classify(photos["coffee"], pipeline=form).labels
    for k in (1, 3, 5):
        assert client.classify(photos["coffee"], pipeline=form, parameters={"top_k": k}).labels == five[:k]


@pytest.mark.parametrize("form", ["grid", "grid_fused"])
def test_those_of_a_cascade_are_called_as_its_tensors(client: Client, form: str) -> None:
    image = picture(["red", "green", "blue"])
    found = client.infer(form, image, parameters={"find_max_detections": 2, "top_k": 1})
    assert found["labels"].shape == (1, 2)
    with pytest.raises(InvalidRequest, match=r"bad parameter 'max_detections': this pipeline takes find_.*, top_k"):
        client.infer(form, image, parameters={"max_detections": 2})


@pytest.mark.parametrize("form", ["cells", "cells_fused"])
def test_official_clients_send_them_with_tritons_own(server: SharedServer, form: str) -> None:
    image = np.frombuffer(encode(cells(), max_body_bytes=1 << 20).to_bytes(), np.uint8)[None]
    given: Mapping[str, Any] = {"score_threshold": "0.9", "max_detections": 2}
    for kind, address, more, header in (
        (http, server.http_address, {}, "Content-Type"),
        (grpc, server.grpc_address, {"content_type": "image/png"}, "any"),
    ):
        tensor = kind.InferInput("image", image.shape, "UINT8")
        tensor.set_data_from_numpy(image)
        asked = kind.InferenceServerClient(address)
        answer = asked.infer(
            form,
            [tensor],
            parameters={**given, **more},
            priority=1,
            timeout=30_000_000,
            sequence_id=7,
            headers={header: "application/octet-stream"},
        )
        assert answer.as_numpy("scores").tolist() == [[1]]
        asked.close()


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    *((name, {"int64_param": 1}) for name in ('a"b', "a\nb", "a\x00b", "\u2028", "x" * 100_000, "", "..")),
    *(("score_threshold", {"double_param": number}) for number in (math.nan, math.inf, -math.inf, 1e308, -0.5)),
    *(("max_detections", {"int64_param": number}) for number in (-(2**63), 2**63 - 1, 0)),
    *(("max_detections", {"string_param": text}) for text in ("", "9" * 100_000, "1e400", "nan", '{"a":', "\x00")),
    ("max_detections", {"bool_param": True}),
]


@pytest.mark.parametrize("form", ["cells", "cells_fused"])
def test_hostile_ones_are_errors_of_their_own_requests(server: SharedServer, form: str) -> None:
    image = encode(cells(), max_body_bytes=1 << 20).to_bytes()

    def answered(name: str, value: Mapping[str, Any]) -> str:
        request = service_pb2.ModelInferRequest(model_name=form, raw_input_contents=[image])
        request.inputs.add(name="image", datatype="UINT8", shape=[1, len(image)])
        for field, given in value.items():
            setattr(request.parameters[name], field, given)
        try:
            service.ModelInfer(request)
        except RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "answered"

    with insecure_channel(server.grpc_address) as channel, ThreadPoolExecutor(8) as pool:
        service = GRPCInferenceServiceStub(channel)
        good = [pool.submit(answered, "max_detections", {"int64_param": 1}) for _ in range(6)]
        for name, value in HOSTILE:
            said = answered(name, value)
            assert re.match("INVALID_ARGUMENT: .*bad parameter ", said), (name[:20], value, said)
            assert len(said) < 400
            assert "Traceback" not in said
        assert [one.result() for one in good] == ["answered"] * 6


@pytest.mark.parametrize(("form", "model"), [("cells", "cells_postprocess"), ("cells_fused", "cells_fused")])
def test_what_the_most_left_out_is_counted(server: SharedServer, grpc_client: Client, form: str, model: str) -> None:
    def counted() -> float:
        return server.metric(f'onestream_regions_left_out_total{{model="{model}"')

    before = counted()
    grpc_client.detect(cells(), pipeline=form, parameters={"score_threshold": 0.1, "max_detections": 1})
    wait_until(lambda: counted() >= before + 2, "both are counted")


def test_a_stream_sets_them_for_all_its_frames(grpc_client: Client, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "cells.mp4", [["red", "green", "blue"]] * 3)
    with grpc_client.stream(str(clip), pipeline="grid", parameters={"find_max_detections": 2}) as frames:
        assert [len(frame.result) for frame in frames] == [2] * 3
    with (
        pytest.raises(BadStream, match=r"\(bad_parameter\): top_k=2: expected a whole number from 1 to 1"),
        grpc_client.stream(str(clip), pipeline="grid", parameters={"top_k": 2}),
    ):
        pass
