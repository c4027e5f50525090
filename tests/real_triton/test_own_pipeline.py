"""Pipelines that users bring: with options of Triton's own, one form alone, or without a network; on a real Triton."""

from __future__ import annotations

import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import int8_networks
import numpy as np
import onnx
import pytest
import tritonclient.utils.shared_memory as shm
import yaml
from clip_files import write_video
from image_files import encode
from networks import ending_in, mean_color
from patience import PATIENCE_S
from PIL import Image
from shared_server import Served, SharedServer
from tritonclient import grpc
from windows import WINDOWS

from onestream.client import BadImage, Client, ModelNotFound, Outputs
from onestream.preprocess import Definition, compile
from onestream.preprocess.patches import Processor
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.triton.model_processes import find_model_processes

OPERATIONS: list[dict[str, object]] = [
    {"op": "decode"},
    {"op": "letterbox", "size": [48, 64], "value": 114},
    {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]
ONE_PROCESS = {"cpu_instances": 1}
"""Of each model: starting them is what takes the time of these tests."""


def write_own(folder: Path, name: str, *, network: onnx.ModelProto | None = None, **fields: Any) -> Path:
    """Write a pipeline file and its network, which is returned: a small one with a fixed batch unless it is given."""
    described = {"preprocess": {"operations": OPERATIONS}, "postprocess": {"kind": "raw"}, "serving": ONE_PROCESS}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(described | fields))
    onnx_file = folder / f"{name}.onnx"
    onnx_file.write_bytes((network or mean_color((1, 3, 48, 64))).SerializeToString())
    return onnx_file


def own(name: str, **described: Any) -> Served:
    return Served(name, partial(write_own, name=name, **described))


MIXING = own(
    "mixing",
    network=mean_color(("n", 3, 48, 64), mix_batch=True),
    serving={"max_batch_size": 1, "cpu_instances": 1},
    video={},
)
SCORES = own(
    "scores", network=ending_in("Softmax", shape=(1, 3, 48, 64)), postprocess={"kind": "classification", "top_k": 7}
)
LARGEST = {"model_warmup": [{"name": "largest", "batch_size": 8}]}
OPTIONS: dict[str, dict[str, Any]] = {
    "apart": {"forms": ["ensemble"], "triton": {"preprocess": {"response_cache": {"enable": True}}, "model": LARGEST}},
    "whole": {"forms": ["fused"], "triton": {"fused": {**LARGEST, "instance_group": [{"count": 2}]}}},
}
"""Of each pipeline, what its file says under ``serving``."""
WITH_OPTIONS = [
    own(name, network=mean_color(("n", 3, 48, 64)), serving=ONE_PROCESS | said) for name, said in OPTIONS.items()
]


def write_elsewhere(folder: Path) -> None:
    """A model that cannot be timed where it is loaded, since its network in float32 was cut off."""
    with tempfile.TemporaryDirectory() as there:
        built = int8_networks.in_int8(Path(there))
        shutil.copytree(built.folder / "colors_fused", folder / "colors_fused")
    version = folder / "colors_fused" / "1"
    network = onnx.load(str(version / "model.onnx"))
    for entry in network.metadata_props:
        entry.value = re.sub(r'("processor":{"name":")[^"]+', r"\1Another", entry.value)
    (version / "model.onnx").unlink()
    onnx.save(network, str(version / "model.onnx"))
    (version / "model.float32.onnx").unlink()
    (version / "model.float32.onnx").write_bytes(b"cut off")


COFFEE = Path(__file__).parents[2] / "examples" / "photos" / "coffee.jpg"
PIXEL_OPERATIONS = [
    {"op": "decode"},
    {"op": "resize", "mode": "shorter", "size": 24, "filter": "bicubic"},
    {"op": "center_crop", "size": [20, 24]},
    {"op": "output", "layout": "NCHW", "dtype": "uint8"},
]
WITHOUT_NETWORK = {
    "network": "none",
    "preprocess": {"operations": PIXEL_OPERATIONS},
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


def without_network(name: str, **fields: object) -> Served:
    def write(folder: Path) -> None:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(WITHOUT_NETWORK | fields))

    return Served(name, write)


