"""Arrays of every type through a Python model, exact, with the NumPy that is installed: 1 or 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from shared_server import Served, SharedServer

ARRAYS: dict[str, Any] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 200, 255], np.uint8),
    "INT16": np.array([-(2**15), -3, 2**15 - 1], np.int16),
    "INT64": np.array([-(2**63), 0, 2**63 - 1]),
    "FP16": np.array([-0.5, 3.25, 65504], np.float16),
    "FP32": np.array([-0.1, np.pi, 3e38], np.float32),
    "FP64": np.array([-0.1, np.pi, 1e308]),
    "BYTES": np.array([b"", b"\x00\xff", "Größe".encode()], np.object_),
}
MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.reversed(one) for one in request.inputs()]) for request in requests]

    def reversed(self, tensor):
        return pb_utils.Tensor(f"{tensor.name()}_reversed", tensor.as_numpy()[::-1].copy())
"""


def write_reversing(folder: Path) -> None:
    (folder / "reversing" / "1").mkdir(parents=True)
    (folder / "reversing" / "1" / "model.py").write_text(MODEL)
    types = {name: f"TYPE_{'STRING' if name == 'BYTES' else name}" for name in ARRAYS}
    inputs = [f'{{ name: "{name}" data_type: {kind} dims: [ -1 ] }}' for name, kind in types.items()]
    outputs = [one.replace('" data', '_reversed" data') for one in inputs]
    config = f'backend: "python"\ninput [ {", ".join(inputs)} ]\noutput [ {", ".join(outputs)} ]\n'
    (folder / "reversing" / "config.pbtxt").write_text(config)


pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(Served("reversing", write_reversing))]


def test_arrays_of_every_type_are_read_and_written_exactly(server: SharedServer) -> None:
    inputs = [tritonclient.http.InferInput(name, array.shape, name) for name, array in ARRAYS.items()]
    for tensor, array in zip(inputs, ARRAYS.values(), strict=True):
        tensor.set_data_from_numpy(array)
    with tritonclient.http.InferenceServerClient(server.http_address) as client:
        result = client.infer("reversing", inputs)
    for name, array in ARRAYS.items():
        found = result.as_numpy(f"{name}_reversed")
        assert (found.dtype, found.tolist()) == (array.dtype, array[::-1].tolist()), name
