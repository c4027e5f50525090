"""Embeddings, masks and mattes from a real Triton: a photo is found again, and each pixel has its cell's class."""

from __future__ import annotations

import io
import shutil
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
from PIL import Image, ImageOps
from shared_server import MATTE, Served, SharedServer
from tritonclient import grpc

from onestream.client import Client, Embedding, Segmentation, UnexpectedResponse
from onestream.postprocess.kinds.matte import Matte
from onestream.postprocess.matte.composer import alpha
from onestream.preprocess import Definition, compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.float32)
NAMES = ["border", "red", "green", "blue"]
STRIDE = 4
CANVAS = (48, 64)
BOXED = [{"op": "decode"}, {"op": "letterbox", "size": list(CANVAS), "value": 0}]
CROPPED = [{"op": "decode"}, {"op": "center_crop", "size": list(CANVAS)}]
LEVELS = {"op": "normalize", "scale": 1, "mean": [0, 0, 0], "std": [1, 1, 1]}


def colors() -> onnx.ModelProto:
    """Tells colours apart by a 1x1 convolution, on a grid of cells of 4x4 pixels: minus the squared distance."""
    return network_of(
        [
            helper.make_node("AveragePool", ["x"], ["cells"], kernel_shape=[STRIDE] * 2, strides=[STRIDE] * 2),
            helper.make_node("Conv", ["cells", "weights", "bias"], ["scores"]),
        ],
        {"x": ["batch", 3, *CANVAS]},
        {"scores": ["batch", len(COLORS), CANVAS[0] // STRIDE, CANVAS[1] // STRIDE]},
        {"weights": 2 * COLORS[:, :, None, None], "bias": -(COLORS**2).sum(axis=1)},
    )


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
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(
        EMBED,
        written("segment", SEGMENT),
        written("persons", PERSONS),
        MATTE,
    ),
]


def flags(size: tuple[int, int] = (90, 150)) -> Image.Image:
    """A picture of large areas of colour, (height, width), not the same in any orientation."""
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[:, : size[1] // 3, 0] = 255
    pixels[: size[0] // 2, size[1] // 3 :, 1] = 255
    pixels[size[0] // 2 :, size[1] // 3 :, 2] = 255
    return Image.fromarray(pixels)


def jpeg(image: Image.Image, *, quality: int = 95, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, "JPEG", quality=quality, exif=exif)


def pixels_of(server: SharedServer, pipeline: str, image: bytes) -> npt.NDArray[np.uint8]:
    """What the pipeline's own first step gives its network."""
    with grpc.InferenceServerClient(server.grpc_address) as triton:
        given = grpc.InferInput("image", [1, len(image)], "UINT8")
        given.set_data_from_numpy(np.frombuffer(image, np.uint8)[None])
        answer = triton.infer(f"{pipeline}_preprocess", [given])
    found: npt.NDArray[np.uint8] = answer.as_numpy("pixels")[0]
    return found


def test_a_photo_is_found_again_among_others(server: SharedServer, photos: dict[str, bytes]) -> None:
    with Client(server.grpc_url, timeout_s=60) as client:
        known = {name: client.embed(photo) for name, photo in photos.items()}
        for name, photo in photos.items():
            image = Image.open(io.BytesIO(photo))
            inner = image.crop((image.width // 10, image.height // 8, image.width * 9 // 10, image.height))
            for changed in (inner, ImageOps.mirror(inner)):
                query = client.embed(jpeg(changed, quality=30))
                assert max(known, key=lambda other: query.similarity(known[other])) == name
    assert known["cat"].vector.shape == (1280,)
    assert known["cat"].vector.dtype == np.float32
    # The sum of 1280 squares in float32.
    assert np.linalg.norm(known["cat"].vector) == pytest.approx(1, abs=1e-5)


def test_embeddings_of_both_forms_are_those_of_the_network(
    any_client: Client, server: SharedServer, photos: dict[str, bytes]
) -> None:
    engine = OnnxRuntimeEngine(server.repository / "embed_fused" / "1" / "model.onnx", threads=1)
    features = engine.run({"pixels": pixels_of(server, "embed", photos["cat"])[None]})["features"][0]
    for form in ("embed", "embed_fused"):
        found = any_client.embed(photos["cat"], pipeline=form)
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
    image = jpeg(flags(), orientation=orientation)
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


def test_probabilities_of_persons(server: SharedServer, photos: dict[str, bytes]) -> None:
    definition = Definition.model_validate_json((server.repository / "persons" / "definition.json").read_text())
    (reference,) = compile(definition.pixels(), backend="reference").run([photos["astronaut"]])
    engine = OnnxRuntimeEngine(server.repository / "persons_fused" / "1" / "model.onnx", threads=1)
    assert isinstance(reference, np.ndarray)
    person = engine.run({"pixels": reference[None]})["person"][0]
    with Client(server.grpc_url) as client:
        found = {form: client.segment(photos["astronaut"], pipeline=form) for form in ("persons", "persons_fused")}
        assert isinstance(client.predict(photos["astronaut"], pipeline="persons"), Segmentation)
    one = found["persons"]
    assert one.masks == found["persons_fused"].masks
    assert (one.class_ids, one.labels) == ((0,), ("0",))
    height, width = one.image_size
    assert Image.open(io.BytesIO(photos["astronaut"])).size == (width, height)
    (levels,) = one.probabilities()
    # This photo has the shape of the canvas: Pillow's resize of the whole is the same stretch.
    assert height == width
    plain = np.array(Image.fromarray(person).resize((width, height), Image.Resampling.BILINEAR)) * 255
    # Pillow rounds the stretched mask to 8 bit.
    assert (np.abs(levels - plain) <= 8).mean() > 0.99
    assert levels[height * 60 // 256, width * 110 // 256] > 240, "her face"
    assert levels[height * 100 // 256, width * 20 // 256] < 15, "the flag"
    with pytest.raises(ValueError, match="expected output: classes"):
        one.classes()


def test_both_forms_give_the_matte_and_agree_with_the_reference(server: SharedServer, photos: dict[str, bytes]) -> None:
    pipeline = Pipeline.from_file(server.pipeline_file("matte"))
    assert isinstance(pipeline.postprocess, Matte)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photos["astronaut"]])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(server.repository / "matte_fused" / "1" / "model.onnx", threads=1)
    expected = alpha(engine.run({"pixels": pixels[None]})["person"], softness=pipeline.postprocess.softness)[0]
    with Client(server.grpc_url, timeout_s=60) as client:
        mattes = {form: client.infer(form, photos["astronaut"])["matte"] for form in ("matte", "matte_fused")}
        temple = client.infer("matte", photos["temple"])["matte"][0]
        with pytest.raises(UnexpectedResponse, match=r"'matte' answered .*for any kind use predict"):
            client.classify(photos["astronaut"], pipeline="matte")
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


def test_frames_of_a_video_have_masks_of_their_size(server: SharedServer, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "v.mp4", "libx264")
    with Client(server.grpc_url) as client, client.stream(clip, pipeline="segment") as frames:
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