ELSEWHERE = Served("colors_elsewhere", write_elsewhere)
PIXELS = (without_network("pixels"), without_network("patched", preprocess=IN_PATCHES))
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(MIXING, SCORES, WINDOWS, *WITH_OPTIONS, ELSEWHERE, *PIXELS),
]


def test_own_networks_are_served_in_both_forms_and_agree_with_the_reference(
    grpc_client: Client, photos: dict[str, bytes]
) -> None:
    definition = Definition.model_validate({"operations": OPERATIONS})
    (sample,) = compile(definition, backend="reference").run([photos["cat"]])
    weights = np.random.default_rng(7).normal(size=(3, 7)).astype(np.float32)
    assert isinstance(sample, np.ndarray)
    expected = sample.mean(axis=(1, 2)) @ weights
    answers = [grpc_client.infer(form, photos["cat"]) for form in ("scores", "scores_fused")]
    top = grpc_client.classify(photos["cat"], pipeline="scores").top
    for name, value in answers[0].items():
        np.testing.assert_array_equal(answers[1][name], value)
    logits = np.log(answers[0]["scores"][0])[np.argsort(answers[0]["class_ids"][0])]
    # Sums of float32 over all pixels, in another order.
    np.testing.assert_allclose(logits - logits.mean(), expected - expected.mean(), atol=1e-3)
    assert (top.class_id, top.label) == (int(np.argmax(expected)), str(np.argmax(expected)))


def test_a_pipeline_without_streams_is_told_by_what_its_file_lacks(grpc_client: Client, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=2)
    with pytest.raises(ModelNotFound, match=r"Add the line `video: {}` .*load scores`$"):
        list(grpc_client.stream(clip, pipeline="scores"))
    with pytest.raises(ModelNotFound, match="unless 'scores' is meant"):
        list(grpc_client.stream(clip, pipeline="scores_fused"))


def test_a_network_that_mixes_its_batch_is_never_given_one(
    grpc_client: Client, tmp_path: Path, photos: dict[str, bytes]
) -> None:
    """It gives 0 for an image alone, and anything else for one of several."""
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=30)
    for form in ("mixing", "mixing_fused"):
        with ThreadPoolExecutor(8) as callers:
            for outputs in callers.map(partial(grpc_client.infer, form), [*photos.values()] * 4):
                assert not outputs["scores_out"].any()
    with grpc_client.stream(clip, pipeline="mixing") as results:
        assert [result.tensors["scores_out"].any() for result in results] == [False] * 30
    for model in ("mixing_preprocess", "mixing_model", "mixing_postprocess", "mixing_fused"):
        statistics = grpc_client.statistics(model)
        assert statistics.execution_count == statistics.inference_count > 0


def test_scores_of_a_network_are_served_as_they_are(
    server: SharedServer, grpc_client: Client, photos: dict[str, bytes]
) -> None:
    given = grpc.InferInput("image", [1, len(photos["cat"])], "UINT8")
    given.set_data_from_numpy(np.frombuffer(photos["cat"], np.uint8)[None])
    with grpc.InferenceServerClient(server.grpc_address) as triton:
        pixels = triton.infer("scores_preprocess", [given]).as_numpy("pixels")
    engine = OnnxRuntimeEngine(server.repository / "scores_fused" / "1" / "model.onnx", threads=1)
    scores = np.sort(engine.run({"pixels": pixels})["scores_out"][0])[::-1]
    assert scores.sum() == pytest.approx(1)
    for form in ("scores", "scores_fused"):
        np.testing.assert_array_equal(grpc_client.infer(form, photos["cat"])["scores"][0], scores)


def test_pictures_keep_sizes_of_their_own_where_the_network_s_sides_are_free(
    server: SharedServer, grpc_client: Client
) -> None:
    random = np.random.default_rng(0)
    sizes = [(20, 80), (80, 20), (50, 50), (33, 71), (300, 200), (64, 64)] * 4
    pictures = [encode(Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)), "PNG") for size in sizes]
    definition = Pipeline.from_file(server.pipeline_file("windows")).preprocess
    compiled = compile(definition.pixels(), backend="dali")
    engine = OnnxRuntimeEngine(server.repository / "windows_fused" / "1" / "model.onnx", threads=1)
    alone = [next(iter(engine.run({"pixels": pixels[None]}).values())) for pixels in compiled.run(pictures)]
    with ThreadPoolExecutor(8) as pool:
        for form in ("windows", "windows_fused"):
            together = list(pool.map(partial(grpc_client.infer, form), pictures))
            for one, other in zip(together, alone, strict=True):
                (scores,) = one.values()
                np.testing.assert_array_equal(scores, other)


