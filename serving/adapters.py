"""What Triton's Python backend runs. Each ``1/model.py`` of a generated repository names one of these classes.

A class loads the stamped definition beside it, refuses to load when the stamps differ, and turns requests into calls.
One request is one image and gets exactly one response.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from postprocess import read_labels, top_k
from preprocess import BadImage, Compiled, Definition, Limits, StampMismatch, compile, first_difference
from serving import certificate
from serving.engine import OnnxRuntimeEngine
from serving.pipeline import Classification
from serving.stamp import check_same
from serving.tensors import CLASS_IDS, IMAGE, LABELS, PIXELS, SCORES

_PARENT_CHECK_S = 1.0

Tensors = dict[str, npt.NDArray[Any]]


class Adapter(ABC):
    """Common to all models: the stamp, and one response per request whatever happens."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called by Triton once per instance. Raises where the model must not be served."""
        end_with_the_server()
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"])
        self.version_folder = folder / args["model_version"]
        self.name = args["model_name"]
        self.output_names = [output["name"] for output in config["output"]]
        self.parameters = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self.max_batch_size = int(config["max_batch_size"])
        self.device = "gpu" if args["model_instance_kind"] == "GPU" else "cpu"
        self.definition = Definition.from_json((folder / "definition.json").read_text())
        self._check_stamp()
        for warning in certificate.check(folder, self.definition, model=self.name):
            # Once for all instances of the model.
            if args["model_instance_name"].endswith("_0"):
                pb_utils.Logger.log_warn(warning)
        self.folder = folder
        self.prepare()

    def _check_stamp(self) -> None:
        digest, stamped = self.parameters["definition_digest"], Definition.from_json(self.parameters["definition"])
        if self.definition.digest != digest:
            raise StampMismatch(
                f"model {self.name}: config.pbtxt was built with definition {digest[:12]}, the definition.json beside "
                f"it is {self.definition.digest[:12]}; first difference: "
                f"{first_difference(stamped, self.definition) or 'the digest itself'}. "
                "Build the pipeline again: onestream build"
            )

    @abstractmethod
    def prepare(self) -> None:
        """Load what the model needs; ``definition``, ``parameters`` and ``folder`` are set."""

    @abstractmethod
    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Called by Triton with the requests of one batch; returns one response for each, in order."""

    def respond(self, tensors: Tensors) -> Any:
        """A response with these tensors, of which each has a leading batch dimension."""
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in tensors.items()])

    def load_engine(self) -> OnnxRuntimeEngine:
        """The network's engine, after its stamp was compared with the definition."""
        engine = OnnxRuntimeEngine(self.version_folder / "model.onnx", threads=int(self.parameters["threads"]))
        stamped = engine.definition
        if stamped is None:
            raise StampMismatch(f"model {self.name}: model.onnx carries no definition; build it with onestream build")
        check_same(stamped, self.definition, one_is="model.onnx", other_is=f"model {self.name}")
        return engine

    def compile_pixels(self) -> Compiled:
        """The definition up to its pixels, compiled for this instance's device."""
        return compile(
            self.definition.pixels(),
            backend="dali",
            device="gpu" if self.device == "gpu" else "cpu",
            limits=Limits.model_validate_json(self.parameters["limits"]),
            max_batch_size=self.max_batch_size,
            threads=int(self.parameters["threads"]),
        )

    def load_postprocess(self) -> Callable[[Tensors], Tensors]:
        """The function from network outputs to the pipeline's outputs, each with a leading batch dimension."""
        return postprocess_of(self.parameters["postprocess"], self.folder)


