"""Persons before a background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from onestream.postprocess import BadNetwork, BadPipeline
from onestream.postprocess.kinds.base import Level, Opening, Options, Postprocess, Tensors, rows
from onestream.postprocess.network import Made, NetworkOutput, Nodes, shapes_text
from onestream.preprocess import Definition
from onestream.wire.tensor_names import MATTE

if TYPE_CHECKING:
    from onestream.postprocess.agreement import Agreement
    from onestream.postprocess.frames import FrameWork, GpuFrames
    from onestream.postprocess.matte.background import Background
    from onestream.preprocess.cuda.device import Device
    from onestream.preprocess.video.common.color import ColorRule


class _Background(BaseModel):
    model_config = Options.model_config


class ColorBackground(_Background):
    """One colour."""

    kind: Literal["color"] = "color"
    rgb: tuple[Level, Level, Level] = Field(default=(0, 177, 64), description="[red, green, blue]")

    def open(self, read_file: Callable[[], bytes]) -> Background:
        from onestream.postprocess.matte.background import Color

        return Color(self.rgb)


class BlurBackground(_Background):
    """The picture itself, blurred."""

    kind: Literal["blur"] = "blur"
    radius: int = Field(default=28, ge=12, le=512, description="about the standard deviation, in pixels of the picture")

    def open(self, read_file: Callable[[], bytes]) -> Background:
        from onestream.postprocess.matte.background import Blur

        return Blur(self.radius)


class PictureBackground(_Background):
    """An image file. It is scaled to cover the picture."""

    kind: Literal["picture"] = "picture"
    path: str = Field(description="relative to the pipeline file")

    def open(self, read_file: Callable[[], bytes]) -> Background:
        from onestream.postprocess.matte.background import Picture, read_picture

        return Picture(read_picture(read_file()))


AnyBackground = ColorBackground | BlurBackground | PictureBackground


class Matte(Options):
    """Which pixels belong to a person, from a network with one output (batch, height, width) of probabilities."""

    ends_in_graph: ClassVar[bool] = True
    takes_one_size: ClassVar[bool] = True
    loops: ClassVar[tuple[str, ...]] = ("onestream.postprocess.matte.kernels", "onestream.postprocess.matte.background")

    kind: Literal["matte"] = "matte"
    softness: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="the range of probabilities around one half that stays transparent in parts; 1 keeps them as they "
        "are, less makes edges harder",
    )
    background: AnyBackground = Field(
        default=BlurBackground(), discriminator="kind", description="what a composed video shows behind persons"
    )

    def open(self, opening: Opening) -> Postprocess:
        return lambda outputs, _sizes, _parameters=(): rows(outputs if opening.has_tail else _matte(outputs, self))

    @property
    def frames_file(self) -> tuple[str, str] | None:
        """See ``Options.frames_file``: the picture of a background."""
        return ("background.path", self.background.path) if isinstance(self.background, PictureBackground) else None

    def check_frames_file(self, content: bytes) -> None:
        from onestream.postprocess.matte.background import read_picture

        read_picture(content)

    def agreement(self, pairs: Sequence[tuple[Tensors, Tensors]]) -> Agreement:
        """See ``Options.agreement``: how much of what either matte shows both show."""
        from onestream.postprocess.agreement import of_values

        mattes = [(one[MATTE].astype(np.int64), other[MATTE].astype(np.int64)) for one, other in pairs]
        common = sum(int(np.minimum(one, other).sum()) for one, other in mattes)
        either = sum(int(np.maximum(one, other).sum()) for one, other in mattes)
        changes = np.concatenate([np.abs(one - other).ravel() for one, other in mattes]) / 255
        # Where neither shows anything nothing agrees, as of objects.
        share = common / either if either else 0.0
        return of_values("what either matte shows and both do, sum of minima by sum of maxima", share, changes)

    def behind(self, read_file: Callable[[], bytes]) -> Background:
        return self.background.open(read_file)

    def frame_work(
        self, definition: Definition, read_file: Callable[[], bytes], *, rule: ColorRule, gpu: GpuFrames | None
    ) -> FrameWork:
        """See ``Options.frame_work``: persons are put before the background."""
        from onestream.postprocess.matte.composer import Composer, MatteComposition

        background = self.behind(read_file)
        on_gpu = gpu.composer(background, rule=rule) if gpu else None
        return MatteComposition(Composer(background, rule=rule), definition, on_gpu=on_gpu)

    def prepare_gpu(self, device: Device) -> None:
        from onestream.postprocess.matte.composer_gpu import prepare_composing

        prepare_composing(device)

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        from onestream.postprocess.matte.composer import picture_window

        try:
            for example_hw in ((1080, 1920), (1920, 1080)):
                picture_window(definition, example_hw)
        except ValueError as error:
            raise BadPipeline(f"postprocess matte: {error}") from None
        height, width = definition.output_spec.size_hw
        assert height is not None
        assert width is not None
        if len(outputs) != 1 or outputs[0].dtype != "float32" or outputs[0].dims != (height, width):
            raise BadNetwork(
                f"matte takes one output, float32 [None, {height}, {width}], the size of the definition's output; got "
                f"{shapes_text(outputs)}"
            )
        return {"height": height, "width": width}

    def tail(self, nodes: Nodes, outputs: Sequence[NetworkOutput]) -> dict[str, Made]:
        """The operations of ``onestream.postprocess.matte.composer.alpha``, in float32 and in its order."""
        (output,) = outputs
        stretched = nodes.add("Mul", nodes.add("Sub", output.name, nodes.floats(0.5)), nodes.floats(1 / self.softness))
        within = nodes.add("Clip", nodes.add("Add", stretched, nodes.floats(0.5)), nodes.floats(0), nodes.floats(1))
        levels = nodes.add("Add", nodes.add("Mul", within, nodes.floats(255)), nodes.floats(0.5))
        return {MATTE: Made(nodes.cast(levels, "uint8"), "uint8", output.dims)}


def _matte(outputs: Tensors, options: Matte) -> Tensors:
    from onestream.postprocess.matte.composer import alpha

    (person,) = outputs.values()
    return {MATTE: alpha(person, softness=options.softness)}
