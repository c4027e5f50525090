"""The matte of still images on a real Triton."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from onestream.client import Client, UnexpectedResponse
from onestream.postprocess.matte.composer import alpha
from onestream.postprocess.options import Matte
from onestream.preprocess import compile
from onestream.serving.building.build import build
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PIPELINE_FILE = ROOT / "pipelines" / "matte.yaml"


def test_both_forms_give_the_matte_and_agree_with_the_reference(tmp_path: Path, photos: dict[str, bytes]) -> None:
    # One process of each model: starting them is what takes the time of this test.
    fields = yaml.safe_load(PIPELINE_FILE.read_text())
    (tmp_path / "matte.yaml").write_text(
        yaml.safe_dump(fields | {"serving": {"max_batch_size": 4, "cpu_instances": 1}})
    )
    repository = tmp_path / "repository"
    build(tmp_path / "matte.yaml", folder=repository)
    pipeline = Pipeline.from_file(PIPELINE_FILE)
    assert isinstance(pipeline.postprocess, Matte)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photos["astronaut"]])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(repository / "matte_fused" / "1" / "model.onnx", threads=1)
    expected = alpha(engine.run(pixels[None])["person"], softness=pipeline.postprocess.softness)[0]
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server, Client(server.grpc_url) as client:
        mattes = {form: client.infer(form, photos["astronaut"])["matte"] for form in ("matte", "matte_fused")}
        temple = client.infer("matte", photos["temple"])["matte"][0]
        with pytest.raises(UnexpectedResponse, match=r"'matte' answered .*for any kind use predict"):
            client.classify(photos["astronaut"], pipeline="matte")
    assert mattes["matte"].shape == (1, 256, 256)
    assert mattes["matte"].dtype == np.uint8
    np.testing.assert_array_equal(mattes["matte"], mattes["matte_fused"])
    matte = mattes["matte"][0]
    # DALI is within one level of the reference; where the network is undecided, that may turn its mind.
    assert (np.abs(matte.astype(int) - expected) <= 8).mean() > 0.99
    assert matte[60, 110] > 240, "her face"
    assert matte[100, 20] < 15, "the flag"
    # Nobody is in it.
    assert temple.mean() < 25
