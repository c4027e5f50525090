"""The pipeline's built network: what skewed pixels do to its answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.subject import Outputs, Pixels
from onestream.postprocess import read_labels
from onestream.preprocess import Definition
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.wire.install import install_command


class Network:
    """The ``model.onnx`` that ``onestream build`` wrote for a pipeline."""

    def __init__(self, engine: OnnxRuntimeEngine, definition: Definition, labels: list[str]) -> None:
        self._engine, self._labels = engine, labels
        self.definition = definition

    @classmethod
    def built(cls, repository: Path, pipeline: str) -> Network | str:
        """Load the network; where that cannot be, the reason."""
        folder = repository / f"{pipeline}_model"
        file = folder / "1" / "model.onnx"
        if not file.exists():
            return f"no {file}; onestream build writes it"
        try:
            engine = OnnxRuntimeEngine(file, threads=0)
        except ImportError:
            return f"ONNX Runtime is not installed: {install_command('cpu')}"
        definition = engine.definition
        if definition is None:
            return f"{file} carries no definition; onestream build writes one that does"
        names = folder / "labels.txt"
        return cls(engine, definition, read_labels(names) if names.exists() else [])

    def outputs(self, pixels: Pixels) -> Outputs:
        """Run the network on one image, uint8 (height, width, channels)."""
        return self._engine.run(np.ascontiguousarray(pixels)[None])

    def label(self, class_id: int) -> str:
        """The name of a class, or its number where the pipeline has no names."""
        return self._labels[class_id] if class_id < len(self._labels) else str(class_id)


def logits(outputs: Outputs) -> npt.NDArray[np.float64]:
    """All values that a network gives for one image, in the order of the outputs' names."""
    return np.concatenate([np.asarray(outputs[name], np.float64).ravel() for name in sorted(outputs)])


def top_id(outputs: Outputs) -> int | None:
    """The best class where the outputs are one row of scores; None where they are something else."""
    if len(outputs) != 1:
        return None
    (scores,) = outputs.values()
    return int(scores[0].argmax()) if scores.ndim == 2 and scores.shape[1] > 1 else None
