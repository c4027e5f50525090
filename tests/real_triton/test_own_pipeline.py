"""Pipelines that users bring, and what the server does when files do not belong together, on a real Triton."""

from __future__ import annotations

import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from clip_files import write_video
from networks import ending_in, mean_color
from PIL import Image

from onestream.client import Client
from onestream.preprocess import Definition, compile
from onestream.serving.building.build import build
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.server.errors import ModelLoadFailed
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

OPERATIONS: list[dict[str, object]] = [
    {"op": "decode"},
    {"op": "letterbox", "size": [48, 64], "value": 114},
    {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
]


ONE_PROCESS = {"cpu_instances": 1}
"""Of each model: starting them is what takes the time of these tests."""


def build_own(folder: Path, name: str, *, network: onnx.ModelProto | None = None, **fields: object) -> Path:
    """Build a pipeline over a small network, one with a fixed batch unless it is given; returns the repository."""
    onnx_file, pipeline_file = folder / f"{name}.onnx", folder / f"{name}.yaml"
    onnx_file.write_bytes((network or mean_color((1, 3, 48, 64))).SerializeToString())
    pipeline_file.write_text(
        yaml.safe_dump({"preprocess": {"operations": OPERATIONS}, "serving": ONE_PROCESS, **fields})
    )
    build(pipeline_file, folder=folder / "repository", onnx_file=onnx_file)
    return folder / "repository"


def test_own_networks_are_served_in_both_forms_and_agree_with_the_reference(
    tmp_path: Path, photos: dict[str, bytes]
) -> None:
    build_own(tmp_path, "labelled", postprocess={"kind": "classification", "top_k": 2, "activation": "none"})
    repository = build_own(tmp_path, "raw", postprocess={"kind": "raw"})
    definition = Definition.model_validate({"operations": OPERATIONS})
    (sample,) = compile(definition, backend="reference").run([photos["cat"]])
    weights = np.random.default_rng(7).normal(size=(3, 7)).astype(np.float32)
    assert isinstance(sample, np.ndarray)
    expected = sample.mean(axis=(1, 2)) @ weights
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server,
        Client(server.grpc_url) as client,
    ):
        assert len(server.models) == 10
        for form in ("raw", "raw_fused"):
            scores = client.infer(form, photos["cat"])["scores_out"]
            # DALI is within one level of the reference, a level is 4/255 here, and the mean is over all pixels.
            np.testing.assert_allclose(scores[0], expected, atol=0.05)
        raw = client.infer("raw", photos["cat"])["scores_out"]
        np.testing.assert_array_equal(raw, client.infer("raw_fused", photos["cat"])["scores_out"])
        for form in ("labelled", "labelled_fused"):
            result = client.classify(photos["cat"], pipeline=form)
            assert [label.class_id for label in result.labels] == list(np.argsort(-raw[0])[:2])
            assert result.top.label == str(result.top.class_id)
            assert result.top.score == pytest.approx(float(raw.max()))


def test_files_of_different_builds_are_refused_at_load(tmp_path: Path) -> None:
    """A network built with another definition, dropped into a repository, must not answer."""
    repository = build_own(tmp_path, "mine", postprocess={"kind": "raw"})
    before = json.loads((repository / "mine" / "definition.json").read_text())
    kept = tmp_path / "kept.onnx"
    shutil.copy(repository / "mine_model" / "1" / "model.onnx", kept)
    changed = [*OPERATIONS[:2], {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}]
    own = tmp_path / "mine.yaml"
    own.write_text(
        yaml.safe_dump({"preprocess": {"operations": changed}, "postprocess": {"kind": "raw"}, "serving": ONE_PROCESS})
    )
    build(own, folder=repository, onnx_file=tmp_path / "mine.onnx")
    for model in ("mine_model", "mine_fused"):
        network = repository / model / "1" / "model.onnx"
        network.unlink()
        shutil.copy(kept, network)

    old, new = (
        Definition.model_validate(before).digest[:12],
        Definition.from_json((repository / "mine" / "definition.json").read_text()).digest[:12],
    )
    with pytest.raises(ModelLoadFailed) as caught, Server(repository, http_port=0, grpc_port=0, metrics_port=0):
        pass
    message = str(caught.value)
    assert old in message
    assert new in message
    assert "operations[2].std[0]: 0.25 != 0.5" in message
    assert "mine_model" in message
    assert "/" not in message.replace("http://", ""), "a server path in the reason"


