"""Prepares an ONNX file in a process of its own (``python -m`` this module): a request in, a network out.

A file from elsewhere may make ONNX or ONNX Runtime crash, take all memory or run for ever: a loop of 2**63 rounds is a
valid network. The request is one JSON object on standard input; the answer is one on standard output, ``{}`` where the
network was written to the file that the request names, or ``{"error": CLASS, "reason": TEXT}``.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onestream.postprocess.kinds import AnyPostprocess, read_postprocess
from onestream.postprocess.kinds.raw import Raw
from onestream.preprocess import Definition, StampMismatch
from onestream.serving.child_process import describe_exit, tied
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph import onnx_graph
from onestream.serving.pipeline import NetworkInput

PREPARE_S = 300.0
"""EfficientNet-Lite0 takes 3 s, nearly all of it to import; one run of 4 images is what a large network takes."""
_LEAST_MEMORY, _MEMORY_A_BYTE = 8 << 30, 16
"""What the process may take: so much, and so often the file's size, of which about 6 copies are made."""
_LONGEST_REASON = 500
_ERRORS = {error.__name__: error for error in (BadNetwork, BadPipeline, StampMismatch)}


def prepare_file(
    path: Path,
    definition: Definition,
    postprocess: AnyPostprocess | None = None,
    *,
    inputs: Mapping[str, NetworkInput] = MappingProxyType({}),
    outputs: Sequence[str] | None = None,
    anchors: npt.NDArray[Any] | None = None,
    timeout_s: float = PREPARE_S,
) -> onnx.ModelProto:
    """``onnx_graph.load`` and ``onnx_graph.prepare`` of a file that nobody vouches for.

    Raises as they do; also ``BadNetwork`` where they crash, take too much memory or more than ``timeout_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="onestream-network-") as folder:
        prepared = Path(folder) / "prepared.onnx"
        request = {
            "network": str(path),
            "definition": definition.canonical_json(),
            "postprocess": (postprocess or Raw()).model_dump_json(),
            "inputs": dict(inputs),
            "outputs": outputs,
            "anchors": None if anchors is None else str(Path(folder) / "anchors.npy"),
            "prepared": str(prepared),
        }
        if anchors is not None:
            np.save(Path(folder) / "anchors.npy", anchors, allow_pickle=False)
        answered = in_own_process(request, timeout_s)
        if "error" in answered:
            raise _ERRORS[answered["error"]](answered["reason"])
        return onnx_graph.load(prepared)


def in_own_process(request: dict[str, Any], timeout_s: float) -> dict[str, str]:
    """The answer to a request from a new process. Raises ``BadNetwork`` where the process gives none in time."""
    path = request["network"]
    try:
        done = subprocess.run(
            tied(sys.executable, "-m", "onestream.serving.building.onnx_process"),
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadNetwork(f"{path}: it did not run 4 images within {timeout_s:g} s") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise BadNetwork(
            f"{path}: the process that checks it {describe_exit(done.returncode)}: malformed, or too large"
        )
    answer: dict[str, str] = json.loads(lines[-1])
    return answer


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Prepare the network of a request in this process; returns ``{}`` or an error, as the module describes."""
    try:
        _prepare(request)
    except Exception as error:  # whatever a malformed file makes a library raise, it is refused
        kind = type(error).__name__
        text = str(error) if kind in _ERRORS else f"{request['network']} cannot be served: {kind}: {error}"
        line = text.strip().splitlines()[0] if text.strip() else kind
        return {"error": kind if kind in _ERRORS else BadNetwork.__name__, "reason": line[:_LONGEST_REASON]}
    return {}


def main() -> None:
    """Answer the request on standard input, with bounded memory."""
    request = json.loads(sys.stdin.read())
    with contextlib.suppress(OSError):  # a file that cannot be read is refused by the answer
        # Not the address space: threads reserve much of that and never touch it.
        limit = _LEAST_MEMORY + _MEMORY_A_BYTE * Path(request["network"]).stat().st_size
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(json.dumps(answer(request)), flush=True)


def _prepare(request: dict[str, Any]) -> None:
    path, anchors = Path(request["network"]), request["anchors"]
    served = onnx_graph.prepare(
        onnx_graph.load(path),
        Definition.from_json(request["definition"]),
        read_postprocess(request["postprocess"]),
        inputs=request["inputs"],
        outputs=request["outputs"],
        anchors=None if anchors is None else np.load(anchors, allow_pickle=False),
    )
    Path(request["prepared"]).write_bytes(served.SerializeToString())


if __name__ == "__main__":
    main()
