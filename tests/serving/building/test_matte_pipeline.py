"""Pipelines with a matte: what the file may say, and what is built of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from networks import network_of
from onnx import helper
from PIL import Image

from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.matte.background import Blur, Color, Picture, read_picture
from onestream.postprocess.matte.composer import Composer, alpha
from onestream.postprocess.matte.stretch import mixed
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess.video.common.color import ColorRule, Planes
from onestream.serving.building import pipeline_repository
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import with_postprocess
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline

ROOT = Path(__file__).parents[3]
PIPELINE_FILE = ROOT / "pipelines" / "matte.yaml"
PERSON = NetworkOutput("person", "float32", (256, 256))


def pipeline_with(folder: Path, **postprocess: Any) -> Path:
    fields = yaml.safe_load(PIPELINE_FILE.read_text())
    fields["postprocess"] |= postprocess
    path = folder / "matte.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_the_matte_leaves_at_the_size_of_the_canvas() -> None:
    planned = pipeline_repository.plan(Pipeline.from_file(PIPELINE_FILE), [PERSON], labels=None)
    files = planned.files(source="pipelines/matte.yaml")
    for model in ("matte", "matte_fused", "matte_postprocess"):
        (output,) = from_text(files[f"{model}/config.pbtxt"].decode()).output
        assert (output.name, list(output.dims)) == ("matte", [256, 256])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softness": 0}, "softness: Input should be greater than 0"),
        ({"background": {"kind": "color", "rgb": [0, 0, 256]}}, r"rgb\.2: Input should be less than or equal to 255"),
        ({"background": {"kind": "blur", "radius": 3}}, "radius: Input should be greater than or equal to 12"),
        ({"background": {"kind": "snow"}}, "allowed: color, blur, picture"),
        ({"background": {"kind": "picture"}}, "path: Field required"),
    ],
)
def test_options_are_checked_by_name(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadPipeline, match=message):
        Pipeline.from_file(pipeline_with(tmp_path, **options))


@pytest.mark.parametrize(
    "outputs",
    [
        [PERSON, PERSON],
        [NetworkOutput("person", "float32", (256, 256, 1))],
        [NetworkOutput("person", "uint8", (256, 256))],
        [NetworkOutput("person", "float32", (128, 128))],
    ],
)
def test_a_network_that_gives_no_matte_is_refused(outputs: list[NetworkOutput]) -> None:
    with pytest.raises(BadNetwork, match=r"matte takes one output, float32 \[None, 256, 256\].*got person"):
        pipeline_repository.plan(Pipeline.from_file(PIPELINE_FILE), outputs, labels=None)


def test_a_definition_that_crops_is_refused(tmp_path: Path) -> None:
    fields = yaml.safe_load(PIPELINE_FILE.read_text())
    cropping = [{"op": "resize", "mode": "shorter", "size": 256}, {"op": "center_crop", "size": [256, 256]}]
    fields["preprocess"]["operations"][1:2] = cropping
    path = tmp_path / "matte.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(BadPipeline, match="postprocess matte: the definition crops a picture of 1920x1080"):
        pipeline_repository.plan(Pipeline.from_file(path), [PERSON], labels=None)


def test_the_graph_s_own_matte_is_that_of_the_postprocessing() -> None:
    """All of float32's steps between 0 and 1 cannot be run; 300,000 of them can, and the ties at half levels."""
    person = np.random.default_rng(0).random((1, 600, 500), np.float32)
    person[0, 0, :256] = np.arange(256, dtype=np.float32) / np.float32(255)
    person[0, 1, :255] = (np.arange(255, dtype=np.float32) + np.float32(0.5)) / np.float32(255)
    for name in ("person", "matte"):
        shape = ["batch", 600, 500]
        model = network_of([helper.make_node("Identity", ["x"], [name])], {"x": shape}, {name: shape})
        for softness in (1.0, 0.5, 0.03):
            tailed = with_postprocess(model, Matte(softness=softness))
            onnx.checker.check_model(tailed, full_check=True)
            outputs = OnnxRuntimeEngine(tailed.SerializeToString(), threads=1).run_together({"x": person})
            assert list(outputs) == ["matte"]
            np.testing.assert_array_equal(outputs["matte"], alpha(person, softness=softness))


def test_a_picture_is_turned_as_it_says() -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter to the right when shown
    image.save(buffer, "PNG", exif=exif)
    shown = read_picture(buffer.getvalue())
    assert shown.shape == (16, 8, 3)
    assert shown[:8].min() == 255
    with pytest.raises(ValueError, match="not an image that can be read"):
        read_picture(b"text")


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), (b"text", "not an image that can be read")])
def test_a_background_that_cannot_be_shown_ends_the_build(tmp_path: Path, content: bytes | None, message: str) -> None:
    from onestream.serving.building.build import build

    if content is not None:
        (tmp_path / "beach.png").write_bytes(content)
    path = pipeline_with(tmp_path, background={"kind": "picture", "path": "beach.png"})
    with pytest.raises(BadPipeline, match=rf"postprocess\.background\.path: .*beach\.png: .*{message}"):
        build(path, folder=tmp_path / "repository")


@pytest.mark.parametrize("background", ["color", "blur", "picture"])
def test_the_options_become_the_background_that_they_name(tmp_path: Path, background: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / BACKGROUND_FILE, "PNG")
    options, expected = {
        "color": ({"kind": "color", "rgb": [9, 8, 7]}, Color((9, 8, 7))),
        "blur": ({"kind": "blur", "radius": 12}, Blur(12)),
        "picture": ({"kind": "picture", "path": "beach.png"}, Picture(pixels)),
    }[background]
    y, u, v = (
        np.random.default_rng(2).integers(0, 256, size, dtype=np.uint8) for size in ((40, 60), (20, 30), (20, 30))
    )
    frame = Planes(y, u, v, (40, 60), (1, 1), 8, 1, False)
    composer = Composer(Matte.model_validate({"background": options}).behind((tmp_path / BACKGROUND_FILE).read_bytes))
    out = composer.compose(frame, np.zeros((4, 6), np.uint8))
    for plane, layer in zip((out.y, out.u, out.v), expected.layers(frame, ColorRule()), strict=True):
        np.testing.assert_array_equal(plane, mixed(layer.rows, layer.steps, axis=0))