def test_an_edited_definition_is_refused_at_load(tmp_path: Path) -> None:
    repository = build_own(tmp_path, "mine", postprocess={"kind": "raw"})
    file = repository / "mine_preprocess" / "definition.json"
    file.write_text(file.read_text().replace('"value": 114', '"value": 0'))
    with (
        pytest.raises(ModelLoadFailed, match=r"operations\[1\].value: 114 != 0"),
        Server(repository, http_port=0, grpc_port=0, metrics_port=0),
    ):
        pass


def test_a_network_that_mixes_its_batch_is_never_given_one(tmp_path: Path, photos: dict[str, bytes]) -> None:
    """It gives 0 for an image alone, and anything else for one of several."""
    mixing = mean_color(("n", 3, 48, 64), mix_batch=True)
    options = {"max_batch_size": 1, "cpu_instances": 1}
    repository = build_own(tmp_path, "mixing", network=mixing, postprocess={"kind": "raw"}, serving=options, video={})
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=30)
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        for form in ("mixing", "mixing_fused"):
            with ThreadPoolExecutor(8) as callers:
                for outputs in callers.map(partial(client.infer, form), [*photos.values()] * 4):
                    assert not outputs["scores_out"].any()
        with client.stream(clip, pipeline="mixing") as results:
            assert [result.tensors["scores_out"].any() for result in results] == [False] * 30
        for model in ("mixing_preprocess", "mixing_model", "mixing_postprocess", "mixing_fused"):
            statistics = client.statistics(model)
            assert statistics.execution_count == statistics.inference_count > 0


def test_scores_of_a_network_are_served_as_they_are(tmp_path: Path, photos: dict[str, bytes]) -> None:
    network = ending_in("Softmax", shape=(1, 3, 48, 64))
    build_own(tmp_path, "scores", network=network, postprocess={"kind": "classification", "top_k": 7})
    repository = build_own(tmp_path, "raw", network=network, postprocess={"kind": "raw"})
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        own = np.sort(client.infer("raw", photos["cat"])["scores_out"][0])[::-1]
        assert own.sum() == pytest.approx(1)
        for form in ("scores", "scores_fused"):
            np.testing.assert_array_equal(client.infer(form, photos["cat"])["scores"][0], own)


def test_pictures_keep_sizes_of_their_own_where_the_network_s_sides_are_free(tmp_path: Path) -> None:
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "longer", "size": 64, "multiple_of": 16},
        {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
    ]
    repository = build_own(
        tmp_path,
        "free",
        network=mean_color(("batch", 3, "height", "width")),
        preprocess={"operations": operations},
        postprocess={"kind": "raw"},
        serving={"max_batch_size": 8, **ONE_PROCESS},
    )
    random = np.random.default_rng(0)
    sizes = [(20, 80), (80, 20), (50, 50), (33, 71), (300, 200), (64, 64)] * 4
    pictures = [png(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]
    compiled = compile(Definition.model_validate({"operations": operations}).pixels(), backend="dali")
    engine = OnnxRuntimeEngine(repository / "free_fused" / "1" / "model.onnx", threads=1)
    alone = [next(iter(engine.run(pixels[None]).values())) for pixels in compiled.run(pictures)]
    with (
        Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server,
        Client(server.grpc_url, timeout_s=60) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        for form in ("free", "free_fused"):
            together = list(pool.map(partial(client.infer, form), pictures))
            for one, other in zip(together, alone, strict=True):
                (scores,) = one.values()
                np.testing.assert_array_equal(scores, other)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
