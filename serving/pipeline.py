"""A pipeline file: the definition, the network and what is returned, in one YAML."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from onestream.preprocess import Definition, Limits
from onestream.preprocess.plain_yaml import MAX_CHARACTERS, BadYaml, read_plain_yaml
from onestream.serving.errors import BadPipeline
from onestream.serving.video.bounds import Bounds

_Frozen = ConfigDict(frozen=True, extra="forbid")

Precision = Literal["fp32", "tf32", "fp16"]
Level = Annotated[int, Field(ge=0, le=255)]


class Classification(BaseModel):
    """The best classes of a network with one output (batch, classes).

    ``activation``: *softmax* makes scores that sum to 1 of logits or of their logarithms; *none* returns the network's
    output as it is; *auto* is *none* for a network that ends in softmax or sigmoid itself, and *softmax* for any other.
    ``labels`` is *imagenet*, a path relative to the pipeline file, or None: then class ids serve as names.
    """

    model_config = _Frozen

    kind: Literal["classification"] = "classification"
    top_k: Annotated[int, Field(ge=1)] = 5
    activation: Literal["auto", "softmax", "none"] = "auto"
    labels: str | None = None


class Raw(BaseModel):
    """The network's outputs as they are."""

    model_config = _Frozen

    kind: Literal["raw"] = "raw"


class ColorBackground(BaseModel):
    """One colour: red, green and blue of 0 to 255."""

    model_config = _Frozen

    kind: Literal["color"] = "color"
    rgb: tuple[Level, Level, Level] = (0, 177, 64)


class BlurBackground(BaseModel):
    """The picture itself, blurred. ``radius``: about the standard deviation, in pixels of the picture."""

    model_config = _Frozen

    kind: Literal["blur"] = "blur"
    radius: Annotated[int, Field(ge=12, le=512)] = 28


class PictureBackground(BaseModel):
    """An image file, its path relative to the pipeline file; it is scaled to cover the picture."""

    model_config = _Frozen

    kind: Literal["picture"] = "picture"
    path: str


AnyBackground = ColorBackground | BlurBackground | PictureBackground


class Matte(BaseModel):
    """Which pixels belong to a person, from a network with one output (batch, height, width) of probabilities.

    ``softness``: the range of probabilities around one half that stays transparent in parts; 1 keeps them as they are,
    less makes edges harder. ``background``: what a composed video shows behind persons.
    """

    model_config = _Frozen

    kind: Literal["matte"] = "matte"
    softness: Annotated[float, Field(gt=0, le=1)] = 0.5
    background: Annotated[AnyBackground, Field(discriminator="kind")] = BlurBackground()


AnyPostprocess = Classification | Raw | Matte


class GpuOptions(BaseModel):
    """How a machine with an NVIDIA GPU runs the pipeline. None of it changes a result beyond the tolerances table.

    ``max_batch_size``: images per execution there. ``max_queue_size``: waiting requests per step and priority there; 0
    for any number, which is the default since Triton 2.51 serves the bounded queue of a model with one instance more
    slowly (docs/overload.md). ``backend``: what preprocesses, *cvcuda* or *dali*. ``decode``:
    where JPEGs are decoded: *gpu*; *hybrid*, entropy decoding on the CPU and the rest on the GPU; *cpu*, which then
    resizes too and sends only the network's pixels. ``decode_threads``: CPU threads of the decoder, per process.
    ``hw_decoder_load``: share of the JPEGs for the decoding hardware of A100, H100 and later, 0 to 1; 0 since its
    chroma may differ.
    ``engine``: what runs the network. ``precision``: of the network; *tf32* sums products with 10-bit mantissas, which
    is faster on GPUs that have it. ``batches_in_flight``: batches of ``NAME_fused`` that overlap, each on a stream of
    its own.
    """

    model_config = _Frozen

    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 64
    max_queue_size: Annotated[int, Field(ge=0)] = 0
    backend: Literal["cvcuda", "dali"] = "cvcuda"
    decode: Literal["gpu", "hybrid", "cpu"] = "gpu"
    decode_threads: Annotated[int, Field(ge=1, le=64)] = 2
    hw_decoder_load: Annotated[float, Field(ge=0, le=1)] = 0.0
    engine: Literal["tensorrt", "onnxruntime"] = "tensorrt"
    precision: Precision = "fp32"
    batches_in_flight: Annotated[int, Field(ge=1, le=16)] = 2


