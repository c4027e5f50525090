"""Knows what float32 answers to pictures that were held out, and measures how far another precision agrees."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from onestream.postprocess.agreement import Agreement
from onestream.postprocess.kinds import Opening, Tensors
from onestream.preprocess.user_files import read_bounded
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.pictures import Sample
from onestream.serving.engine import CpuEngine
from onestream.serving.engine import served as served_network
from onestream.serving.engine.quantization import Speed, this_processor
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import CpuPrecision, Pipeline
from onestream.wire.tensor_names import CLASS_IDS, PIXELS

TIMING_S = 15.0
"""For which runs are timed."""
_MOST_LABEL_BYTES = 1 << 26
"""Of a file of labels; a million of pictures take some 30 MB."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The class of each picture, by the name of its file; ``sha256`` is of the labels file."""

    classes: Mapping[str, int]
    sha256: str

    @classmethod
    def read(cls, file: Path, names: Sequence[str] | None) -> Truth:
        """From a CSV file without a heading: the picture's file name, and its class as one of ``names`` or a number.

        Raises ``BadPipeline`` naming the line.
        """
        try:
            content = read_bounded(file, _MOST_LABEL_BYTES)
            rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
        except OSError as error:
            raise BadPipeline(f"{file}: {error.strerror or error}; expected a file of labels") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadPipeline(f"{file}: no CSV in UTF-8: {error}") from None
        ids = {name: number for number, name in enumerate(names or ())}
        found: dict[str, int] = {}
        for line, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) != 2:
                raise BadPipeline(f"{file} line {line}: expected PICTURE,CLASS, got {','.join(row)[:80]!r}")
            picture, label = (cell.strip() for cell in row)
            number = ids.get(label)
            if number is None and re.fullmatch(r"\d{1,18}", label, re.ASCII):
                number = int(label)
            if number is None:
                raise BadPipeline(f"{file} line {line}: {label[:80]!r} is no class of the network, and no number")
            if names is not None and number >= len(names):
                raise BadPipeline(f"{file} line {line}: class {number}; the network has 0 to {len(names) - 1}")
            if found.setdefault(picture, number) != number:
                raise BadPipeline(
                    f"{file} line {line}: {picture[:80]!r} has another class before; pictures are told apart by their "
                    "file names, without folders"
                )
        return cls(found, hashlib.sha256(content).hexdigest())


class Referee:
    """Knows what float32 answers to the pictures that were held out, and how far another network agrees."""

    def __init__(
        self,
        pipeline: Pipeline,
        served: onnx.ModelProto,
        held_out: Sequence[Sample],
        labels: Sequence[str] | None,
        calibration: Calibration,
        *,
        precision: CpuPrecision,
    ) -> None:
        self._threads = pipeline.serving.cpu_threads
        self._precision = precision
        self._kind = CPU_ENGINES[pipeline.serving.cpu.engine].on_cpu()
        self._held_out = held_out
        self._options = pipeline.postprocess.suited_to(served_network.outputs(served))
        self._postprocess = self._options.open_compared(Opening(pipeline.preprocess, labels))
        self._truth = None if calibration.labels is None else self._read(calibration.labels, pipeline, labels)
        self.engine = self.open(served)
        self._expected = self._answers(self.engine)
        self._check_answers()

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """Those of a picture, (1, height, width, channels), which runs are timed with."""
        return self._held_out[0].pixels[None]

    @property
    def labels_sha256(self) -> str | None:
        """Of the labels file, where there is one."""
        return None if self._truth is None else self._truth.sha256

    def open(self, network: onnx.ModelProto) -> CpuEngine:
        """As the server runs it."""
        return self._kind(network.SerializeToString(), threads=self._threads)

    def agreement(self, engine: CpuEngine) -> Agreement:
        """How far what an engine answers is what float32 does. Raises as engines do."""
        got = self._answers(engine)
        found = self._options.agreement(list(zip(self._expected, got, strict=True)))
        if self._truth is None:
            return found
        before, after = (self._accuracy(answers) for answers in (self._expected, got))
        return found.model_copy(
            update={
                "measure": f"accuracy of {self._precision} by accuracy of float32",
                "share": round(min(after / before, 1.0), 6),
                "of": sum(sample.name in self._truth.classes for sample in self._held_out),
                "accuracy": {"float32": round(before, 6), self._precision: round(after, 6)},
            }
        )

    def speed(self, float_ms: float, ms: float) -> Speed:
        """The times of one run on this machine."""
        height, width, channels = self.pixels.shape[1:]
        return Speed(
            float32_ms=round(float_ms, 3),
            ms=round(ms, 3),
            threads=self._threads,
            pixels=(height, width, channels),
            processor=this_processor(),
        )

    def _answers(self, engine: CpuEngine) -> list[Tensors]:
        return [self._postprocess(engine.run({PIXELS: one.pixels[None]}), [one.size_hw])[0] for one in self._held_out]

    def _accuracy(self, answers: Sequence[Tensors]) -> float:
        assert self._truth is not None
        known = self._truth.classes
        right = [
            int(answer[CLASS_IDS].ravel()[0]) == known[sample.name]
            for sample, answer in zip(self._held_out, answers, strict=True)
            if sample.name in known
        ]
        return float(np.mean(right)) if right else 0.0

    def _read(self, file: Path, pipeline: Pipeline, labels: Sequence[str] | None) -> Truth:
        if not pipeline.postprocess.ranks_classes:
            raise BadPipeline(f"labels are for a classification; the pipeline ends in {pipeline.postprocess.kind}")
        return Truth.read(file, labels)

    def _check_answers(self) -> None:
        if self._truth is not None and self._accuracy(self._expected) == 0:
            raise BadPipeline(
                f"float32 names the right class of none of the {len(self._held_out)} pictures that are held out, so "
                f"there is nothing to compare {self._precision} with: check the names and classes in the file of labels"
            )
        itself = self._options.agreement([(answer, answer) for answer in self._expected])
        # A share that is not a number is not below 1 either.
        if not itself.share >= 1:
            raise BadPipeline(
                f"float32 finds nothing in the {len(self._held_out)} pictures that are held out, so there is nothing "
                f"to compare {self._precision} with: calibrate with pictures that show what the network finds"
            )
