"""The matte of still images on a real Triton."""

from __future__ import annotations

import numpy as np
import pytest
from shared_server import SharedServer, built_in

from onestream.client import Client, UnexpectedResponse
from onestream.postprocess.matte.composer import alpha
from onestream.postprocess.options import Matte
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(built_in("matte"))]


def test_both_forms_give_the_matte_and_agree_with_the_reference(server: SharedServer, photos: dict[str, bytes]) -> None:
    pipeline = Pipeline.from_file(server.pipeline_file("matte"))
    assert isinstance(pipeline.postprocess, Matte)
    (pixels,) = compile(pipeline.preprocess.pixels(), backend="reference").run([photos["astronaut"]])
    assert isinstance(pixels, np.ndarray)
    engine = OnnxRuntimeEngine(server.repository / "matte_fused" / "1" / "model.onnx", threads=1)
    expected = alpha(engine.run(pixels[None])["person"], softness=pipeline.postprocess.softness)[0]
    with Client(server.grpc_url, timeout_s=60) as client:
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
