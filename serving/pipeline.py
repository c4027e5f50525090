"""A pipeline file: the definition, the network and what is returned, in one YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from onestream.pipelines.networks import Network
from onestream.postprocess.kinds import OPTIONS, AnyPostprocess
from onestream.postprocess.kinds.classification import Classification
from onestream.preprocess import Definition, Limits
from onestream.preprocess.backends.base import DecodeOptions, GpuBackendName, GpuResize
from onestream.preprocess.operations import Patches
from onestream.preprocess.operations.tiles import Tiles
from onestream.preprocess.user_files import MAX_CHARACTERS, BadYaml, describe, read_plain_yaml
from onestream.serving.errors import BadPipeline
from onestream.serving.role_fields import RoleFields
from onestream.serving.stream_options import VideoOptions
from onestream.wire.limits import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S

_Frozen = ConfigDict(frozen=True, extra="forbid")

Precision = Literal["fp32", "tf32", "fp16", "int8"]
CpuPrecision = Literal["float32", "bf16", "int8"]
EngineName = Literal["tensorrt", "onnxruntime"]
CpuEngineName = Literal["onnxruntime", "openvino"]
"""``engine.table.ENGINES`` and ``CPU_ENGINES`` say what each is."""
GpuNumber = Annotated[int, Field(ge=0)]
Form = Literal["ensemble", "fused"]
FORMS: tuple[Form, ...] = get_args(Form)
MOST_NAME_CHARACTERS = 200
"""Of a pipeline's name: a file name of 255 characters holds it with what the models' names add."""
InputSource = Literal["pixels", "request", "image_size", "image_size_wh", "image_scale"]
"""``graph.network_inputs`` says what each gives an input."""
InputValue = float | tuple[float, ...]
PictureInput = Annotated[
    dict[Literal["image"], Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$")]], Field(min_length=1)
]
"""Names another picture of the request."""
NetworkInput = InputSource | InputValue | PictureInput
PipelineName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]*$",
        max_length=MOST_NAME_CHARACTERS,
        description="under which it is served: a letter, then letters, digits, ``_`` and ``-``; without it the file's "
        "name before its ending",
    ),
]


_Model = TypeVar("_Model", bound=BaseModel)

_AUTO_DECODE_THREADS = (2, 16)

BACKGROUND_FILE = "background"
"""In the folder of ``NAME_video``: the image that a matte's background names."""