class Preprocess(Adapter):
    """``image`` to ``pixels``."""

    def prepare(self) -> None:
        """Compile the definition."""
        self._compiled = self.compile_pixels()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Decode a batch; a bad image is an error of its own request only."""
        samples = run_isolated(self._compiled, requests)
        return [
            refuse(sample) if isinstance(sample, BadImage) else self.respond({PIXELS: sample[None]})
            for sample in samples
        ]


class Network(Adapter):
    """``pixels`` to the network's outputs."""

    def prepare(self) -> None:
        """Load the network."""
        self._engine = self.load_engine()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run the network once for the whole batch."""
        pixels = [pb_utils.get_input_tensor_by_name(request, PIXELS).as_numpy() for request in requests]
        outputs = self._engine.run(pixels[0] if len(pixels) == 1 else np.concatenate(pixels))
        return [self.respond(part) for part in split(outputs, [len(part) for part in pixels])]


class Postprocess(Adapter):
    """The network's outputs to the pipeline's."""

    def prepare(self) -> None:
        """Load the labels."""
        self._postprocess = self.load_postprocess()
        self._inputs = self.parameters["network_outputs"].split(",")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Postprocess request by request: it is cheap, and nothing is shared."""
        return [
            self.respond(
                self._postprocess(
                    {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
                )
            )
            for request in requests
        ]


class Fused(Adapter):
    """``image`` to the pipeline's outputs, in one process."""

    def prepare(self) -> None:
        """Compile the definition, load the network and the labels."""
        self._compiled = self.compile_pixels()
        self._engine = self.load_engine()
        self._postprocess = self.load_postprocess()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run the good images as one batch; each bad one gets its own error."""
        samples = run_isolated(self._compiled, requests)
        good = [sample for sample in samples if not isinstance(sample, BadImage)]
        responses = iter(())
        if good:
            outputs = self._postprocess(self._engine.run(np.stack(good)))
            responses = iter([self.respond(part) for part in split(outputs, [1] * len(good))])
        return [refuse(sample) if isinstance(sample, BadImage) else next(responses) for sample in samples]


def postprocess_of(options_json: str, folder: Path) -> Callable[[Tensors], Tensors]:
    """The postprocessing that a pipeline's options ask for; ``folder`` holds its ``labels.txt``."""
    if json.loads(options_json)["kind"] == "raw":
        return lambda outputs: outputs
    options = Classification.model_validate_json(options_json)
    labels_path = folder / "labels.txt"
    names = np.array([label.encode() for label in read_labels(labels_path)], object) if labels_path.exists() else None

    def classify(outputs: Tensors) -> Tensors:
        (logits,) = outputs.values()
        scores, class_ids = top_k(logits, options.top_k, activation=options.activation)
        labels = names[class_ids] if names is not None else class_ids.astype(str).astype("S").astype(object)
        return {SCORES: scores, CLASS_IDS: class_ids, LABELS: labels}

    return classify


def run_isolated(compiled: Compiled, requests: Sequence[Any]) -> list[npt.NDArray[np.uint8] | BadImage]:
    """Run the images of a batch of requests; requests that carry not exactly one image become ``BadImage``."""
    images = [pb_utils.get_input_tensor_by_name(request, IMAGE).as_numpy() for request in requests]
    results: list[npt.NDArray[np.uint8] | BadImage] = [
        BadImage("bad_request", f"got a batch of {len(image)} images; one request is one image, shape [1, bytes]")
        for image in images
    ]
    single = [index for index, image in enumerate(images) if len(image) == 1]
    for index, sample in zip(single, compiled.run([images[index][0] for index in single]), strict=True):
        results[index] = sample
    return results


def end_with_the_server() -> None:
    """End this process when its server is gone: one killed at work can leave the stub waiting for ever."""
    server = os.getppid()

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-the-server", daemon=True).start()


def refuse(error: BadImage) -> Any:
    """A response that carries an image's error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))


def split(outputs: Tensors, sizes: Sequence[int]) -> list[Tensors]:
    """Cut batched tensors into consecutive parts of the given batch sizes."""
    ends = np.cumsum(sizes)
    return [
        {name: value[end - size : end] for name, value in outputs.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]
