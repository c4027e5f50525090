"""Photos in, labels out: the default pipeline on a real Triton, over both protocols."""

from __future__ import annotations

import http.client
import io
import itertools
import os
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from image_files import encode
from patience import wait_until
from PIL import Image
from shared_server import SharedServer
from terminal_runs import before_no_reader
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from onestream.client import BadImage, Client
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = pytest.mark.needs_triton
ROOT = Path(__file__).parents[2]
FORMS = ("classify", "classify_fused")
BARE = {"Inference-Header-Content-Length": "0"}
"""The header by which the body is one image, without JSON."""


@pytest.mark.parametrize("pipeline", FORMS)
def test_coffee_is_espresso(client: Client, photos: dict[str, bytes], pipeline: str) -> None:
    result = client.classify(photos["coffee"], pipeline=pipeline)
    assert result.top.label == "espresso"
    assert result.top.class_id == 967
    assert result.top.score > 0.9
    assert len(result.labels) == 5
    assert [label.score for label in result.labels] == sorted((label.score for label in result.labels), reverse=True)


def test_both_forms_and_both_protocols_give_equal_results(server: SharedServer, photos: dict[str, bytes]) -> None:
    with Client(server.grpc_url) as grpc, Client(server.http_url) as http:
        for photo in photos.values():
            results = {protocol.classify(photo, pipeline=form).labels for protocol in (grpc, http) for form in FORMS}
            assert len(results) == 1


