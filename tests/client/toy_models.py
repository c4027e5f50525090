"""Toy models for a real Triton that follow the wire contract and obey the bytes they get in place of an image.

``toy`` and ``toy_step``; ``toy_narrow`` with a queue of two; ``toy_shown``, whose requests nobody counts;
``toy_mortal``, to be killed; ``toy_pipeline``, an ensemble around ``toy_step``. The commands are ``sleep SECONDS``,
``hold FILE``, ``refuse CODE``, ``fail`` and ``die``;
for all other bytes the class ids are their number and half their CRC-32.
"""

from __future__ import annotations

import os
import re
import textwrap
import urllib.request
from pathlib import Path

from patience import wait_until
from shared_server import SharedServer

TOY_LIMIT = 6_000_000


class Hold:
    """An image that keeps its toy model busy until it is released. A context manager, which releases it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hold"
        self._file.touch()
        self.image = b"hold %s" % bytes(self._file)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait_until_begun(self) -> None:
        """Wait until the model has it."""
        wait_until(Path(f"{self._file}.begun").exists, "the model has the request")

    def release(self) -> None:
        """Let the model answer."""
        self._file.unlink(missing_ok=True)


_MODEL = '''
    import os
    import time
    import zlib

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        """Obeys the bytes that it gets in place of an image."""

        def execute(self, requests):
            return [self._answer(request) for request in requests]

        def _answer(self, request):
            data = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().tobytes()
            command, _, argument = data[:400].partition(b" ")
            if command == b"sleep":
                time.sleep(float(argument))
            if command == b"hold":
                open(argument + b".begun", "w").close()
                while os.path.exists(argument):
                    time.sleep(0.005)
            if command == b"die":
                os._exit(1)
            if command == b"fail":
                raise ValueError("as ordered in /srv/models/secret/1/model.py")
            if command == b"refuse" or not data:
                code = argument.decode() or "empty"
                error = f"bad image ({code}): {len(data)} bytes seen"
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(error, pb_utils.TritonError.INVALID_ARG))
            labels = np.array([["espresso", "caf\\u00e9", "cup"]], dtype=object)
            return pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor("scores", np.array([[0.7, 0.2, 0.1]], np.float32)),
                    pb_utils.Tensor("class_ids", np.array([[len(data), zlib.crc32(data) >> 1, 7]], np.int32)),
                    pb_utils.Tensor("labels", labels),
                ]
            )
'''

_TENSORS = """
    parameters [ { key: "kind" value: { string_value: "classification" } } ]
    input [ { name: "image" data_type: TYPE_UINT8 dims: [ -1 ] %s } ]
    output [
      { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] },
      { name: "class_ids" data_type: TYPE_INT32 dims: [ 3 ] },
      { name: "labels" data_type: TYPE_STRING dims: [ 3 ] }
    ]
"""

_STEP = (
    """
    backend: "python"
    max_batch_size: 4
    instance_group [ { kind: KIND_CPU count: 1 } ]
    dynamic_batching { %s }
    parameters [ { key: "max_body_bytes" value: { string_value: "%d" } } ]
"""
    + _TENSORS % "allow_ragged_batch: true"
)

_ENSEMBLE = (
    """
    platform: "ensemble"
    max_batch_size: 4
    ensemble_scheduling { step [ {
      model_name: "toy_step"
      model_version: -1
      input_map { key: "image" value: "image" }
      output_map { key: "scores" value: "scores" }
      output_map { key: "class_ids" value: "class_ids" }
      output_map { key: "labels" value: "labels" }
    } ] }
"""
    + _TENSORS % ""
)


def _write(folder: Path, config: str, *, is_python: bool = True) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'name: "{folder.name}"\n{textwrap.dedent(config)}')
    if is_python:
        (version / "model.py").write_text(textwrap.dedent(_MODEL))


def write_toys(repository: Path) -> None:
    """Write all toy models into the repository."""
    narrow = "default_queue_policy { max_queue_size: 2 }"
    for name, queue in (("toy", ""), ("toy_step", ""), ("toy_shown", ""), ("toy_mortal", ""), ("toy_narrow", narrow)):
        _write(repository / name, _STEP % (queue, TOY_LIMIT))
    _write(repository / "toy_pipeline", _ENSEMBLE, is_python=False)


def url_of(server: SharedServer, protocol: str) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def memory_call(server: SharedServer, action: str, data: bytes | None = None) -> urllib.request.Request:
    """A question about shared memory to the server, or with ``data`` an order."""
    url = f"{server.http_url}/v2/systemsharedmemory/{action}"
    return urllib.request.Request(url, data)


def regions_left(server: SharedServer, pid: int | None = None) -> list[str]:
    """Regions of this process, or of another, that are left on either side."""
    start = f"onestream_{pid or os.getpid()}_"
    with urllib.request.urlopen(memory_call(server, "status"), timeout=10) as answer:
        known = re.findall(rf"{start}\w+", answer.read().decode())
    return [*known, *(path.name for path in Path("/dev/shm").glob(f"{start}*"))]
