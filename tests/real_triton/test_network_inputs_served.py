"""Networks that take values, sizes or a second picture beside the first, on a real Triton; refusals by name."""

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
import siamese
from clip_files import write_video
from image_files import encode
from on_host import PROMPTED_HOST, SIAMESE_HOST
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
from onestream.preprocess import Definition
from onestream.preprocess.training import Transform

pytestmark = [
    *(pytest.mark.needs_triton, pytest.mark.slow),
    pytest.mark.serves(prompted.PROMPTED, prompted.PAINTED, PROMPTED_HOST, siamese.SIAMESE, SIAMESE_HOST),
]

FORMS = ["prompted", "prompted_fused"]
ON_HOST = ["prompted_host", "prompted_host_fused"]
"""The forms of a GPU, which is host memory here."""
POINTS, TOKENS = [[1, 2], [3, 6]], [0, 1, 4]
INPUTS = {"points": POINTS, "tokens": TOKENS}
GATEWAY: dict[str, Any] = {"port": 0, "allow_origin": [], "concurrency": 4, "timeout_s": 60}


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
            if form in FORMS:
                most = {"points": [[1, 2]] * 2048, "tokens": TOKENS}
                found = client.predict(gray(90), pipeline=form, inputs=most)
                np.testing.assert_allclose(y(found), prompted.expected(90, 40, 30, **most), rtol=1e-5)


@pytest.mark.parametrize("form", FORMS + ON_HOST)
def test_requests_of_one_batch_have_each_their_own_beside_a_bad_picture(client: Client, form: str) -> None:
    """Also of other shapes, which share no batch of the network; on a GPU all have two points."""
    generator = np.random.default_rng(0)
    asked = []
    for level in range(24):
        points = generator.uniform(0, 9, (2 if form in ON_HOST else 1 + level % 3, 2))
        asked.append((level, 20 + level, {"points": points, "tokens": generator.integers(0, 5, 3)}))

    def one(level: int, width: int, inputs: Any) -> np.ndarray | BadImage:
        try:
            return y(client.predict(gray(level, width) if level % 4 else b"text", pipeline=form, inputs=inputs))
        except BadImage as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda given: one(*given), asked))
    for seen, (level, width, inputs) in zip(found, asked, strict=True):
        if level % 4:
            np.testing.assert_allclose(seen, prompted.expected(level, width, 30, **inputs), rtol=1e-5)
        else:
            assert isinstance(seen, BadImage)


@pytest.mark.parametrize("form", ["painted", "painted_fused"])
def test_an_answer_may_have_the_size_of_its_picture(client: Client, form: str) -> None:
    def one(level: int) -> np.ndarray:
        return y(client.predict(gray(level, 20 + level), pipeline=form))

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, range(24)))
    for level, seen in enumerate(found):
        np.testing.assert_array_equal(seen, np.full((30, 20 + level), level, np.float32))


def test_frames_of_streams_have_their_sizes_too(server: SharedServer, tmp_path: Path) -> None:
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

    with ServiceThread(lambda: gateway(url=server.grpc_address, **GATEWAY)) as running:

        def ask(**body: Any) -> tuple[int, Any]:
            return running.ask("/v1/pipelines/prompted", json.dumps(body).encode())

        for given in ({"image": png}, {"images": [png, png]}):
            status, found = ask(**given, inputs=INPUTS)
            assert status == 200
            for one in found.get("results", [found]):
                np.testing.assert_allclose(one["tensors"]["y"][0], expected, rtol=1e-5)
        status, found = running.ask("/v1/pipelines")
        (one,) = (one for one in found["pipelines"] if one["name"] == "prompted")
        assert one["inputs"] == {
            "points": {"datatype": "FP32", "shape": [-1, 2]},
            "tokens": {"datatype": "INT64", "shape": [3]},
        }


