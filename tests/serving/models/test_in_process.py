"""The fused form without Triton: the answers of a real server, bit by bit, and what it refuses to load.

On a GPU of host memory its answers are those of Triton's model.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cascades
import detectors
import numpy as np
import pytest
import yaml
from builds import build
from PIL import Image
from windows import WINDOWS

from onestream.client import Client, kinds
from onestream.postprocess.network import NetworkOutput
from onestream.preprocess import StampMismatch
from onestream.serving.building.pipeline_repository import plan
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.errors import BadPipeline, NetworkFailed
from onestream.serving.models.in_process import InProcess
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
PHOTOS = [path.read_bytes() for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))]


ON_GPU = {"gpu": {"engine": "onnxruntime", "max_batch_size": 4, "batches_in_flight": 2}}
STAGES = 2


@pytest.mark.needs_triton
def test_its_answers_are_those_of_the_server(server: Server, repository: Path) -> None:
    model = InProcess(repository / "classify_fused")
    outcomes = model(PHOTOS)
    with Client(server.grpc_address) as client:
        for photo, outcome in zip(PHOTOS, outcomes, strict=True):
            here = kinds.read(model.kind, model.name, outcome, "", 0.0)
            there = client.classify(photo, pipeline="classify_fused")
            assert here.labels == there.labels  # type: ignore[union-attr]


def test_a_request_crosses_few_files(repository: Path) -> None:
    model = InProcess(repository / "classify_fused")
    crossed: set[str] = set()
    model(PHOTOS[:1])
    sys.setprofile(lambda frame, _event, _value: crossed.add(frame.f_globals.get("__name__", "")))
    try:
        model(PHOTOS[:1])
    finally:
        sys.setprofile(None)
    ours = sorted(name for name in crossed if name.startswith("onestream."))
    assert 10 < len(ours) <= 15, ours


def test_a_bad_picture_leaves_its_batch_as_it_is(repository: Path) -> None:
    model = InProcess(repository / "classify_fused")
    alone = [model([photo])[0] for photo in PHOTOS[:2]]
    first, bad, empty, second = model([PHOTOS[0], PHOTOS[1][:2000], b"text", PHOTOS[1]])
    assert bad.code == "corrupt"
    assert empty.code == "unsupported_format"
    for one, other in zip(alone, (first, second), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_network_that_fails_for_one_picture_fails_for_that_alone(repository: Path) -> None:
    seen, doomed = list[int](), set[int]()

    class Failing(OnnxRuntimeEngine):
        def run(self, inputs: Any) -> dict[str, Any]:
            seen.append(int(inputs["pixels"].sum()))
            if seen[-1] in doomed:
                raise RuntimeError("no")
            return super().run(inputs)

    model = InProcess(repository / "classify_fused", engine=Failing)
    seen.clear()
    model(PHOTOS[:3])
    doomed.add(seen[1])
    assert [type(outcome) for outcome in model(PHOTOS[:3])] == [dict, NetworkFailed, dict]


def test_a_folder_without_a_built_model_is_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match="expected the folder of a fused model"):
        InProcess(tmp_path / "nothing")
    with pytest.raises(BadPipeline, match=r"config\.pbtxt: .*; expected the folder of a fused model"):
        InProcess(tmp_path, device="gpu")
    folder = Path(shutil.copytree(repository / "classify_fused", tmp_path / "classify_fused"))
    definition = folder / "definition.json"
    kept = definition.read_text()
    definition.write_text(kept.replace("256", "255"))
    with pytest.raises(StampMismatch, match="first difference"):
        InProcess(folder)
    definition.write_text(kept)
    (folder / "1" / "model.onnx").unlink()
    with pytest.raises(BadPipeline, match=r"classify_fused holds no model\.onnx; build it with onestream build"):
        InProcess(folder)


# ---------------------------------------------------------------- on a GPU


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    """A classifier, a detector and a cascade, each the folder of its fused model."""
    folder = tmp_path_factory.mktemp("forms")
    finder = detectors.pipeline("finder", score_threshold=0.5) | {"serving": ON_GPU}
    (folder / "finder.yaml").write_text(yaml.safe_dump(finder))
    detectors.level_detector(folder / "finder.onnx")
    build(folder / "finder.yaml", folder=folder / "models", onnx_file=folder / "finder.onnx")
    networks = cascades.write_things(folder, serving=ON_GPU)
    build(folder / "things.yaml", folder=folder / "models", onnx_files=networks)
    return {
        "classify": repository / "classify_fused",
        "finder": folder / "models" / "finder_fused",
        "things": folder / "models" / "things_fused",
    }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, grids of bright cells in noise, a black picture, and two files that are refused."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, photo in enumerate(sorted((ROOT / "examples" / "photos").glob("*.jpg"))[:3]):
        (folder / f"{number}-photo.jpg").write_bytes(photo.read_bytes())
    chosen = np.random.default_rng(5)
    for number in range(4):
        cells = chosen.integers(0, 100, (detectors.CELLS, detectors.CELLS, 3)).astype(np.uint8)
        cells[chosen.random(cells.shape[:2]) < 0.3, 0] = 250
        Image.fromarray(cells.repeat(16, 0).repeat(16, 1)).save(folder / f"{number}-cells.png")
    Image.new("RGB", (64, 48)).save(folder / "0-nothing.png")
    (folder / "1-cut.jpg").write_bytes((folder / "1-photo.jpg").read_bytes()[:2000])
    (folder / "2-text.jpg").write_bytes(b"no picture")
    return folder


@pytest.mark.slow
def test_it_is_what_triton_s_model_does(models: dict[str, Path], pictures: Path) -> None:
    command = [sys.executable, Path(__file__).with_name("gpu_forms.py"), pictures, *models.values()]
    # NumPy's BLAS spins where several threads call it on few cores.
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    reports: list[dict[str, Any]] = [json.loads(line) for line in run.stdout.splitlines()]
    for name, seen, waits in zip(models, reports, (1, 1, STAGES), strict=True):
        assert seen["different"] == [], name
        # Each picture was asked for alone and in a batch; eight are answered.
        assert (seen["answers"], seen["refused"]) == (2 * 8, 2 * 2), name
        usual, least, refused = seen["parameters"]
        assert (usual > 1, least, refused[:20]) == (True, 1, "bad parameter 'any':"), name
        assert seen["gpus"] == [0, 0]
        assert max(seen["waits"]) == waits, f"the pictures did not go through the GPU together: {name}"
        assert seen["own"] == ["HostGpuError"] * 2
        assert seen["lost"].startswith(f"GpuFailed: the GPU of {platform.node()} failed: HostGpuError: ")


def test_a_model_that_runs_on_cpus_alone_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    build(tmp_path / "things.yaml", folder=folder, onnx_files=cascades.write_things(tmp_path, **cascades.SHARED))
    with pytest.raises(BadPipeline, match=r"things_fused is built for CPUs alone: .*serving\.gpu\.engine: onnxruntime"):
        InProcess(folder / "things_fused", device="gpu")
    WINDOWS.write(tmp_path)
    planned = plan(Pipeline.from_file(tmp_path / "windows.yaml"), [NetworkOutput("y", "float32", (3,))], labels=None)
    (folder / "windows_fused").mkdir()
    config = planned.files(source="windows.yaml")["windows_fused/config.pbtxt"]
    (folder / "windows_fused" / "config.pbtxt").write_bytes(config)
    with pytest.raises(BadPipeline, match="windows_fused is built for CPUs alone: its network's pixels have a size of"):
        InProcess(folder / "windows_fused", device="gpu")
