"""The kinds for text from a real Triton, in both forms: where a line is, which way up it is, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from image_files import encode
from PIL import Image, ImageDraw, ImageFont
from shared_server import Served, SharedServer

from onestream.client import Client

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


pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(*map(written, PIPELINES))]


@pytest.fixture(params=["ensemble", "fused"])
def ask(server: SharedServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    ending = "_fused" if request.param == "fused" else ""
    with Client(server.grpc_url, timeout_s=60) as client:
        yield lambda name, image: client.infer(name + ending, image)


def line(*, degrees: int = 0) -> Image.Image:
    font = ImageFont.load_default(32)
    picture = Image.new("RGB", (int(font.getlength(SAID)) + 20, 48), "white")
    ImageDraw.Draw(picture).text((10, 4), SAID, fill="black", font=font)
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