@pytest.mark.parametrize("form", ["painted", "painted_fused"])
def test_the_page_shows_a_network_that_takes_sizes(server: SharedServer, form: str) -> None:
    """Of the fused form, too, by the steps of the other."""
    with contextlib.closing(Served(server.grpc_address)) as served:
        offer = served.offer()
        found = look(served, offer.forms[form], encode(Image.fromarray(gray(90)), "PNG"), "no chain")
    assert found["answer"] == {"kind": "raw", "outputs": ["y: float32 [1, 30, 40], from 90 to 90"]}
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
    ("changed", "named"),
    [
        ({"points": None}, "points"),
        ({"tokens": np.zeros((1, 3), np.int32)}, "tokens"),
        ({"points": np.zeros((1, 1, 3), np.float32)}, "points"),
        ({"points": np.zeros((2, 1, 2), np.float32), "tokens": np.zeros((2, 3), np.int64)}, "batch"),
        ({"more": np.zeros((1, 1))}, "more"),
        (
            {"points": np.zeros((1, 2049, 2), np.float32)},
            r"bad input points: 4098 values; at most 4096 are allowed \(limits.max_input_values of the pipeline\)",
        ),
    ],
)
def test_the_server_refuses_what_does_not_fit_by_name(
    client: Client, form: str, changed: dict[str, np.ndarray | None], named: str
) -> None:
    """Also of who does not ask by ``predict``; the next request is answered."""
    right = {"points": np.zeros((1, 1, 2), np.float32), "tokens": np.zeros((1, 3), np.int64)}
    arrays = {name: values for name, values in (right | changed).items() if values is not None}
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
        ({**INPUTS, "points": [[1, 2], [3]]}, r"inputs\['points'\] has rows of different lengths"),
        ({**INPUTS, "tokens": [0.5, 1, 2]}, r"inputs\['tokens'\] is float64 \[3\]; expected INT64 \[3\]"),
        ({**INPUTS, "tokens": ["a", "b", "c"]}, r"inputs\['tokens'\] is <U1 \[3\]"),
        ({**INPUTS, "points": [[2**24 + 1, 0]]}, r"inputs\['points'\] has numbers that FP32 does not hold"),
        ({**INPUTS, "points": [[1, 2]] * 2049}, r"\['points'\] has 4098 values; at most 4096 are allowed \(limits"),
    ],
)
def test_the_client_refuses_them_before_it_sends(client: Client, inputs: Any, named: str) -> None:
    with pytest.raises(UnsupportedInput, match=named):
        client.predict(gray(5), pipeline="prompted", inputs=inputs)


TWO_PICTURES = ["siamese", "siamese_fused", "siamese_host", "siamese_host_fused"]
"""The last two are those of a GPU, which is host memory here."""
DEFINITION = Definition.model_validate(siamese.FIELDS["preprocess"])


def photo(seed: int, *, height: int = 30, width: int = 40, kind: str = "JPEG") -> bytes:
    """Random colours in blocks."""
    colors = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return encode(Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC), kind)


def of_both(left: bytes, right: bytes) -> dict[str, np.ndarray]:
    """By ONNX Runtime, of the tensors that training sees."""
    transform = Transform(DEFINITION)
    return siamese.expected(siamese.siamese(), transform(left).numpy(), transform(right).numpy())


def check(result: Any, left: bytes, right: bytes) -> None:
    """Expect the same in every bit."""
    assert isinstance(result, Outputs)
    for name, values in of_both(left, right).items():
        np.testing.assert_array_equal(result.tensors[name], values)


@pytest.mark.parametrize("form", TWO_PICTURES)
@pytest.mark.parametrize("memory", [False, True])
def test_both_pictures_reach_the_network_as_training_sees_them(
    server: SharedServer, form: str, memory: bool, tmp_path: Path
) -> None:
    """Whichever way the client is given the second."""
    left, right = photo(1), photo(2, height=17, width=90, kind="PNG")
    (tmp_path / "right.png").write_bytes(right)
    for url in (server.grpc_url, server.http_url):
        with Client(url, timeout_s=60, shared_memory=memory) as client:
            for second in (right, tmp_path / "right.png", np.asarray(Image.open(tmp_path / "right.png"))):
                check(client.predict(left, pipeline=form, inputs={"second": second}), left, right)
            check(client.predict(right, pipeline=form, inputs={"second": left}), right, left)