@pytest.mark.parametrize("command", [["predict"], ["predict", "--json"], ["bulk"]], ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_quietly(server: SharedServer, command: list[str]) -> None:
    assert before_no_reader(*command, f"--url={server.grpc_url}", str(ROOT / "examples" / "photos")) == (141, "")


@pytest.mark.parametrize("pipeline", FORMS)
def test_many_at_once_get_the_results_they_get_alone(client: Client, photos: dict[str, bytes], pipeline: str) -> None:
    alone = {name: client.classify(photo, pipeline=pipeline).labels for name, photo in photos.items()}
    names = list(photos) * 3
    items = client.classify_many((photos[name] for name in names), pipeline=pipeline, in_flight=16)
    for name, item in zip(names, items, strict=True):
        assert item.unwrap().labels == alone[name]


def test_requests_of_different_length_are_batched(client: Client, photos: dict[str, bytes]) -> None:
    assert len({len(photo) for photo in photos.values()}) == len(photos)

    def some_met() -> bool:
        before = client.statistics("classify_preprocess")
        list(client.classify_many(list(photos.values()) * 5, in_flight=16))
        spent = client.statistics("classify_preprocess") - before
        # Other tests may ask at the same time.
        assert spent.inference_count >= 30
        return spent.execution_count < spent.inference_count

    # How many of them meet in a batch is the machine's business; on a busy one it may be none.
    assert any(some_met() for _ in range(10))


@pytest.mark.parametrize("pipeline", FORMS)
def test_each_bad_image_gets_its_reason(
    client: Client, bad_images: dict[str, tuple[bytes, str]], pipeline: str
) -> None:
    for name, (image, code) in bad_images.items():
        with pytest.raises(BadImage) as caught:
            client.classify(image, pipeline=pipeline)
        assert caught.value.code == code, name
        _assert_clean(str(caught.value))


def test_the_server_itself_refuses_without_our_client(
    server: SharedServer, bad_images: dict[str, tuple[bytes, str]]
) -> None:
    for name, (image, code) in bad_images.items():
        status, body = _post(server, image)
        assert status == 400, name
        assert f"bad image ({code})" in body, name
        _assert_clean(body)


def test_bad_images_hurt_only_themselves(
    client: Client, photos: dict[str, bytes], bad_images: dict[str, tuple[bytes, str]]
) -> None:
    good = photos["cat"]
    alone = client.classify(good, pipeline="classify_fused").labels
    bad = [image for image, _ in bad_images.values()][4:9]
    images = [bad[i // 6] if i % 6 == 3 else good for i in range(30)]
    for pipeline in FORMS:
        items = list(client.classify_many(images, pipeline=pipeline, in_flight=16))
        assert sum(item.error is not None for item in items) == 5
        for image, item in zip(images, items, strict=True):
            if image is good:
                assert item.unwrap().labels == alone
            else:
                assert isinstance(item.error, BadImage)
    wait_until(client.is_ready)  # other modules' models may just be loaded


def test_a_flood_of_bad_images_leaves_memory_and_server_as_they_were(
    server: SharedServer, grpc_client: Client, photos: dict[str, bytes], bad_images: dict[str, tuple[bytes, str]]
) -> None:
    bad = [image for image, _ in bad_images.values()]
    list(grpc_client.classify_many(bad * 10, pipeline="classify_fused", in_flight=16))
    before = _memory_mib(server, "classify_fused")
    items = list(grpc_client.classify_many(bad * 30, pipeline="classify_fused", in_flight=16))
    assert all(isinstance(item.error, BadImage) for item in items)
    # Others ask too, and allocators keep some slack; one decoded bomb alone would be 2.7 GB.
    assert _memory_mib(server, "classify_fused") - before < 256
    assert grpc_client.classify(photos["coffee"], pipeline="classify_fused").top.label == "espresso"


def test_one_request_is_one_image(server: SharedServer, photos: dict[str, bytes]) -> None:
    """A batch of two in one request, wrong dtypes and zero-size tensors are the request's error."""
    shapes = [([2, 64], np.uint8), ([1, 64], np.float32), ([64], np.uint8), ([1, 0], np.uint8), ([0, 5], np.uint8)]
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as raw:
        for pipeline, (shape, dtype) in itertools.product(FORMS, shapes):
            tensor = tritonclient.grpc.InferInput("image", shape, np_to_triton_dtype(dtype))
            tensor.set_data_from_numpy(np.zeros(shape, dtype))
            with pytest.raises(InferenceServerException) as caught:
                raw.infer(pipeline, [tensor], client_timeout=10)
            _assert_clean(str(caught.value))
    assert _post(server, photos["coffee"])[0] == 200


def test_a_body_above_the_limit_is_refused_before_it_is_decoded(server: SharedServer) -> None:
    status, body = _post(server, b"\xff\xd8\xff" + bytes(33 * 1024 * 1024))
    assert status == 400
    assert "too_large" in body
    with Client(server.http_url) as client, pytest.raises(BadImage, match="too_large"):
        client.classify(b"\xff\xd8\xff" + bytes(33 * 1024 * 1024))


def test_other_formats_are_served(client: Client, photos: dict[str, bytes], tmp_path: Path) -> None:
    picture = Image.open(io.BytesIO(photos["coffee"]))
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("BMP", {})):
        file = encode(picture, kind, **options)
        assert {client.classify(file, pipeline=form).top.label for form in FORMS} == {"espresso"}
    path = tmp_path / "coffee.jpg"
    path.write_bytes(photos["coffee"])
    assert client.classify(picture).top.label == client.classify(path).top.label == "espresso"
    assert client.classify(np.asarray(picture)).top.label == "espresso"


def test_who_makes_pixels_and_who_runs_the_network_in_one_process_gives_way(server: SharedServer) -> None:
    """Above capacity Triton's own threads, and the ensemble's network, get a core first."""
    nice: dict[str, set[int]] = {}
    for process in find_model_processes(server.pid).running:
        threads = [int(thread) for thread in os.listdir(f"/proc/{process.pid}/task")]
        nice.setdefault(process.model, set()).update(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads)
    usual = os.getpriority(os.PRIO_PROCESS, server.pid)
    later = min(usual + 10, 19)
    assert nice["classify_model"] == nice["classify_postprocess"] == {usual}
    # Those that wait for large pictures are nicer by themselves.
    for model in ("classify_preprocess", "classify_fused"):
        assert {usual, later} <= nice[model]


def _post(server: SharedServer, body: bytes) -> tuple[int, str]:
    """POST a bare image as the body; returns the status and the printable part of the answer."""
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    try:
        connection.request("POST", "/v2/models/classify/infer", body, BARE)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _assert_clean(message: str) -> None:
    assert "/" not in message.replace("w/o", ""), f"a path in: {message}"
    assert "Traceback" not in message
    assert "At:" not in message


def _memory_mib(server: SharedServer, model: str) -> float:
    running = [process.pid for process in find_model_processes(server.pid).running if process.model == model]
    return sum(psutil.Process(pid).memory_info().rss for pid in running) / 2**20