def test_options_and_flags_have_effect(grpc_client: Client, photos: dict[str, bytes]) -> None:
    first, second, fused = (grpc_client.infer(name, photos["cat"]) for name in ("apart", "apart", "whole"))
    counts = {
        model: (statistics.inference_count, statistics.execution_count)
        for model in ("apart_preprocess", "apart_model", "whole_fused")
        if (statistics := grpc_client.statistics(model))
    }
    for answer in (second, fused):
        np.testing.assert_array_equal(first["scores_out"], answer["scores_out"])
    # Warm-ups count: of one image; of the largest batch, in each of two instances where the options say so.
    assert counts == {"apart_preprocess": (1 + 1, 2), "apart_model": (8 + 2, 3), "whole_fused": (2 * 8 + 1, 3)}


@pytest.mark.parametrize(("name", "roles"), [("apart", ("preprocess", "model", "postprocess")), ("whole", ("fused",))])
def test_one_form_answers_to_both_names(
    server: SharedServer, grpc_client: Client, photos: dict[str, bytes], name: str, roles: tuple[str, ...]
) -> None:
    one, other = (grpc_client.predict(photos["cat"], pipeline=asked) for asked in (name, f"{name}_fused"))
    np.testing.assert_array_equal(one.tensors["scores_out"], other.tensors["scores_out"])
    models = {process.model for process in find_model_processes(server.pid).running}
    assert {model for model in models if model.startswith(name)} == {f"{name}_{role}" for role in roles}


def test_a_load_that_cannot_time_int8_serves_it_and_says_so(
    server: SharedServer, grpc_client: Client, tmp_path: Path
) -> None:
    (shown,) = int8_networks.pictures(tmp_path, count=1)
    assert grpc_client.classify(str(shown), pipeline="colors_fused").top.label == "red"
    said = server.log_path.read_text()
    assert "model colors_fused: model.onnx and model.float32.onnx cannot be timed here" in said


def pixels_of_coffee() -> np.ndarray:
    definition = Definition.model_validate({"operations": PIXEL_OPERATIONS})
    (pixels,) = compile(definition, backend="reference").run([COFFEE.read_bytes()])
    return np.asarray(pixels)


@pytest.mark.parametrize("form", ["pixels", "pixels_fused"])
def test_the_answer_is_the_definitions_output(server: SharedServer, form: str) -> None:
    for url in (server.grpc_url, server.http_url):
        with Client(url, timeout_s=PATIENCE_S) as client:
            result = client.predict(COFFEE, pipeline=form)
            assert isinstance(result, Outputs)
            np.testing.assert_array_equal(result.tensors["pixel_values"][0], pixels_of_coffee(), strict=True)


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
    content, image = COFFEE.read_bytes(), pixels_of_coffee()
    region = shm.create_shared_memory_region("pixels_out", "/onestream_pixels_out", image.nbytes)
    try:
        with grpc.InferenceServerClient(server.grpc_address) as triton:
            triton.register_system_shared_memory("pixels_out", "/onestream_pixels_out", image.nbytes)
            picture = grpc.InferInput("image", [1, len(content)], "UINT8")
            picture.set_data_from_numpy(np.frombuffer(content, np.uint8)[None])
            output = grpc.InferRequestedOutput("pixel_values")
            output.set_shared_memory("pixels_out", image.nbytes)
            triton.infer("pixels_fused", [picture], outputs=[output])
            triton.unregister_system_shared_memory("pixels_out")
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.uint8, image.shape), image)
    finally:
        shm.destroy_shared_memory_region(region)


def test_a_kind_that_answers_something_else_is_refused() -> None:
    fields = WITHOUT_NETWORK | {"postprocess": {"kind": "classification"}}
    with pytest.raises(BadPipeline, match="network none answers pixels; it takes postprocess raw, got classification"):
        Pipeline.from_fields(Path("pixels.yaml"), {"name": "pixels"} | fields)