class GpuOptions(BaseModel):
    """How a machine with an NVIDIA GPU runs the pipeline. None of it changes a result beyond the tolerances table."""

    model_config = _Frozen

    gpus: Literal["all"] | tuple[GpuNumber, ...] = Field(
        default="all",
        description="the GPUs that run it, each with an instance of every model: *all* that the server sees, or their "
        "numbers among those, such as [0, 1]; ``NAME_video`` is on the first of them alone",
    )
    max_batch_size: int = Field(
        default=64, ge=1, le=1024, description="images per execution; TensorRT is built for 1 to this"
    )
    max_queue_size: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        default="auto",
        description="waiting requests per step and priority; *auto* is four batches, at least 256, before the network "
        "of ``NAME``, whose pixels wait in the GPU's memory, and any number elsewhere, since Triton 2.51 serves the "
        "bounded queue of one process more slowly; 0 is any number everywhere",
    )
    backend: GpuBackendName = Field(
        default="cvcuda", description="what preprocesses; DALI has streams of its own, so its samples are copied"
    )
    decode: Literal["gpu", "hybrid", "cpu"] = Field(
        default="gpu",
        description="where JPEGs are decoded; *hybrid*: entropy decoding on the CPU and the rest on the GPU; *cpu* "
        "resizes there too and sends only the network's pixels",
    )
    resize: GpuResize = Field(
        default="exact",
        description="*exact*: Pillow's in every bit, with every filter; *hq*: CV-CUDA's own, *bilinear* only, up to 16 "
        "levels from Pillow's at the borders of an image that is not cropped. With *cvcuda* only",
    )
    decode_threads: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = Field(
        default="auto",
        description="CPU threads of each decoder, of which a process has one for each of ``batches_in_flight``; *auto* "
        "is the server's cores in equal shares, one for each decoder on all GPUs and one for everything else, 2 to 16",
    )
    decode_streams: int = Field(
        default=4,
        ge=1,
        le=16,
        description="CUDA streams on which the JPEGs of a batch are decoded beside each other, each with at least one "
        "of the threads; 1 decodes on the batch's own, as ``hw_decoder_load`` does. With *cvcuda* only",
    )
    cpu_entropy_megapixels: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="with ``decode: gpu``, the size of the largest JPEGs whose entropy the CPU decodes; 0 for none",
    )
    hw_decoder_load: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the JPEGs for the decoding hardware of A100, H100 and later; above 0 the host waits more "
        "than once a batch",
    )
    engine: EngineName = Field(
        default="tensorrt", description="what runs the network; a cascade is on a GPU with *onnxruntime* only"
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "int8"] = Field(
        default="auto",
        description="of the network; *fp32* is float32 throughout; *tf32* sums products with 10-bit mantissas and "
        "*fp16* computes with as many, on tensor cores, [which *fp32* leaves idle](gpu.md#precision); *int8* is for "
        "TensorRT, with ``precision: int8`` on a CPU; *auto* is *int8* where that is so and agrees as well on a GPU, "
        "else *fp32*",
    )
    instances: int = Field(
        default=1,
        ge=1,
        le=16,
        description="processes of ``NAME_preprocess`` and of ``NAME_fused`` on each GPU, and instances of the network "
        "there, of which a bounded queue has two at least; more than one process pays where "
        "[Python is the bound](gpu.md#several-processes-a-gpu)",
    )
    batches_in_flight: int = Field(
        default=2, ge=1, le=16, description="batches of ``NAME_fused`` that overlap, each on a CUDA stream of its own"
    )
    triton: RoleFields = Field(default={}, description="on top of ``serving.triton`` on a machine with a GPU")

    @property
    def decoder_threads(self) -> int:
        """``decode_threads``; where no server has set what is *auto*, the least of those."""
        return self.threads_for(1)

    def threads_for(self, cores: int, *, gpus: int = 1) -> int:
        """``decode_threads`` on so many cores: the decoders of a form on all GPUs share them, beside one for the rest.

        ``gpus`` are those of the machine, each with processes of its own where the options name none.
        """
        if self.decode_threads != "auto":
            return self.decode_threads
        least, most = _AUTO_DECODE_THREADS
        decoders = self.batches_in_flight * self.instances * (len(self.gpu_numbers) or max(gpus, 1))
        return min(max(cores // (decoders + 1), least), most)

    @property
    def network_precision(self) -> Precision:
        """That of the network; what a build did not decide is *fp32*."""
        return "fp32" if self.precision == "auto" else self.precision

    @property
    def decoding(self) -> DecodeOptions:
        """How a GPU decodes JPEGs, where it does."""
        placement: Literal["gpu", "hybrid"] = "hybrid" if self.decode == "hybrid" else "gpu"
        return DecodeOptions(placement, self.hw_decoder_load, self.decode_streams, self.cpu_entropy_megapixels)

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """The GPUs that are named; none where it is all."""
        return () if self.gpus == "all" else self.gpus

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: Literal["all"] | tuple[int, ...]) -> Literal["all"] | tuple[int, ...]:
        if gpus != "all" and (not gpus or len(set(gpus)) < len(gpus)):
            raise ValueError(f"name each GPU once, and at least one, or say 'all'; got {list(gpus)}")
        return gpus

    @model_serializer(mode="wrap")
    def _state_newer_fields_where_they_matter(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As ``VideoColor`` does."""
        fields: dict[str, Any] = default(self)
        for name in ("triton", "decode_streams", "cpu_entropy_megapixels"):
            if getattr(self, name) == type(self).model_fields[name].default:
                del fields[name]
        return fields


class CpuOptions(BaseModel):
    """How a machine runs the pipeline on its CPU, beside the fields above."""

    model_config = _Frozen

    engine: CpuEngineName = Field(
        default="onnxruntime",
        description="what runs the network; *openvino* is [faster for some networks and processors]"
        "(quantization.md#openvino), and needs `onestream[openvino]`",
    )
    triton: RoleFields = Field(default={}, description="on top of ``serving.triton`` on a machine without a GPU")


class ServingOptions(BaseModel):
    """How Triton runs the pipeline. None of it changes a result but ``precision``."""

    model_config = _Frozen

    max_batch_size: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="images per execution on a CPU; a network that cannot take batches is served with 1, which then "
        "holds on a GPU too",
    )
    max_queue_size: Literal["cores"] | Annotated[int, Field(ge=0)] = Field(
        default="cores",
        description="waiting requests per step and priority on a CPU, above which the server answers UNAVAILABLE at "
        "once; *cores* is 32 for each core of the machine that serves (0 with one process); 0 is no bound, no longest "
        "wait and no priorities",
    )
    max_queue_ms: int = Field(
        default=2000, ge=1, description="longest wait before a step on a CPU, after which the answer is the same"
    )
    cpu_instances: Literal["cores"] | Annotated[int, Field(ge=1)] = Field(
        default="cores",
        description="processes on a CPU; *cores* is one per core of the machine that serves, and one more of "
        "`NAME_fused` where its queue is bounded, except a cascade's",
    )
    cpu_threads: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="threads of each process, for decoding and the network; more than one pays where fewer requests "
        "are in flight than there are cores",
    )
    timeout_s: int = Field(
        default=DEFAULT_TIMEOUT_S,
        ge=1,
        le=MAX_TIMEOUT_S,
        description="seconds for which a client waits for the answer to an image unless it says otherwise",
    )
    precision: CpuPrecision = Field(
        default="float32",
        description="of the network on a CPU; *int8* takes about half the time there, is calibrated with pictures of "
        "yours (``onestream build --calibrate``), and its certificate says what it costs; so does that of *bf16*, for "
        "``cpu.engine: openvino`` on processors that compute in bfloat16",
    )
    cpu: CpuOptions = Field(default=CpuOptions(), description="what holds on a CPU alone")
    gpu: GpuOptions = Field(default=GpuOptions(), description="what holds on a machine with a GPU instead")
    forms: tuple[Form, ...] = Field(
        default=FORMS,
        min_length=1,
        description="what is built: *ensemble*, ``NAME`` step by step, and *fused*, ``NAME_fused`` in one process; "
        "where one is [left out](operations.md#one-form), its name stands for the other",
    )
    triton: RoleFields = Field(
        default={},
        description="[options of Triton's own](operations.md#tritons-own-options): fields of a ``config.pbtxt`` by "
        "the role of a model, which is *ensemble* for ``NAME`` and the rest of the name for the others, such as "
        "*preprocess*, *model*, *postprocess*, *fused* and *video*",
    )


class StageFields(BaseModel):
    """A definition, a network and a postprocessing: a pipeline has one such stage, a cascade several."""

    model_config = _Frozen

    network: Network | Literal["none"] | SkipJsonSchema[Patches] | None = Field(
        default=None,
        description="a built-in network; without it ``onestream build --onnx FILE`` gives one; with *none* the answer "
        "is [the preprocessed picture, or its patches](own-network.md#no-network), and postprocess is *raw*",
    )
    network_inputs: dict[str, NetworkInput] = Field(
        default={},
        description="what [each of the network's inputs](own-network.md#several-inputs) takes, by its name: a number "
        "or a list, the same for every image; *pixels*, by default the one input that is not named; *image_size* or "
        "*image_size_wh*, height and width of the picture or the other way round; *image_scale*, height and width of "
        "the network's input as shares of those; *request*, what a client sends with the picture; *{image: NAME}*, "
        "another picture of the request, of this name",
    )
    network_outputs: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="names of tensors within the network that leave it in place of its own outputs; what comes after "
        "them is left out",
    )
    preprocess: Definition = Field(description="the definition: from an encoded image to the network's input")
    postprocess: AnyPostprocess = Field(
        default=Classification(), discriminator="kind", description="from the network's outputs to what is returned"
    )

    @model_validator(mode="after")
    def _suits_no_network(self) -> StageFields:
        if self.network == "none" and not self.postprocess.needs_no_network:
            able = " or ".join(str(one.model_fields["kind"].default) for one in OPTIONS if one.needs_no_network)
            raise ValueError(f"network none answers pixels; it takes postprocess {able}, got {self.postprocess.kind}")
        if isinstance(self.preprocess.for_processor, Tiles):
            raise ValueError(
                "preprocess ends in tiles, which onestream.preprocess.patches.Processor makes in process; a pipeline "
                "takes output, or patches with network none"
            )
        if (patches := self.preprocess.patches) and patches.pads:
            raise ValueError(
                "preprocess ends in patches with layout image or pad_to, which onestream.preprocess.patches.Processor "
                "makes in process; served are rows without padding, and output"
            )
        if self.network != "none" and self.preprocess.patches is not None:
            raise ValueError(
                "preprocess ends in patches, which are served with network none; a served network takes output"
            )
        return self


class Pipeline(StageFields):
    """Everything that ``onestream build`` needs, beside the network's file."""

    name: PipelineName
    limits: Limits = Field(default=Limits(), description="what is refused before it is decoded")
    serving: ServingOptions = Field(default=ServingOptions(), description="how Triton runs the pipeline")
    video: VideoOptions | None = Field(
        default=None, description="with it there is a model ``NAME_video`` for streams; ``{}`` takes every default"
    )

    @model_validator(mode="after")
    def _output_has_pictures(self) -> Pipeline:
        if self.video and self.video.output and not self.postprocess.loops:
            able = " or ".join(str(one.model_fields["kind"].default) for one in OPTIONS if one.loops)
            raise ValueError(f"video.output draws pictures; it takes postprocess {able}, got {self.postprocess.kind}")
        return self

    @model_validator(mode="after")
    def _reduced_on_a_cpu(self) -> Pipeline:
        if self.preprocess.scales_dct and self.serving.gpu.decode != "cpu":
            raise ValueError(
                "preprocess decodes with dct_scaling, which is for a CPU; it takes serving.gpu.decode cpu, got "
                f"{self.serving.gpu.decode}"
            )
        return self

    @classmethod
    def from_file(cls, path: Path) -> Pipeline:
        """Read a pipeline file; its stem is the name where the file gives none.

        Raises ``BadPipeline`` naming the file, the field, what was seen and what is allowed.
        """
        return cls.from_fields(path, read_fields(path))

    @classmethod
    def from_fields(cls, path: Path, data: dict[str, Any]) -> Pipeline:
        """The same from the fields of a file that was read."""
        if "stages" in data:
            raise BadPipeline(f"{path}: it has stages, so it is a cascade; expected a pipeline with preprocess")
        pipeline = validated(cls, path, data)
        if pipeline.preprocess.region is not None:
            raise BadPipeline(f"{path}: preprocess begins with region, which is for a later stage of a cascade")
        if (patches := pipeline.preprocess.patches) is None:
            return pipeline
        # In place of the network: then the models hand pixels over, as ever.
        pixels = pipeline.preprocess.pixels().with_layout("NCHW")
        return pipeline.model_copy(update={"preprocess": pixels, "network": patches})


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a pipeline file, with its stem for a name where it gives none. Raises ``BadPipeline``."""
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
    return {"name": path.stem} | data


def validated(kind: type[_Model], path: Path, data: dict[str, Any]) -> _Model:
    """The fields of a file as a pipeline or a cascade. Raises ``BadPipeline``."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BadPipeline(f"{path}: {describe(error, kind)}") from None
