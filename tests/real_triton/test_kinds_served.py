"""Embeddings, masks, mattes and text from a real Triton: those of the networks; each pixel has its cell's class.

The three networks of ``read`` alone, by their kinds: ``tests/pipelines/networks/test_ppocr.py``.
"""

from __future__ import annotations

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import yaml
from clip_files import COUNT, HEIGHT, WIDTH, write_video
from image_files import encode
from kind_networks import EMBED
from networks import network_of
from onnx import helper
from pages import blocks, printed_by
from PIL import Image, ImageDraw, ImageOps
from shared_server import MATTE, READ, Served, SharedServer
from tritonclient import grpc

from benchmarks.reading.lettering import font
from benchmarks.reading.pictures import rendered_lines
from onestream.client import BadImage, Client, Embedding, Reading, UnexpectedResponse
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.matte.composer import alpha
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.float32)
NAMES = ["border", "red", "green", "blue"]
STRIDE = 4
CANVAS = (48, 64)
BOXED = [{"op": "decode"}, {"op": "letterbox", "size": list(CANVAS), "value": 0}]
LEVELS = {"op": "normalize", "scale": 1, "mean": [0, 0, 0], "std": [1, 1, 1]}


def colors() -> onnx.ModelProto:
    """Tells colours apart by a 1x1 convolution, on a grid of cells of 4x4 pixels: minus the squared distance."""
    nodes = [
        helper.make_node("AveragePool", ["x"], ["cells"], kernel_shape=[STRIDE] * 2, strides=[STRIDE] * 2),
        helper.make_node("Conv", ["cells", "weights", "bias"], ["scores"]),
    ]
    outputs = {"scores": ["batch", len(COLORS), CANVAS[0] // STRIDE, CANVAS[1] // STRIDE]}
    constants = {"weights": 2 * COLORS[:, :, None, None], "bias": -(COLORS**2).sum(axis=1)}
    return network_of(nodes, {"x": ["batch", 3, *CANVAS]}, outputs, constants)


(PERSONS,) = (
    fields
    for fields in map(yaml.safe_load, blocks("kinds.md", "yaml"))
    if fields.get("postprocess", {}).get("kind") == "segmentation"
)


def written(name: str, fields: dict[str, Any]) -> Served:
    """A pipeline of the page, or one over the network of colours."""

    def write(folder: Path) -> Path | None:
        (folder / "names.txt").write_text("\n".join(NAMES))
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"serving": {"cpu_instances": 1}, **fields}))
        if "network" in fields:
            return None
        onnx.save(colors(), folder / "colors.onnx")
        return folder / "colors.onnx"

    return Served(name, write)


SEGMENT = {
    "preprocess": {"operations": [*BOXED, LEVELS]},
    "postprocess": {"kind": "segmentation", "labels": "names.txt"},
    "video": {},
}
READ_FORMS = ("read", "read_fused")
TEXTS = ("Rusty bolts", "42 boxes of nuts", "Gate B7 opens at 9:45")
SIZE = (450, 300)
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(EMBED, written("segment", SEGMENT), written("persons", PERSONS), MATTE, READ),
]


def flags(orientation: int) -> bytes:
    """A JPEG of large areas of colour, not the same in any orientation, of which this is told."""
    pixels = np.zeros((90, 150, 3), np.uint8)
    pixels[:, :50, 0] = pixels[:45, 50:, 1] = pixels[45:, 50:, 2] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(Image.fromarray(pixels), "JPEG", quality=95, exif=exif)


def pixels_of(server: SharedServer, pipeline: str, image: bytes) -> npt.NDArray[np.uint8]:
    """What the pipeline's own first step gives its network."""
    with grpc.InferenceServerClient(server.grpc_address) as triton:
        given = grpc.InferInput("image", [1, len(image)], "UINT8")
        given.set_data_from_numpy(np.frombuffer(image, np.uint8)[None])
        answer = triton.infer(f"{pipeline}_preprocess", [given])
    found: npt.NDArray[np.uint8] = answer.as_numpy("pixels")[0]
    return found


