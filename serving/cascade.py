"""A cascade file: stages, of which the first finds regions in the picture and later ones take these, in one YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from onestream.postprocess.kinds import AnyPostprocess
from onestream.preprocess import Decode, Definition, Limits
from onestream.serving.built.triton_config import Tensor
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import (
    MOST_NAME_CHARACTERS,
    Pipeline,
    PipelineName,
    ServingOptions,
    StageFields,
    read_fields,
    validated,
)
from onestream.serving.stream_options import VideoOptions
from onestream.wire.limits import MAX_TIMEOUT_S

_STAGE_NAME = r"[a-z][a-z0-9_]{0,31}"
_VERSION_NAME = r"v\d+(_.*)?"
"""Begins the names of a later version's models (``onestream.serving.built.versions``)."""


class CascadeServingOptions(ServingOptions):
    """The same options as a pipeline's, with other defaults.

    A CPU decodes and answers picture after picture: in a batch all would wait. A page has hundreds of regions.
    """

    max_batch_size: int = Field(default=1, ge=1, le=1024, description="pictures or regions per execution")
    timeout_s: int = Field(
        default=60, ge=1, le=MAX_TIMEOUT_S, description=ServingOptions.model_fields["timeout_s"].description
    )


class CascadeStage(StageFields):
    """A stage, with what it does otherwise than the cascade."""

    precision: Literal["float32"] | None = Field(
        default=None,
        description="of this stage's network on a CPU where `serving.precision` is *int8* or *bf16*, for one that "
        "would cost too much there",
    )


class Cascade(BaseModel):
    """Everything that ``onestream build`` needs, beside the networks' files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PipelineName
    stages: dict[str, CascadeStage] = Field(
        description="two or more, in their order, each under its name. The first takes the picture and finds regions; "
        "every later one begins with ``region`` and takes those of an earlier one"
    )
    limits: Limits = Field(default=Limits(), description="what is refused before it is decoded, and the most regions")
    serving: CascadeServingOptions = Field(
        default=CascadeServingOptions(), description="how Triton runs the cascade and the network of each stage"
    )
    video: VideoOptions | None = Field(
        default=None, description="with it there is a model ``NAME_video`` for streams; ``output`` is not for cascades"
    )

    @model_validator(mode="after")
    def _stages_follow(self) -> Cascade:
        if len(self.stages) < 2:
            raise ValueError(
                f"a cascade has two stages or more, got {len(self.stages)}; one alone is a pipeline, whose preprocess "
                "stands at the top of the file"
            )
        for index, (name, stage) in enumerate(self.stages.items()):
            if not re.fullmatch(_STAGE_NAME, name):
                raise ValueError(f"stages.{name[:40]}: a stage's name is like {_STAGE_NAME}")
            if re.fullmatch(_VERSION_NAME, name):
                raise ValueError(f"stages.{name}: so the models of a later version are called; take another name")
            if len(f"{self.name}_{name}") > MOST_NAME_CHARACTERS:
                raise ValueError(
                    f"stages.{name}: its models begin with the cascade's name and its own, which are "
                    f"{len(self.name)} and {len(name)} characters long; with the '_' between them at most "
                    f"{MOST_NAME_CHARACTERS} are taken"
                )
            reason = _why_not_first(stage) if index == 0 else self._why_not_later(name, stage)
            if reason:
                raise ValueError(f"stages.{name}: {reason}")
        if self.video and self.video.output:
            raise ValueError(
                "video.output draws a pipeline's boxes or matte; a cascade's results leave without pictures"
            )
        return self

    def _why_not_later(self, name: str, stage: StageFields) -> str:
        region = stage.preprocess.region
        if region is None:
            return "preprocess begins with decode, which is for the first stage; begin with region"
        if stage.preprocess.patches is not None:
            return "preprocess ends in patches, which are for a pipeline of one stage"
        before = list(self.stages)[: list(self.stages).index(name)]
        if region.of not in before:
            return f"region.of is {region.of!r}; expected an earlier stage: {', '.join(before)}"
        if not stage.postprocess.takes_regions:
            return f"postprocess {stage.postprocess.kind} does not work on regions"
        if stage.postprocess.not_in_a_stage:
            return stage.postprocess.not_in_a_stage
        first = before[0]
        if region.classes and not self.stages[first].postprocess.names_objects:
            return (
                f"region.classes are those of a detection, and stage {first} ends in "
                f"{self.stages[first].postprocess.kind}; expected none"
            )
        earlier = self.stages[region.of].postprocess
        if not (earlier.finds_regions or earlier.turns_regions):
            return f"region.of is {region.of!r}, which gives no regions: it ends in {earlier.kind}"
        return ""

    @property
    def pipelines(self) -> dict[str, Pipeline]:
        """Each stage as a pipeline of its own, called NAME_STAGE, by the stage's name."""
        found = {}
        for name, stage in self.stages.items():
            fields = {field: getattr(stage, field) for field in StageFields.model_fields}
            precision = stage.precision or self.serving.precision
            serving = self.serving.model_copy(update={"precision": precision})
            found[name] = Pipeline(**fields, name=f"{self.name}_{name}", limits=self.limits, serving=serving)
        return found

    @classmethod
    def from_file(cls, path: Path) -> Cascade:
        """Read a cascade file; its stem is the name where the file gives none. Raises as ``Pipeline.from_file``."""
        return cls.from_fields(path, read_fields(path))

    @classmethod
    def from_fields(cls, path: Path, data: dict[str, Any]) -> Cascade:
        """The same from the fields of a file that was read."""
        if "stages" not in data:
            raise BadPipeline(f"{path}: it has no stages, so it is no cascade")
        return validated(cls, path, data)


def _why_not_first(stage: StageFields) -> str:
    if stage.preprocess.region is not None:
        return "preprocess begins with region; the first stage takes the picture, so it begins with decode"
    decode = stage.preprocess.source
    if isinstance(decode, Decode) and decode.beyond_decoders:
        names = ", ".join(decode.beyond_decoders)
        return f"decode.{names} is for a pipeline of one stage: regions are trained on pictures as they are stored"
    if not stage.postprocess.finds_regions:
        return f"postprocess {stage.postprocess.kind} finds no regions for the stages after it"
    return ""


def read_file(path: Path) -> Pipeline | Cascade:
    """A pipeline file, or one with stages as a cascade. Raises ``BadPipeline``."""
    data = read_fields(path)
    return Cascade.from_fields(path, data) if "stages" in data else Pipeline.from_fields(path, data)


class ServedStage(BaseModel):
    """What a cascade's models know of a stage: the stamp, the postprocessing, and what it gives of one region."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    definition: Definition
    definition_digest: str
    postprocess: AnyPostprocess = Field(discriminator="kind")
    network_outputs: tuple[str, ...]
    answer: tuple[Tensor, ...]
    gpu_batch: int = 1
    """The most samples that the network takes at once on a GPU."""


SERVED_STAGES: TypeAdapter[tuple[ServedStage, ...]] = TypeAdapter(tuple[ServedStage, ...])
"""Reads and writes the parameter."""