@pytest.mark.parametrize("form", TWO_PICTURES)
def test_requests_of_one_batch_have_each_their_own_and_bad_ones_an_error(client: Client, form: str) -> None:
    asked = [(photo(seed), photo(100 + seed, width=20 + seed)) for seed in range(24)]
    asked = [(left, right[: len(right) // 2] if seed % 5 == 1 else right) for seed, (left, right) in enumerate(asked)]

    def one(pictures: tuple[bytes, bytes]) -> Any:
        try:
            return client.predict(pictures[0], pipeline=form, inputs={"second": pictures[1]})
        except BadImage as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, asked))
    for seed, (seen, (left, right)) in enumerate(zip(found, asked, strict=True)):
        if seed % 5 == 1:
            assert isinstance(seen, BadImage)
            assert (seen.code, seen.reason[:7]) == ("corrupt", "second:")
        else:
            check(seen, left, right)


@pytest.mark.parametrize("form", TWO_PICTURES)
def test_the_limits_hold_for_each_picture(client: Client, form: str) -> None:
    large = encode(Image.new("L", (6000, 5000)), "PNG")
    for pictures, reason in (
        ((photo(1), large), "second: the header declares"),
        ((large, photo(1)), "the header decl"),
    ):
        with pytest.raises(BadImage, match=f"^[^:]*: {reason}") as failure:
            client.predict(pictures[0], pipeline=form, inputs={"second": pictures[1]})
        assert failure.value.code == "too_many_pixels"
    check(client.predict(photo(3), pipeline=form, inputs={"second": photo(4)}), photo(3), photo(4))


@pytest.mark.parametrize("form", TWO_PICTURES)
def test_large_pictures_are_answered_too(client: Client, form: str) -> None:
    """By the thread for heavy ones: a PNG of many pixels."""
    heavy = photo(5, height=2000, width=2100, kind="PNG")
    check(client.predict(photo(3), pipeline=form, inputs={"second": heavy}), photo(3), heavy)


def test_the_server_and_the_client_name_what_is_missing(client: Client) -> None:
    image = np.frombuffer(photo(1), np.uint8)[None]
    for form in TWO_PICTURES:
        with pytest.raises(InvalidRequest, match="second"):
            client.infer(form, {"image": image})
        with pytest.raises(UnsupportedInput, match=r"inputs has none; .* takes second \(an image\)"):
            client.predict(photo(1), pipeline=form)
    with pytest.raises(UnsupportedInput):
        client.predict(photo(1), pipeline="siamese", inputs={"second": [1, 2]})


def test_the_command_line_and_the_gateway_send_them(server: SharedServer, tmp_path: Path) -> None:
    left, right = photo(1), photo(2)
    for name, content in (("left.jpg", left), ("right.jpg", right)):
        (tmp_path / name).write_bytes(content)
    asked = ["predict", str(tmp_path / "left.jpg"), "--url", server.grpc_url, "--pipeline", "siamese", "--json"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--input", f"second={tmp_path / 'right.jpg'}"]).stdout)
    apart = of_both(left, right)["apart"]
    np.testing.assert_array_equal(np.array(found["tensors"]["apart"], np.float32), apart)

    with ServiceThread(lambda: gateway(url=server.grpc_address, **GATEWAY)) as running:
        texts = [base64.b64encode(one).decode() for one in (left, right)]
        for second, status in ((texts[1], 200), (str(tmp_path / "right.jpg"), 400)):
            body = json.dumps({"image": texts[0], "inputs": {"second": second}}).encode()
            seen, answer = running.ask("/v1/pipelines/siamese", body)
            # A path of the gateway's machine is never read.
            assert (seen, "error" in answer) == (status, status == 400)
            if status == 200:
                np.testing.assert_array_equal(np.array(answer["tensors"]["apart"], np.float32), apart)