def test_embeddings_of_both_forms_are_those_of_the_network(
    any_client: Client, server: SharedServer, photos: dict[str, bytes]
) -> None:
    engine = OnnxRuntimeEngine(server.repository / "embed_fused" / "1" / "model.onnx", threads=1)
    features = engine.run({"pixels": pixels_of(server, "embed", photos["cat"])[None]})["features"][0]
    for form in ("embed", "embed_fused"):
        found = any_client.embed(photos["cat"], pipeline=form)
        assert (found.vector.shape, found.vector.dtype) == ((1280,), np.float32)
        np.testing.assert_allclose(found.vector, features / np.linalg.norm(features), atol=1e-6)
        assert isinstance(any_client.predict(photos["cat"], pipeline=form), Embedding)
        assert found.to_dict()["embedding"] == found.vector.tolist()
    with pytest.raises(UnexpectedResponse, match=r"embedding of \[1, values\]"):
        any_client.embed(photos["cat"], pipeline="segment")
    with pytest.raises(UnexpectedResponse, match=r"masks of \[1, masks\]"):
        any_client.segment(photos["cat"], pipeline="embed")


@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_each_pixel_has_the_class_of_its_cell(any_client: Client, server: SharedServer, orientation: int) -> None:
    """A turned picture in a letterbox: the border is cut off, and every pixel is where it was."""
    image = flags(orientation)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(image)))
    height, width = upright.size[::-1]
    pixels = pixels_of(server, "segment", image).astype(np.float32)
    cells = pixels.reshape(CANVAS[0] // STRIDE, STRIDE, CANVAS[1] // STRIDE, STRIDE, 3).mean(axis=(1, 3))
    grid = (2 * cells @ COLORS.T - (COLORS**2).sum(axis=1)).argmax(axis=2)
    scale = min(CANVAS[0] / height, CANVAS[1] / width)
    inside = (round(height * scale), round(width * scale))
    top, left = ((side - used) // 2 for side, used in zip(CANVAS, inside, strict=True))
    rows = ((np.arange(height) + 0.5) * inside[0] / height + top) // STRIDE
    columns = ((np.arange(width) + 0.5) * inside[1] / width + left) // STRIDE
    expected = grid[rows.astype(int)[:, None], columns.astype(int)]
    for form in ("segment", "segment_fused"):
        found = any_client.segment(image, pipeline=form)
        assert found.image_size == (height, width)
        assert (found.class_ids, found.labels) == ((0, 1, 2, 3), tuple(NAMES))
        np.testing.assert_array_equal(found.classes(), expected)
    # What the picture shows, as it is seen upright, away from the edges of its areas.
    shown = np.array(upright, int)
    for number, color in enumerate(COLORS):
        clear = (np.abs(shown - color).max(axis=2) < 60) & (expected == number)
        assert clear.any() == (number > 0)
    assert (np.abs(shown - COLORS[expected]).max(axis=2) < 60).mean() > 0.85


def test_both_forms_give_the_matte_and_agree_with_the_reference(
    server: SharedServer, grpc_client: Client, photos: dict[str, bytes]
) -> None:
    pipeline = Pipeline.from_file(server.pipeline_file("matte"))
    assert isinstance(pipeline.postprocess, Matte)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photos["astronaut"]])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(server.repository / "matte_fused" / "1" / "model.onnx", threads=1)
    expected = alpha(engine.run({"pixels": pixels[None]})["person"], softness=pipeline.postprocess.softness)[0]
    mattes = {form: grpc_client.infer(form, photos["astronaut"])["matte"] for form in ("matte", "matte_fused")}
    temple = grpc_client.infer("matte", photos["temple"])["matte"][0]
    with pytest.raises(UnexpectedResponse, match=r"'matte' answered .*for any kind use predict"):
        grpc_client.classify(photos["astronaut"], pipeline="matte")
    assert mattes["matte"].shape == (1, 256, 256)
    assert mattes["matte"].dtype == np.uint8
    np.testing.assert_array_equal(mattes["matte"], mattes["matte_fused"])
    matte = mattes["matte"][0]
    # The network's sums depend on the threads.
    assert np.abs(matte.astype(int) - expected).max() <= 1
    assert matte[60, 110] > 240, "her face"
    assert matte[100, 20] < 15, "the flag"
    # Nobody is in it.
    assert temple.mean() < 25


