"""How a pipeline takes video streams: the section *video* of a pipeline file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

_Frozen = ConfigDict(frozen=True, extra="forbid")


class VideoSampling(BaseModel):
    """Which frames of a stream the network sees, counted from 0 in the order of display.

    It becomes a ``onestream.preprocess.video.streams.sampling.Sampling``.
    """

    model_config = _Frozen

    stride: int = Field(default=1, ge=1, description="every ``stride``-th frame")
    fps: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="in place of ``stride``: the frames that are shown at this constant rate"
    )
    start_frame: int = Field(default=0, ge=0, description="the first frame that is taken")
    end_frame: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="the first frame that is not taken any more"
    )
    num_frames: Annotated[int, Field(ge=1)] | None = Field(default=None, description="at most so many frames")

    @model_validator(mode="after")
    def _fields_agree(self) -> VideoSampling:
        if self.fps is not None and self.stride != 1:
            raise ValueError(f"fps replaces stride; got fps {self.fps:g} and stride {self.stride}")
        if self.end_frame is not None and self.end_frame <= self.start_frame:
            raise ValueError(f"end_frame {self.end_frame} must be after start_frame {self.start_frame}")
        return self


class VideoColor(BaseModel):
    """How YUV becomes RGB; *auto* is what the video says, and where it says nothing, BT.601 and limited.

    It becomes a ``onestream.preprocess.video.common.color.ColorRule``.
    """

    model_config = _Frozen

    matrix: Literal["auto", "bt601", "bt709", "bt2020"] = Field(
        default="auto", description="the coefficients; *auto* is what the stream says"
    )
    range: Literal["auto", "limited", "full"] = Field(
        default="auto", description="of the samples: 16 to 235, or 0 to 255; *auto* is what the stream says"
    )
    transfer: Literal["ignore", "sdr"] = Field(
        default="ignore",
        description="of HDR (PQ, HLG): *ignore* takes its values as if they were SDR's; *sdr* maps them to SDR, on the "
        "CPU",
    )

    @model_serializer(mode="wrap")
    def _state_newer_fields_where_they_matter(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A model's configuration stays as it was built before the field was there."""
        fields: dict[str, Any] = default(self)
        if self.transfer == "ignore":
            del fields["transfer"]
        return fields


class VideoOutput(BaseModel):
    """How composed frames are encoded: one packet a frame, without delay."""

    model_config = _Frozen

    codec: Literal["h264"] = Field(default="h264", description="H.264, by libx264")
    preset: Literal["ultrafast", "superfast", "veryfast", "faster", "fast", "medium"] = Field(
        default="ultrafast", description="libx264's"
    )
    crf: float = Field(default=23.0, ge=0, le=51, description="libx264's quality; less is better")
    keyframe_s: float = Field(default=2.0, gt=0, description="seconds from one key picture to the next")

    @property
    def libx264_options(self) -> dict[str, str]:
        """The options of libx264: the quality, and a packet for each picture at once."""
        return {"preset": self.preset, "tune": "zerolatency", "crf": f"{self.crf:g}", "x264-params": "log-level=none"}


class VideoOptions(BaseModel):
    """How ``NAME_video`` takes streams: the frames, their colours, and what is refused."""

    model_config = _Frozen

    sampling: VideoSampling = Field(default=VideoSampling(), description="which frames the network sees")
    decode: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="on a machine with a GPU: *auto* decodes there what NVDEC decodes exactly and the rest on the CPU; "
        "*gpu* is the same, but the model does not load where NVDEC cannot be used at all",
    )
    color: VideoColor = Field(default=VideoColor(), description="how YUV becomes RGB")
    max_streams: int = Field(default=32, ge=1, le=1024, description="streams that are open at once")
    max_pixels: int = Field(default=1920 * 1088, ge=1, description="of a picture")
    max_fps: float = Field(default=240.0, gt=0, description="frames per second, as declared")
    max_bitrate: int = Field(
        default=200_000_000, ge=1, description="bit/s, as declared; in the mode *drop_oldest* also measured"
    )
    buffer_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="bytes of packets that wait in the server, per stream; no packet may be larger",
    )
    results: int = Field(default=32, ge=1, description="results that wait for the client, per stream")
    idle_s: float = Field(
        default=30.0,
        gt=0,
        description="a stream that sends no packet, and whose caller takes no result, for so many seconds is ended",
    )
    max_memory_bytes: int = Field(
        default=2 * 1024**3,
        ge=1024 * 1024,
        description="bytes that all streams together may add to the process that decodes them, measured",
    )
    output: VideoOutput | None = Field(
        default=None,
        description="of a matte or a detection only: frames leave encoded, composed, or with boxes and names drawn "
        "into them; without it only results leave",
    )
