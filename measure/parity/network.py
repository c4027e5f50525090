"""The pipeline's built network: what skewed pixels do to its answers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onestream.measure.parity.answers import Answers, Right
from onestream.measure.parity.subject import Observation, Outputs, Pixels
from onestream.postprocess.kinds import Opening, labels_beside
from onestream.preprocess import Definition
from onestream.preprocess.backends.base import Sample
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.network_files import NETWORK_FILE, float_network
from onestream.serving.pipeline import Pipeline
from onestream.wire.install import install_command
from onestream.wire.tensor_names import PIXELS


class Network:
    """The network that ``onestream build`` wrote for a pipeline, in float32; ``answers`` reads those of its kind.

    A server may run it in int8: what that changes is then a part of what the server departs by.
    """

    def __init__(self, file: Path, engine: OnnxRuntimeEngine, definition: Definition, answers: Answers) -> None:
        self._file, self._engine = file, engine
        self.definition, self.answers = definition, answers

    @classmethod
    def built(cls, repository: Path, pipeline: Pipeline) -> Network | str:
        """Load the network; where that cannot be, the reason."""
        # Without its ensemble a pipeline has the network in the fused form alone; a cascade's stage has none.
        folders = [repository / f"{pipeline.name}_{role}" for role in ("model", "fused")]
        folder = next((one for one in folders if one.is_dir()), folders[0])
        file = float_network(folder / "1" / NETWORK_FILE)
        if not file.exists():
            return f"no {file}; onestream build writes it, for a cascade where serving.forms has ensemble"
        try:
            engine = OnnxRuntimeEngine(file, threads=0)
        except ImportError:
            return f"ONNX Runtime is not installed: {install_command('cpu')}"
        definition, options = engine.definition, pipeline.postprocess
        if definition is None:
            return f"{file} carries no definition; onestream build writes one that does"
        if others := [name for name in engine.input_names if name != PIXELS]:
            return f"{file} takes {', '.join(others)} beside the pixels, which photos alone do not give"
        labels = labels_beside(options, folder)
        if not set(options.network_gives) <= set(engine.output_names):
            return f"{file} was not built for {options.kind}; onestream build writes one that is"
        postprocess = None if options.compares_outputs else options.open(Opening(definition, labels=labels))
        answers = Answers(
            kind=options.kind,
            section=options.parity_section,
            postprocess=postprocess,
            names=options.class_names(labels),
            most=options.most_found,
        )
        return cls(file, engine, definition, answers)

    def right(self, expected: Observation) -> Right:
        """See ``Answering.right``."""
        outputs, size_hw = self.outputs_for(expected), expected.picture_hw
        assert outputs is not None
        assert size_hw is not None
        return Right(outputs, self.answers.read(outputs, size_hw), size_hw)

    def outputs_for(self, seen: Observation) -> Outputs | None:
        """See ``Answering.outputs_for``."""
        if seen.outputs is not None:
            return seen.outputs
        if "crop" in seen.stages:
            return self.outputs(seen.stages["crop"])
        if "normalize" in seen.stages:
            return self.outputs_of_input(seen.stages["normalize"])
        return None

    def outputs(self, pixels: Pixels) -> Outputs:
        """Run the network on one image, uint8 (height, width, channels)."""
        return self._engine.run({PIXELS: np.ascontiguousarray(pixels)[None]})

    def outputs_of_input(self, sample: Sample) -> Outputs:
        """Run the network on what it takes itself: one image that is normalized, in the definition's layout."""
        dtype = self.definition.output_spec.dtype
        return self._without_door.run({self._without_door.input_names[0]: np.ascontiguousarray(sample, dtype)[None]})

    @cached_property
    def _without_door(self) -> OnnxRuntimeEngine:
        from onestream.serving.engine.served import load_served, without_door

        return OnnxRuntimeEngine(without_door(load_served(self._file.read_bytes())).SerializeToString(), threads=0)


def logits(outputs: Outputs) -> npt.NDArray[np.float64]:
    """All values that a network gives for one image, in the order of the outputs' names."""
    return np.concatenate([np.asarray(outputs[name], np.float64).ravel() for name in sorted(outputs)])