def test_frames_of_a_video_have_masks_of_their_size(grpc_client: Client, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "v.mp4", "libx264")
    with grpc_client.stream(clip, pipeline="segment") as frames:
        results = list(frames)
    assert len(results) == COUNT
    for frame in results:
        mask = np.array(Image.open(io.BytesIO(frame.tensors["masks"][0])))
        assert mask.shape == tuple(frame.tensors["image_size"]) == (HEIGHT, WIDTH)
        assert set(np.unique(mask)) <= {0, 1, 2, 3}


def test_the_programs_of_the_page_run(server: SharedServer, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "photos", tmp_path / "examples" / "photos")
    embed, segment = (
        code.replace("127.0.0.1:8001", server.grpc_url).replace(
            "client.segment(", "client.segment(pipeline='persons', image="
        )
        for code in blocks("kinds.md", "python")
        if "client.embed(" in code or "client.segment(" in code
    )
    similarities, persons = printed_by(embed, tmp_path), printed_by(segment, tmp_path)
    cat, *others = (float(line.split()[1]) for line in similarities)
    assert cat == pytest.approx(1)
    assert all(other < 0.9 for other in others)
    assert " ".join(persons).split() == ["(512,", "512)", "(1,", "512,", "512)"]
    assert Image.open(tmp_path / "person.png").size == (512, 512)


def sign(texts: tuple[str, ...] = TEXTS) -> Image.Image:
    """Lines of text below each other on a light ground."""
    picture = Image.new("RGB", SIZE, (235, 230, 220))
    for number, text in enumerate(texts):
        ImageDraw.Draw(picture).text((40, 30 + 80 * number), text, (30, 30, 60), font("DejaVu Sans", 28))
    return picture


def test_what_is_written_is_read_line_by_line(any_client: Client) -> None:
    for form in READ_FORMS:
        found = any_client.read(encode(sign(), "PNG"), pipeline=form)
        assert found.texts == TEXTS
        assert found.image_size == SIZE[::-1]
        assert found.left_out == 0
        assert (found.scores > 0.9).all()
        for number, quad in enumerate(found.quads):
            assert quad[:, 0].min() == pytest.approx(40, abs=12)
            middle = quad.mean(axis=0)
            assert 30 + 80 * number < middle[1] < 30 + 80 * number + 40
        nothing = any_client.read(encode(sign(()), "PNG"), pipeline=form)
        assert (nothing.texts, nothing.quads.shape) == ((), (0, 4, 2))


def test_both_forms_read_the_same_and_nobody_s_lines_mix(server: SharedServer, grpc_client: Client) -> None:
    pictures = [
        encode(sign((line.text,)).rotate(180 * (number % 2)), "PNG") for number, line in enumerate(rendered_lines(6))
    ]
    alone = [grpc_client.read(picture, pipeline="read_fused") for picture in pictures]

    def ask(number: int) -> Reading | None:
        with Client(server.grpc_url, timeout_s=120) as client:
            if number % 6 == 5:
                with pytest.raises(BadImage):
                    client.read(pictures[number % 6][:200], pipeline=READ_FORMS[number % 2])
                return None
            return client.read(pictures[number % 6], pipeline=READ_FORMS[number // 6 % 2])

    with ThreadPoolExecutor(6) as pool:
        for number, found in enumerate(pool.map(ask, range(12))):
            if found is not None:
                other = alone[number % 6]
                assert found.texts == other.texts
                np.testing.assert_array_equal(found.quads, other.quads)
                np.testing.assert_array_equal(found.scores, other.scores)
