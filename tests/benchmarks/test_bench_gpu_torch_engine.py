"""PyTorch in the place of an engine computes what ONNX Runtime computes."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_network import fused
from host_gpu import HostDevice, view

from benchmarks.gpu.torch_engine import TorchEngine
from onestream.serving.engine import OnnxRuntimeEngine


@pytest.mark.usefixtures("repository")
def test_its_results_are_those_of_onnx_runtime() -> None:
    device = HostDevice()
    engine = TorchEngine(fused(), device, max_batch_size=4, on="cpu")
    session = engine.open(device.stream())
    expected = OnnxRuntimeEngine(fused(), threads=1)
    random = np.random.default_rng(3)
    for batch in (1, 3, 4):
        pixels = random.integers(0, 256, (batch, 224, 224, 3)).astype(np.uint8)
        view(session.input)[:batch] = pixels
        session.enqueue(batch)
        for name, value in expected.run(pixels).items():
            seen = view(session.outputs[name])[:batch]
            if name == "class_ids":
                np.testing.assert_array_equal(seen, value)
            else:
                # The order of float32 sums.
                np.testing.assert_allclose(seen, value, atol=1e-4)
    with pytest.raises(ValueError, match="batch of 5"):
        session.enqueue(5)
