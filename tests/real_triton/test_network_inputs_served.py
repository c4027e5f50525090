"""A network of many inputs on a real Triton: both forms, both protocols, batches, and what is refused by name."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import prompted
import pytest
from clip_files import write_video
from image_files import encode
from on_host import PROMPTED_HOST
from PIL import Image
from shared_server import SharedServer
from typer.testing import CliRunner
from web_services import ServiceThread

from onestream.cli.demo_page.command import demo_page
from onestream.cli.demo_page.inspect_image import look
from onestream.cli.demo_page.served import Served
from onestream.cli.gateway.command import gateway
from onestream.cli.main import app
from onestream.client import AsyncClient, BadImage, Client, InvalidRequest, Outputs, ServerFailed, UnsupportedInput

pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(prompted.PROMPTED, prompted.SIZED, prompted.PAINTED, PROMPTED_HOST),
]

FORMS = ["prompted", "prompted_fused"]
ON_HOST = ["prompted_host", "prompted_host_fused"]
"""The forms of a GPU, which is host memory here."""
POINTS, TOKENS = [[1, 2], [3, 6]], [0, 1, 4]
INPUTS = {"points": POINTS, "tokens": TOKENS}


def gray(level: int, width: int = 40, height: int = 30) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def y(result: Any) -> np.ndarray:
    assert isinstance(result, Outputs)
    return result.tensors["y"][0]


@pytest.mark.parametrize("form", FORMS + ON_HOST)
@pytest.mark.parametrize("memory", [False, True])
def test_each_input_gets_what_the_file_says(server: SharedServer, form: str, memory: bool) -> None:
    for url in (server.grpc_url, server.http_url):
        with Client(url, timeout_s=60, shared_memory=memory) as client:
            found = client.predict(gray(90), pipeline=form, inputs=INPUTS)
            np.testing.assert_allclose(y(found), prompted.expected(90, 40, 30, POINTS, TOKENS), rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_requests_of_one_batch_have_each_their_own(client: Client, form: str) -> None:
    """Also of other shapes, which share no batch of the network."""
    generator = np.random.default_rng(0)
    asked = [
        (level, 20 + level, generator.uniform(0, 9, (1 + level % 3, 2)), generator.integers(0, 5, 3))
        for level in range(24)
    ]

    def one(level: int, width: int, points: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        inputs = {"points": points, "tokens": tokens}
        return y(client.predict(gray(level, width), pipeline=form, inputs=inputs))

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda args: one(*args), asked))
    for seen, (level, width, points, tokens) in zip(found, asked, strict=True):
        np.testing.assert_allclose(seen, prompted.expected(level, width, 30, points, tokens), rtol=1e-5)


@pytest.mark.parametrize("form", ON_HOST)
def test_those_of_a_batch_on_a_gpu_too_beside_a_bad_picture(client: Client, form: str) -> None:
    def one(level: int) -> np.ndarray | BadImage:
        inputs = {"points": [[level, 0], [level, 1]], "tokens": [level % 5] * 3}
        try:
            return y(client.predict(gray(level) if level % 4 else b"text", pipeline=form, inputs=inputs))
        except BadImage as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, range(24)))
    for level, seen in enumerate(found):
        if level % 4:
            row = prompted.expected(level, 40, 30, [[level, 0.5]], [level % 5])
            np.testing.assert_allclose(seen, row, rtol=1e-5)
        else:
            assert isinstance(seen, BadImage)


def test_a_frame_of_a_stream_has_its_size(server: SharedServer, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=12, size_hw=(48, 80))
    with Client(server.grpc_url, timeout_s=60) as client:
        with client.stream(clip, pipeline="sized") as results:
            assert [result.tensors["y"].tolist() for result in results] == [[48, 80, 7]] * 12
        for form in ("sized", "sized_fused"):
            assert y(client.predict(gray(5), pipeline=form)).tolist() == [30, 40, 7]


@pytest.mark.parametrize("form", ["painted", "painted_fused"])
def test_an_answer_may_have_the_size_of_its_picture(client: Client, form: str) -> None:
    def one(level: int) -> np.ndarray:
        return y(client.predict(gray(level, 20 + level), pipeline=form))

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, range(24)))
    for level, seen in enumerate(found):
        np.testing.assert_array_equal(seen, np.full((30, 20 + level), level, np.float32))


def test_frames_of_streams_of_other_sizes_too(server: SharedServer, tmp_path: Path) -> None:
    clips = [write_video(tmp_path / f"{side}.mp4", "libx264", count=6, size_hw=(48, side)) for side in (80, 96)]

    def shapes(clip: Path) -> list[tuple[int, ...]]:
        with Client(server.grpc_url, timeout_s=60) as client, client.stream(clip, pipeline="painted") as results:
            return [result.tensors["y"].shape for result in results]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(shapes, clips)) == [[(48, 80)] * 6, [(48, 96)] * 6]


def test_both_forms_say_alike_that_the_network_failed(client: Client) -> None:
    """The table has 5 rows; what is said names no file of the server."""

    def said(form: str) -> str:
        with pytest.raises(ServerFailed) as failure:
            client.predict(gray(5), pipeline=form, inputs={"points": POINTS, "tokens": [0, 1, 99]})
        assert y(client.predict(gray(5), pipeline=form, inputs=INPUTS))[0] == 5
        return str(failure.value).partition("the network failed on ")[2]

    texts = {said(form) for form in FORMS}
    assert len(texts) == 1
    assert "pixels of shape [1, 8, 8, 3]" in (text := texts.pop())
    assert "tokens of shape [1, 3]" in text


@pytest.mark.parametrize("form", FORMS)
def test_as_many_values_as_the_limit_are_answered(client: Client, form: str) -> None:
    points = [[1, 2]] * 2048
    found = client.predict(gray(90), pipeline=form, inputs={"points": points, "tokens": TOKENS})
    np.testing.assert_allclose(y(found), prompted.expected(90, 40, 30, points, TOKENS), rtol=1e-5)


def test_the_command_line_sends_them(server: SharedServer, tmp_path: Path) -> None:
    Image.fromarray(gray(90)).save(tmp_path / "gray.png")
    np.save(tmp_path / "tokens.npy", np.array(TOKENS, np.int32))
    given = ["--input", f"points={POINTS}", "--input", f"tokens={tmp_path / 'tokens.npy'}"]
    asked = ["predict", str(tmp_path / "gray.png"), "--url", server.grpc_url, "--pipeline", "prompted", "--json"]
    found = json.loads(CliRunner().invoke(app, [*asked, *given]).stdout)
    np.testing.assert_allclose(found["tensors"]["y"][0], prompted.expected(90, 40, 30, POINTS, TOKENS), rtol=1e-5)
    missing = CliRunner().invoke(app, [*asked, *given[:2]])
    assert missing.exit_code == 1
    assert "takes points (FP32 [any, 2]), tokens (INT64 [3])" in json.loads(missing.stdout)["error"]["message"]


def test_the_gateway_passes_them_on(server: SharedServer) -> None:
    png = base64.b64encode(encode(Image.fromarray(gray(90)), "PNG")).decode()
    expected = prompted.expected(90, 40, 30, POINTS, TOKENS)

    def command() -> None:
        gateway(url=server.grpc_address, port=0, allow_origin=[], concurrency=4, timeout_s=60)

    with ServiceThread(command) as running:

        def ask(**body: Any) -> tuple[int, Any]:
            return running.ask("/v1/pipelines/prompted", json.dumps(body).encode())

        status, found = ask(image=png, inputs=INPUTS)
        assert status == 200
        np.testing.assert_allclose(found["tensors"]["y"][0], expected, rtol=1e-5)
        status, found = ask(images=[png, png], inputs=INPUTS)
        assert status == 200
        for one in found["results"]:
            np.testing.assert_allclose(one["tensors"]["y"][0], expected, rtol=1e-5)
        for body, code, reason in (
            (
                {"image": png},
                "invalid_request",
                "inputs has none; beside the image, pipeline 'prompted' takes points ",
            ),
            ({"image": png, "inputs": {**INPUTS, "tokens": [[1]]}}, "invalid_request", "['tokens'] is int64 [1, 1]"),
            ({"image": png, "inputs": {**INPUTS, "tokens": None}}, "invalid_request", "inputs['tokens'] is object []"),
            ({"image": png, "inputs": [1]}, "bad_request", "inputs is list; expected"),
        ):
            status, found = ask(**body)
            assert (status, found["error"]["code"]) == (400, code)
            assert reason in found["error"]["reason"]
        status, found = running.ask("/v1/pipelines")
        (one,) = (one for one in found["pipelines"] if one["name"] == "prompted")
        assert one["inputs"] == {
            "points": {"datatype": "FP32", "shape": [-1, 2]},
            "tokens": {"datatype": "INT64", "shape": [3]},
        }


@pytest.mark.parametrize("form", ["sized", "sized_fused"])
def test_the_page_shows_a_network_that_takes_sizes(server: SharedServer, form: str) -> None:
    """Of the fused form, too, by the steps of the other."""
    with contextlib.closing(Served(server.grpc_address)) as served:
        offer = served.offer()
        found = look(served, offer.forms[form], encode(Image.fromarray(gray(90)), "PNG"), "no chain")
    assert found["answer"] == {"kind": "raw", "outputs": ["y: float32 [1, 3], from 7 to 40"]}
    (row, *usual) = found["parity"]["rows"]
    assert row["answer"] == "y: at most 0 apart, mean 0"
    assert usual


def test_the_page_names_what_it_does_not_send(server: SharedServer) -> None:
    with ServiceThread(lambda: demo_page(url=server.grpc_address, port=0)) as page:
        status, found = page.ask("/api/pipelines")
        assert status == 200
        assert "prompted" not in {one["name"] for one in found["pipelines"]}
        text = "pipeline 'prompted' takes points, tokens with each picture, which this page does not send"
        assert any(text in why for why in found["unreadable"])
        status, found = page.ask("/api/look?form=prompted", encode(Image.fromarray(gray(90)), "PNG"))
        assert status == 422
        assert text in found["error"]


def test_the_same_inputs_for_many_pictures(server: SharedServer) -> None:
    async def found() -> list[np.ndarray]:
        async with AsyncClient(server.grpc_url, timeout_s=60) as client:
            many = client.predict_many(map(gray, (1, 2)), pipeline="prompted", inputs=INPUTS)
            return [y(item.result) async for item in many]

    rows = [prompted.expected(level, 40, 30, POINTS, TOKENS) for level in (1, 2)]
    np.testing.assert_allclose(asyncio.run(found()), rows, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"tokens": np.zeros((1, 3), np.int64)}, "points"),
        ({"points": np.zeros((1, 1, 2), np.float32), "tokens": np.zeros((1, 3), np.int32)}, "tokens"),
        ({"points": np.zeros((1, 1, 3), np.float32), "tokens": np.zeros((1, 3), np.int64)}, "points"),
        ({"points": np.zeros((2, 1, 2), np.float32), "tokens": np.zeros((2, 3), np.int64)}, "batch"),
        (
            {"points": np.zeros((1, 1, 2), np.float32), "tokens": np.zeros((1, 3), np.int64), "more": np.zeros((1, 1))},
            "more",
        ),
        (
            {"points": np.zeros((1, 2049, 2), np.float32), "tokens": np.zeros((1, 3), np.int64)},
            r"bad input points: 4098 values; at most 4096 are allowed \(limits.max_input_values of the pipeline\)",
        ),
    ],
)
def test_the_server_refuses_what_does_not_fit_by_name(
    client: Client, form: str, arrays: dict[str, np.ndarray], named: str
) -> None:
    """Also of who does not ask by ``predict``; the next request is answered."""
    image = np.frombuffer(encode(Image.fromarray(gray(5)), "PNG"), np.uint8)[None]
    with pytest.raises(InvalidRequest, match=named):
        client.infer(form, {"image": image, **arrays})
    assert y(client.predict(gray(5), pipeline=form, inputs=INPUTS))[0] == 5


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (None, r"inputs has none; .* takes points \(FP32 \[any, 2\]\), tokens \(INT64 \[3\]\)"),
        ({"points": POINTS}, "inputs has 'points'; beside the image, pipeline 'prompted' takes points .*, tokens "),
        ({**INPUTS, "more": 1}, "inputs has 'points', 'tokens', 'more'"),
        ({**INPUTS, "points": [1, 2]}, r"inputs\['points'\] is int64 \[2\]; expected FP32 \[any, 2\], without the bat"),
        ({**INPUTS, "points": [POINTS]}, r"inputs\['points'\] is int64 \[1, 2, 2\]"),
        ({**INPUTS, "points": [[1, 2], [3]]}, r"inputs\['points'\] has rows of different lengths"),
        ({**INPUTS, "tokens": [0.5, 1, 2]}, r"inputs\['tokens'\] is float64 \[3\]; expected INT64 \[3\]"),
        ({**INPUTS, "tokens": ["a", "b", "c"]}, r"inputs\['tokens'\] is <U1 \[3\]"),
        ({**INPUTS, "points": [[2**24 + 1, 0]]}, r"inputs\['points'\] has numbers that FP32 does not hold"),
        ({**INPUTS, "points": [[1e300, 0]]}, r"inputs\['points'\] has numbers that FP32 does not hold"),
        (
            {**INPUTS, "points": [[1, 2]] * 2049},
            r"inputs\['points'\] has 4098 values; at most 4096 are allowed \(limits",
        ),
    ],
)
def test_the_client_refuses_them_before_it_sends(client: Client, inputs: Any, named: str) -> None:
    with pytest.raises(UnsupportedInput, match=named):
        client.predict(gray(5), pipeline="prompted", inputs=inputs)
