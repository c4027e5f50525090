"""Run as a process: a model's GPU form by Triton's adapter and by ``InProcess``, with host memory in the GPU's place.

``python gpu_forms.py PICTURES MODEL...`` gives both every picture of a folder, one after the other and then in batches,
and breaks the GPU at last, which the next model gets anew. It prints what it saw of each model as a line of JSON.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import host_gpu
import numpy as np
from triton_stand_in import TRITON, Request, Response, triton

from onestream.preprocess import BadImage
from onestream.preprocess.cuda import device as gpus
from onestream.serving.built.triton_config import from_text

OPENED: list[Any] = []


def by_triton(folder: Path, *, gpu: int = 0, **options: Any) -> Any:
    """The model that Triton makes of a folder on a machine with a GPU, with these options of the GPU changed."""
    config = from_text((folder / "config.pbtxt").read_text())
    model = runpy.run_path(str(folder / "1" / "model.py"))["TritonPythonModel"]()
    parameters = {key: {"string_value": one.string_value} for key, one in config.parameters.items()}
    if options:
        given = json.loads(parameters["gpu"]["string_value"])
        parameters["gpu"] = {"string_value": json.dumps(given | options)}
    inputs = [{"name": one.name, "reshape": {"shape": [*one.reshape.shape]}} for one in config.input]
    outputs = [{"name": output.name} for output in config.output]
    described = {"input": inputs, "output": outputs, "parameters": parameters, "max_batch_size": config.max_batch_size}
    model.initialize(
        {
            "model_config": json.dumps(described),
            "model_repository": str(folder),
            "model_version": "1",
            "model_name": config.name,
            "model_instance_name": f"{config.name}_0",
            "model_instance_kind": "GPU",
            "model_instance_device_id": str(gpu),
        }
    )
    return model


def asked(model: Any, pictures: Sequence[bytes], parameters: Sequence[str] = ()) -> list[Response]:
    """The responses to pictures that are asked for at once."""
    requests = [
        Request(given=np.frombuffer(picture, np.uint8)[None, None], parameters=given)
        for picture, given in zip(pictures, parameters or [""] * len(pictures), strict=True)
    ]
    assert model.execute(requests) is None
    return [request.answer() for request in requests]


def is_same(response: Response, outcome: Any) -> bool:
    """Whether both say the same in every bit."""
    if response.error is not None:
        return isinstance(outcome, BadImage) and str(outcome) == response.error
    return (
        isinstance(outcome, dict)
        and set(outcome) == set(response.tensors)
        and all(
            value.dtype == response.tensors[name].dtype and np.array_equal(value, response.tensors[name])
            for name, value in outcome.items()
        )
    )


def with_parameters(model: Any, picture: bytes) -> list[Any]:
    """In one batch: how many scores an answer has, how many where the request asks for one, an unknown parameter."""
    most = next(name for name, one in model.request_parameters.items() if one.is_whole)
    usual, least, refused = asked(model, [picture] * 3, ["{}", json.dumps({most: 1}), '{"any": 1}'])
    return [*(one.tensors["scores"].shape[1] for one in (usual, least)), refused.error]


def broken(gpu: Any, model: Any, picture: bytes) -> tuple[list[str], str]:
    """What becomes of pictures when something raises while the GPU still answers, and when it answers no more."""

    def fail() -> None:
        raise host_gpu.HostGpuError("an error of the driver")

    gpu.check_thread = fail
    own = [type(outcome).__name__ for outcome in model([picture, picture])]
    del gpu.check_thread
    gpu.gpu.queue().put(fail, name="fails for good")
    try:
        model([picture, picture])
    except RuntimeError as error:
        return own, f"{type(error).__name__}: {error}"
    return own, "nothing was raised"


def main(pictures: list[bytes], folders: list[Path]) -> None:
    host_gpu.install()
    sys.modules[TRITON] = triton()
    for folder in folders:
        gpu = host_gpu.Gpu()

        def opened(index: int = 0, gpu: host_gpu.Gpu = gpu) -> Any:
            OPENED.append(host_gpu.HostDevice(index, gpu=gpu))
            return OPENED[-1]

        OPENED.clear()
        gpus.open_device = opened
        for name in [name for name in sys.modules if name.startswith("onestream.serving.models")]:
            # They hold the GPU of the model before.
            del sys.modules[name]
        compare(folder, pictures)


def compare(folder: Path, pictures: list[bytes]) -> None:
    # Not before the GPU was replaced.
    from onestream.serving.models.in_process import InProcess

    theirs, ours = by_triton(folder), InProcess(folder, device="gpu", threads=1)
    gpu = OPENED[-1]
    different, answers, refused, waits = [], 0, 0, []
    # As Ray does, whose workers load a model in one thread and ask it in another.
    elsewhere = ThreadPoolExecutor(1)
    batches = [pictures[start : start + ours.batch] for start in range(0, len(pictures), ours.batch)]
    for batch in [*([picture] for picture in pictures), *batches]:
        before = gpu.syncs
        outcomes = elsewhere.submit(ours, batch).result()
        waits.append(gpu.syncs - before)
        for number, (response, outcome) in enumerate(zip(asked(theirs, batch), outcomes, strict=True)):
            answers += isinstance(outcome, dict)
            refused += isinstance(outcome, BadImage)
            if not is_same(response, outcome):
                different.append(f"{number} of {len(batch)}: {response.error or response.tensors}, here {outcome}")
    parameters = with_parameters(theirs, pictures[0])
    theirs.finalize()
    own, lost = broken(gpu, ours, pictures[0])
    said = {"answers": answers, "refused": refused, "different": different, "waits": waits, "own": own, "lost": lost}
    said["parameters"] = parameters
    print(json.dumps({**said, "gpus": [one.index for one in OPENED], "batches": len(batches)}))


if __name__ == "__main__":
    main([path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir())], [*map(Path, sys.argv[2:])])
