"""The pipeline ``read`` on a real Triton, in both forms: what was written comes back, whichever way up.

Its three networks alone, by their kinds: ``tests/serving/networks/test_ppocr.py``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from image_files import encode
from PIL import Image, ImageDraw
from shared_server import READ, SharedServer

from benchmarks.reading.lettering import font
from benchmarks.reading.pictures import rendered_lines
from onestream.client import BadImage, Client, Reading

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(READ)]

FORMS = ("read", "read_fused")
TEXTS = ("Rusty bolts", "42 boxes of nuts", "Gate B7 opens at 9:45")
SIZE = (450, 300)


def sign(texts: tuple[str, ...] = TEXTS) -> Image.Image:
    """Lines of text below each other on a light ground."""
    picture = Image.new("RGB", SIZE, (235, 230, 220))
    for number, text in enumerate(texts):
        ImageDraw.Draw(picture).text((40, 30 + 80 * number), text, (30, 30, 60), font("DejaVu Sans", 28))
    return picture


def test_what_is_written_is_read_line_by_line(any_client: Client) -> None:
    for form in FORMS:
        found = any_client.read(encode(sign(), "PNG"), pipeline=form)
        assert found.texts == TEXTS
        assert found.image_size == SIZE[::-1]
        assert found.left_out == 0
        assert (found.scores > 0.9).all()
        for number, quad in enumerate(found.quads):
            assert quad[:, 0].min() == pytest.approx(40, abs=12)
            middle = quad.mean(axis=0)
            assert 30 + 80 * number < middle[1] < 30 + 80 * number + 40


@pytest.mark.parametrize("degrees", [-25, 10, 90, 180])
def test_turned_text_is_read(server: SharedServer, degrees: int) -> None:
    turned = sign().rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=(235, 230, 220))
    with Client(server.grpc_url, timeout_s=60) as client:
        readings = [client.read(encode(turned, "PNG"), pipeline=form) for form in FORMS]
    assert readings[0].texts == TEXTS
    assert_same(*readings)


def test_a_picture_without_text_has_no_lines(any_client: Client) -> None:
    for form in FORMS:
        found = any_client.read(encode(sign(()), "PNG"), pipeline=form)
        assert found.texts == ()
        assert found.quads.shape == (0, 4, 2)


def test_both_forms_read_the_same_and_nobody_s_lines_mix(server: SharedServer) -> None:
    pictures = [encode(sign((line.text,)), "PNG") for line in rendered_lines(6)]
    with Client(server.grpc_url, timeout_s=60) as client:
        alone = [client.read(picture, pipeline="read_fused") for picture in pictures]

    def ask(number: int) -> Reading | None:
        with Client(server.grpc_url, timeout_s=120) as client:
            if number % 6 == 5:
                with pytest.raises(BadImage):
                    client.read(pictures[number % 6][:200], pipeline=FORMS[number % 2])
                return None
            return client.read(pictures[number % 6], pipeline=FORMS[number // 6 % 2])

    with ThreadPoolExecutor(6) as pool:
        for number, found in enumerate(pool.map(ask, range(12))):
            if found is not None:
                assert_same(found, alone[number % 6])


def assert_same(one: Reading, other: Reading) -> None:
    assert one.texts == other.texts
    np.testing.assert_array_equal(one.quads, other.quads)
    np.testing.assert_array_equal(one.scores, other.scores)
