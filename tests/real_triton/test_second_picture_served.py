"""A network of two pictures on a real Triton: both forms and protocols, the gateway, and what is refused by name."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import siamese
from image_files import encode
from on_host import SIAMESE_HOST
from PIL import Image
from shared_server import SharedServer
from typer.testing import CliRunner
from web_services import ServiceThread

from onestream.cli.gateway.command import gateway
from onestream.cli.main import app
from onestream.client import BadImage, Client, InvalidRequest, Outputs, UnsupportedInput
from onestream.preprocess import Definition
from onestream.preprocess.training import Transform

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(siamese.SIAMESE, SIAMESE_HOST)]

FORMS = ["siamese", "siamese_fused", "siamese_host", "siamese_host_fused"]
"""The last two are those of a GPU, which is host memory here."""
DEFINITION = Definition.model_validate(siamese.FIELDS["preprocess"])


def photo(seed: int, *, height: int = 30, width: int = 40, kind: str = "JPEG") -> bytes:
    """Random colours in blocks."""
    colors = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return encode(Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC), kind)


def expected(left: bytes, right: bytes) -> dict[str, np.ndarray]:
    """By ONNX Runtime, of the tensors that training sees."""
    transform = Transform(DEFINITION)
    return siamese.expected(siamese.siamese(), transform(left).numpy(), transform(right).numpy())


def check(result: Any, left: bytes, right: bytes) -> None:
    """Expect the same in every bit."""
    assert isinstance(result, Outputs)
    for name, values in expected(left, right).items():
        np.testing.assert_array_equal(result.tensors[name], values)


@pytest.mark.parametrize("form", FORMS)
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


@pytest.mark.parametrize("form", FORMS)
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


@pytest.mark.parametrize("form", FORMS)
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


@pytest.mark.parametrize("form", FORMS)
def test_large_pictures_are_answered_too(client: Client, form: str) -> None:
    """By the thread for heavy ones: a PNG of many pixels."""
    heavy = photo(5, height=2000, width=2100, kind="PNG")
    check(client.predict(photo(3), pipeline=form, inputs={"second": heavy}), photo(3), heavy)


def test_the_server_and_the_client_name_what_is_missing(client: Client) -> None:
    image = np.frombuffer(photo(1), np.uint8)[None]
    for form in FORMS:
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
    apart = expected(left, right)["apart"]
    np.testing.assert_array_equal(np.array(found["tensors"]["apart"], np.float32), apart)

    def command() -> None:
        gateway(url=server.grpc_address, port=0, allow_origin=[], concurrency=4, timeout_s=60)

    with ServiceThread(command) as running:
        texts = [base64.b64encode(one).decode() for one in (left, right)]
        for second, status in ((texts[1], 200), (str(tmp_path / "right.jpg"), 400)):
            body = json.dumps({"image": texts[0], "inputs": {"second": second}}).encode()
            seen, answer = running.ask("/v1/pipelines/siamese", body)
            # A path of the gateway's machine is never read.
            assert (seen, "error" in answer) == (status, status == 400)
            if status == 200:
                np.testing.assert_array_equal(np.array(answer["tensors"]["apart"], np.float32), apart)
