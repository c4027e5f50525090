"""Pipelines that users bring, and what the server does when files do not belong together, on a real Triton."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from clip_files import write_video
from image_files import encode
from networks import ending_in, mean_color
from PIL import Image
from shared_server import Served, SharedServer
from tritonclient import grpc
from windows import WINDOWS

from onestream.client import Client, ModelNotFound
from onestream.preprocess import Definition, compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

OPERATIONS: list[dict[str, object]] = [
    {"op": "decode"},
    {"op": "letterbox", "size": [48, 64], "value": 114},
    {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]
ONE_PROCESS = {"cpu_instances": 1}
"""Of each model: starting them is what takes the time of these tests."""


def write_own(
    folder: Path,
    name: str,
    *,
    network: onnx.ModelProto | None = None,
    **fields: Any,
) -> Path:
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
    "scores",
    network=ending_in("Softmax", shape=(1, 3, 48, 64)),
    postprocess={"kind": "classification", "top_k": 7},
)
pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(MIXING, SCORES, WINDOWS),
]


def test_own_networks_are_served_in_both_forms_and_agree_with_the_reference(
    server: SharedServer, photos: dict[str, bytes]
) -> None:
    definition = Definition.model_validate({"operations": OPERATIONS})
    (sample,) = compile(definition, backend="reference").run([photos["cat"]])
    weights = np.random.default_rng(7).normal(size=(3, 7)).astype(np.float32)
    assert isinstance(sample, np.ndarray)
    expected = sample.mean(axis=(1, 2)) @ weights
    with Client(server.grpc_url, timeout_s=60) as client:
        answers = [client.infer(form, photos["cat"]) for form in ("scores", "scores_fused")]
        top = client.classify(photos["cat"], pipeline="scores").top
    for name, value in answers[0].items():
        np.testing.assert_array_equal(answers[1][name], value)
    logits = np.log(answers[0]["scores"][0])[np.argsort(answers[0]["class_ids"][0])]
    # Sums of float32 over all pixels, in another order.
    np.testing.assert_allclose(logits - logits.mean(), expected - expected.mean(), atol=1e-3)
    assert (top.class_id, top.label) == (int(np.argmax(expected)), str(np.argmax(expected)))


def test_a_pipeline_without_streams_is_told_by_what_its_file_lacks(server: SharedServer, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=2)
    with Client(server.grpc_url) as client:
        with pytest.raises(ModelNotFound, match=r"Add the line `video: {}` .*load scores`$"):
            list(client.stream(clip, pipeline="scores"))
        with pytest.raises(ModelNotFound, match="unless 'scores' is meant"):
            list(client.stream(clip, pipeline="scores_fused"))


def test_a_network_that_mixes_its_batch_is_never_given_one(
    server: SharedServer, tmp_path: Path, photos: dict[str, bytes]
) -> None:
    """It gives 0 for an image alone, and anything else for one of several."""
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=30)
    with Client(server.grpc_url, timeout_s=60) as client:
        for form in ("mixing", "mixing_fused"):
            with ThreadPoolExecutor(8) as callers:
                for outputs in callers.map(partial(client.infer, form), [*photos.values()] * 4):
                    assert not outputs["scores_out"].any()
        with client.stream(clip, pipeline="mixing") as results:
            assert [result.tensors["scores_out"].any() for result in results] == [False] * 30
        for model in ("mixing_preprocess", "mixing_model", "mixing_postprocess", "mixing_fused"):
            statistics = client.statistics(model)
            assert statistics.execution_count == statistics.inference_count > 0


def test_scores_of_a_network_are_served_as_they_are(server: SharedServer, photos: dict[str, bytes]) -> None:
    given = grpc.InferInput("image", [1, len(photos["cat"])], "UINT8")
    given.set_data_from_numpy(np.frombuffer(photos["cat"], np.uint8)[None])
    with grpc.InferenceServerClient(server.grpc_address) as triton:
        pixels = triton.infer("scores_preprocess", [given]).as_numpy("pixels")
    engine = OnnxRuntimeEngine(server.repository / "scores_fused" / "1" / "model.onnx", threads=1)
    scores = np.sort(engine.run({"pixels": pixels})["scores_out"][0])[::-1]
    assert scores.sum() == pytest.approx(1)
    with Client(server.grpc_url, timeout_s=60) as client:
        for form in ("scores", "scores_fused"):
            np.testing.assert_array_equal(client.infer(form, photos["cat"])["scores"][0], scores)


def test_pictures_keep_sizes_of_their_own_where_the_network_s_sides_are_free(server: SharedServer) -> None:
    random = np.random.default_rng(0)
    sizes = [(20, 80), (80, 20), (50, 50), (33, 71), (300, 200), (64, 64)] * 4
    pictures = [encode(Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)), "PNG") for size in sizes]
    definition = Pipeline.from_file(server.pipeline_file("windows")).preprocess
    compiled = compile(definition.pixels(), backend="dali")
    engine = OnnxRuntimeEngine(server.repository / "windows_fused" / "1" / "model.onnx", threads=1)
    alone = [next(iter(engine.run({"pixels": pixels[None]}).values())) for pixels in compiled.run(pictures)]
    with Client(server.grpc_url, timeout_s=60) as client, ThreadPoolExecutor(8) as pool:
        for form in ("windows", "windows_fused"):
            together = list(pool.map(partial(client.infer, form), pictures))
            for one, other in zip(together, alone, strict=True):
                (scores,) = one.values()
                np.testing.assert_array_equal(scores, other)
