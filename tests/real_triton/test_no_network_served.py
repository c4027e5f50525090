"""A pipeline without a network on a real Triton: the answer is the preprocessed picture, also in shared memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
import yaml
from image_files import encode
from patience import PATIENCE_S
from PIL import Image
from shared_server import Served, SharedServer
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from onestream.client import BadImage, Client, Outputs
from onestream.preprocess import Definition, compile
from onestream.preprocess.patches import Processor
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline

COFFEE = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
OPERATIONS = [
    {"op": "decode"},
    {"op": "resize", "mode": "shorter", "size": 24, "filter": "bicubic"},
    {"op": "center_crop", "size": [20, 24]},
    {"op": "output", "layout": "NCHW", "dtype": "uint8"},
]
FIELDS = {
    "network": "none",
    "preprocess": {"operations": OPERATIONS},
    "postprocess": {"kind": "raw"},
    "serving": {"cpu_instances": 1},
}


IN_PATCHES = {
    "operations": [
        {"op": "decode"},
        {"op": "resize", "mode": "area", "multiple_of": 8, "min_pixels": 512, "max_pixels": 2048, "filter": "bicubic"},
        {"op": "normalize", "scale": 255, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        {"op": "patches", "patch": 4, "temporal": 2, "merge": 2},
    ]
}


def _write(folder: Path) -> list[Path]:
    (folder / "pixels.yaml").write_text(yaml.safe_dump(FIELDS))
    return []


def _write_patches(folder: Path) -> list[Path]:
    (folder / "patched.yaml").write_text(yaml.safe_dump(FIELDS | {"preprocess": IN_PATCHES}))
    return []


pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(Served("pixels", _write), Served("patched", _write_patches)),
]


def expected() -> np.ndarray:
    definition = Definition.model_validate({"operations": OPERATIONS})
    (pixels,) = compile(definition, backend="reference").run([COFFEE.read_bytes()])
    return np.asarray(pixels)


@pytest.mark.parametrize("form", ["pixels", "pixels_fused"])
def test_the_answer_is_the_definitions_output(server: SharedServer, form: str) -> None:
    for url in (server.grpc_url, server.http_url):
        with Client(url, timeout_s=PATIENCE_S) as client:
            result = client.predict(COFFEE, pipeline=form)
            assert isinstance(result, Outputs)
            np.testing.assert_array_equal(result.tensors["pixel_values"][0], expected(), strict=True)


@pytest.mark.parametrize("form", ["patched", "patched_fused"])
def test_patches_are_those_that_a_processor_makes_in_process(server: SharedServer, form: str) -> None:
    photos = [COFFEE, COFFEE.with_name("cat.jpg"), encode(Image.new("RGB", (90, 9), "teal"), "PNG")]
    processor = Processor(Definition.model_validate(IN_PATCHES))
    for url in (server.grpc_url, server.http_url):
        with Client(url, timeout_s=PATIENCE_S) as client:
            for item, photo in zip(client.predict_many(photos, pipeline=form), photos, strict=True):
                result, made = item.unwrap(), processor([photo.read_bytes() if isinstance(photo, Path) else photo])
                assert isinstance(result, Outputs)
                np.testing.assert_array_equal(result.tensors["pixel_values"][0], made.pixel_values, strict=True)
                np.testing.assert_array_equal(result.tensors["image_grid_thw"], made.image_grid_thw, strict=True)
            with pytest.raises(BadImage, match="aspect ratio"):
                client.predict(np.zeros((1, 201, 3), np.uint8), pipeline=form)


def test_it_is_written_into_a_region_of_the_caller(server: SharedServer) -> None:
    content, image = COFFEE.read_bytes(), expected()
    region = shm.create_shared_memory_region("pixels_out", "/onestream_pixels_out", image.nbytes)
    try:
        with InferenceServerClient(server.grpc_address) as triton:
            triton.register_system_shared_memory("pixels_out", "/onestream_pixels_out", image.nbytes)
            picture = InferInput("image", [1, len(content)], "UINT8")
            picture.set_data_from_numpy(np.frombuffer(content, np.uint8)[None])
            output = InferRequestedOutput("pixel_values")
            output.set_shared_memory("pixels_out", image.nbytes)
            triton.infer("pixels_fused", [picture], outputs=[output])
            triton.unregister_system_shared_memory("pixels_out")
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.uint8, image.shape), image)
    finally:
        shm.destroy_shared_memory_region(region)


def test_a_kind_that_answers_something_else_is_refused() -> None:
    fields = FIELDS | {"postprocess": {"kind": "classification"}}
    with pytest.raises(BadPipeline, match="network none answers pixels; it takes postprocess raw, got classification"):
        Pipeline.from_fields(Path("pixels.yaml"), {"name": "pixels"} | fields)