class ServingOptions(BaseModel):
    """How Triton runs the pipeline. None of it changes a result.

    ``max_batch_size``: images per execution on a CPU; a network that cannot take batches is served with 1, which then
    holds on a GPU too. ``max_queue_size``: waiting requests per step and priority on a CPU, above which the server
    answers UNAVAILABLE at once; *cores* is 32 for each core of the machine that serves (0 with one process), 0 is no
    bound, no longest wait and no priorities. ``max_queue_ms``: longest wait there, after which the answer is the same.
    ``cpu_instances``: processes on a CPU; *cores* is one per core of the machine that serves. ``cpu_threads``: threads
    of each, for decoding and the network; more than one pays where fewer requests are in flight than there are cores.
    ``gpu``: what holds on a machine with a GPU instead.
    """

    model_config = _Frozen

    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 8
    max_queue_size: Literal["cores"] | Annotated[int, Field(ge=0)] = "cores"
    max_queue_ms: Annotated[int, Field(ge=1)] = 2000
    cpu_instances: Literal["cores"] | Annotated[int, Field(ge=1)] = "cores"
    cpu_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    gpu: GpuOptions = GpuOptions()


class VideoSampling(BaseModel):
    """Which frames of a stream the network sees (``onestream.preprocess.video.streams.sampling.Sampling``).

    Every ``stride``-th in the order of display from ``start_frame`` on, before ``end_frame``, ``num_frames`` at most;
    ``fps`` replaces the stride: those that are shown at a constant rate.
    """

    model_config = _Frozen

    stride: Annotated[int, Field(ge=1)] = 1
    fps: Annotated[float, Field(gt=0)] | None = None
    start_frame: Annotated[int, Field(ge=0)] = 0
    end_frame: Annotated[int, Field(ge=1)] | None = None
    num_frames: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> VideoSampling:
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"fps replaces stride; got fps {self.fps:g} and stride {self.stride}")
        if self.end_frame is not None and self.end_frame <= self.start_frame:
            raise ValueError(f"end_frame {self.end_frame} must be after start_frame {self.start_frame}")
        return self


class VideoColor(BaseModel):
    """How YUV becomes RGB (``onestream.preprocess.video.common.color.ColorRule``); *auto* is what the stream says."""

    model_config = _Frozen

    matrix: Literal["auto", "bt601", "bt709", "bt2020"] = "auto"
    range: Literal["auto", "limited", "full"] = "auto"


class VideoOutput(BaseModel):
    """How composed frames are encoded: H.264 by libx264, one packet a frame, without delay.

    ``preset`` and ``crf`` (quality; less is better) are libx264's. A key picture comes every ``keyframe_s`` seconds.
    """

    model_config = _Frozen

    codec: Literal["h264"] = "h264"
    preset: Literal["ultrafast", "superfast", "veryfast", "faster", "fast", "medium"] = "ultrafast"
    crf: Annotated[float, Field(ge=0, le=51)] = 23.0
    keyframe_s: Annotated[float, Field(gt=0)] = 2.0


