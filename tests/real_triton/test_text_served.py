"""The kinds for text from a real Triton, in both forms: where a line is, which way up it is, and what it says.

Then the pipeline ``read``, which asks the three: what was written comes back, whichever way up.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from image_files import encode
from PIL import Image, ImageDraw, ImageFont
from shared_server import Served, SharedServer, built_in

from benchmarks.reading.lettering import font
from benchmarks.reading.pictures import rendered_lines
from onestream.client import BadImage, Client, Reading

HALF = {"op": "normalize", "scale": 255, "mean": [0.5] * 3, "std": [0.5] * 3}
PIPELINES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "find": (
        "ppocr-v6-det",
        {"op": "resize", "mode": "exact", "size": [320, 448]},
        {"kind": "text_lines"},
    ),
    "turn": (
        "ppocr-cls",
        {"op": "resize", "mode": "exact", "size": [48, 192]},
        {"kind": "rotation", "degrees": [0, 180]},
    ),
    "say": (
        "ppocr-v6-rec",
        {"op": "resize", "mode": "exact", "size": [48, 240]},
        {"kind": "text", "character_scores": True},
    ),
}
SAID = "Weight: 42 kg"


def written(name: str) -> Served:
    network, resize, postprocess = PIPELINES[name]
    operations = [{"op": "decode", "color": "bgr"}, resize, HALF]
    fields = {"network": network, "preprocess": {"operations": operations}, "postprocess": postprocess}

    def write(folder: Path) -> None:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"serving": {"cpu_instances": 1}, **fields}))

    return Served(name, write)


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(*map(written, PIPELINES), built_in("read")),
]


@pytest.fixture(params=["ensemble", "fused"])
def ask(server: SharedServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    ending = "_fused" if request.param == "fused" else ""
    with Client(server.grpc_url, timeout_s=60) as client:
        yield lambda name, image: client.infer(name + ending, image)


def line(*, degrees: int = 0) -> Image.Image:
    letters = ImageFont.load_default(32)
    picture = Image.new("RGB", (int(letters.getlength(SAID)) + 20, 48), "white")
    ImageDraw.Draw(picture).text((10, 4), SAID, fill="black", font=letters)
    return picture.rotate(degrees)


def test_where_text_is(ask: Any) -> None:
    page = Image.new("RGB", (700, 500), "white")
    empty = ask("find", encode(page, "PNG"))
    assert empty["quads"].shape == (1, 0, 4, 2)
    assert empty["scores"].shape == (1, 0)
    page.paste(line(), (60, 100))
    page.paste(line(), (400, 300))
    found = ask("find", encode(page, "PNG"))
    assert found["image_size"].tolist() == [[500, 700]]
    for quad, left, top in zip(found["quads"][0], (60, 400), (100, 300), strict=True):
        assert left < quad[:, 0].min() < quad[:, 0].max() < left + line().width
        assert top - 8 < quad[:, 1].min() < quad[:, 1].max() < top + 56


def test_which_way_up_it_is(ask: Any) -> None:
    for degrees in (0, 180):
        found = ask("turn", encode(line(degrees=degrees), "PNG"))
        assert found["degrees"].tolist() == [[degrees]]
        assert found["scores"][0, 0] > 0.9


def test_what_it_says(ask: Any) -> None:
    """With a probability for each character."""
    found = ask("say", encode(line(), "PNG"))
    assert found["texts"][0, 0].decode() == SAID
    each = np.frombuffer(found["character_scores"][0, 0], "<f4")
    assert each.shape == (len(SAID),)
    assert found["scores"][0, 0] == pytest.approx(each.mean(), rel=1e-5)


# ---------------------------------------------------------------- the cascade of the three

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