class VideoOptions(BaseModel):
    """How ``NAME_video`` takes streams: the frames, their colours, and what is refused (``serving.video.bounds``).

    ``output``: a matte's frames leave composed and encoded; without it its mattes leave as tensors. ``decode``, on a
    machine with a GPU: *auto* decodes there what NVDEC decodes exactly and the rest on the CPU; *gpu* is the same, but
    the model does not load where NVDEC cannot be used at all.
    """

    model_config = _Frozen

    sampling: VideoSampling = VideoSampling()
    decode: Literal["auto", "cpu", "gpu"] = "auto"
    color: VideoColor = VideoColor()
    max_streams: Annotated[int, Field(ge=1, le=1024)] = 32
    max_pixels: Annotated[int, Field(ge=1)] = 1920 * 1088
    max_fps: Annotated[float, Field(gt=0)] = 240.0
    max_bitrate: Annotated[int, Field(ge=1)] = 200_000_000
    buffer_bytes: Annotated[int, Field(ge=1024)] = 4 * 1024 * 1024
    results: Annotated[int, Field(ge=1)] = 32
    idle_s: Annotated[float, Field(gt=0)] = 30.0
    max_memory_bytes: Annotated[int, Field(ge=1024 * 1024)] = 2 * 1024**3
    output: VideoOutput | None = None

    @property
    def bounds(self) -> Bounds:
        """The limits on streams."""
        names = [field.name for field in fields(Bounds)]
        return Bounds(**{name: getattr(self, name) for name in names})


class Pipeline(BaseModel):
    """Everything that ``onestream build`` needs, beside the network's file.

    ``network`` names a built-in network (*efficientnet-lite0*, *selfie-segmentation*); None where an ONNX file is
    given to the build. ``video``: with it there is a model ``NAME_video`` for streams.
    """

    model_config = _Frozen

    # A file name of 255 characters holds it with what the models' names add.
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=200)]
    network: Literal["efficientnet-lite0", "selfie-segmentation"] | None = None
    preprocess: Definition
    postprocess: Annotated[AnyPostprocess, Field(discriminator="kind")] = Classification()
    limits: Limits = Limits()
    serving: ServingOptions = ServingOptions()
    video: VideoOptions | None = None

    @model_validator(mode="after")
    def _output_has_pictures(self) -> Pipeline:
        if self.video and self.video.output and not isinstance(self.postprocess, Matte):
            raise ValueError(f"video.output composes pictures; it takes postprocess matte, got {self.postprocess.kind}")
        return self

    @classmethod
    def from_file(cls, path: Path) -> Pipeline:
        """Read a pipeline file; its stem is the name where the file gives none.

        Raises ``BadPipeline`` naming the file, the field, what was seen and what is allowed.
        """
        try:
            with path.open(encoding="utf-8") as file:
                data = read_plain_yaml(file.read(MAX_CHARACTERS + 1))
        except OSError as error:
            raise BadPipeline(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BadPipeline(f"{path}: not YAML: not UTF-8 at byte {error.start}") from None
        except BadYaml as error:
            raise BadPipeline(f"{path}: {error}") from None
        if not isinstance(data, dict):
            raise BadPipeline(f"{path}: expected fields such as 'preprocess', got {type(data).__name__}")
        try:
            return cls.model_validate({"name": path.stem} | data)
        except ValidationError as error:
            raise BadPipeline(f"{path}: {describe(error)}") from None


_POSTPROCESS: TypeAdapter[AnyPostprocess] = TypeAdapter(Annotated[AnyPostprocess, Field(discriminator="kind")])


def read_postprocess(options_json: str) -> AnyPostprocess:
    """The postprocessing from the parameter of a model's configuration."""
    return _POSTPROCESS.validate_json(options_json)


def describe(error: ValidationError) -> str:
    """A readable part per problem of a pydantic error: field, reason and the value that was seen."""
    problems = error.errors()
    parts = []
    for problem in problems[:_MOST_PROBLEMS]:
        field = ".".join(_short(part) for part in problem["loc"]) or "pipeline"
        parts.append(f"{field}: {problem['msg']} (got {_short(repr(problem['input']))})")
    if len(problems) > _MOST_PROBLEMS:
        parts.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(parts)


_MOST_PROBLEMS = 20
"""Of one file, in one message; who mends these sees the next."""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
