"""What the kinds of postprocessing have in common: their options, and the function that they open."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from onestream.postprocess.network import Made, NetworkClasses, NetworkOutput, Nodes
from onestream.postprocess.parameters import Parameters, RequestParameter
from onestream.preprocess import Definition
from onestream.preprocess.geometry import Quads, Size, quads_of
from onestream.wire.kinds import KINDS
from onestream.wire.tensor_names import BOXES, DEGREES, QUADS

if TYPE_CHECKING:
    from onestream.postprocess.agreement import Agreement
    from onestream.postprocess.frames import FrameWork, GpuFrames
    from onestream.postprocess.matte.background import Background
    from onestream.preprocess.cuda.device import Device
    from onestream.preprocess.video.common.color import ColorRule

_QUARTER = 90
Level = Annotated[int, Field(ge=0, le=255)]
Tensors = dict[str, npt.NDArray[Any]]
Names = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.object_]]
ParitySection = Literal["", "boxes", "classes", "regions", "texts"]
"""What a report of parity tells of the answers: what became of each, by what it is; empty of those that say nothing."""
OptionsT = TypeVar("OptionsT", bound="Options")


def one_line(name: str) -> str:
    """A name as it is. Raises ``ValueError`` where it is empty or has several lines."""
    if not name.strip() or name.splitlines() != [name]:
        raise ValueError("a name must be one line, and not empty")
    return name


Labels = str | Annotated[tuple[Annotated[str, AfterValidator(one_line)], ...], Field(min_length=1)] | None
"""The names of a network's classes, in their order, or where they are."""


class Postprocess(Protocol):
    """From a network's outputs for a batch to what is returned for each picture."""

    def __call__(
        self, outputs: Tensors, sizes: Sequence[Size], parameters: Sequence[Parameters] = (), /
    ) -> list[Tensors]:
        """What is returned for each picture, with a leading dimension of 1.

        ``outputs`` have a leading batch dimension, ``sizes`` are (height, width) of each upright picture in pixels. A
        kind whose options say ``takes_image_size = False`` does not read them, so they may be empty. ``parameters`` are
        those of each picture's request, within the bounds of the options' ``request_parameters``; none where empty.
        """


@dataclass(frozen=True, slots=True)
class Opening:
    """What a kind opens its function with.

    ``labels`` are the names of the network's classes; ids serve as names where there are none. Those of a text are the
    characters of its classes from 1 on. ``has_tail`` says that the network ends in the kind's ``tail``. ``dropped`` is
    called with the number of a batch's unusable values, not finite or of no known class: candidates
    of a detector, cells of a map of text, rows of angles, steps of a text. ``full`` is called for each picture whose
    candidates above the threshold filled the detector's ``max_candidates``.
    """

    definition: Definition
    labels: Sequence[str] | None = None
    has_tail: bool = False
    dropped: Callable[[int], None] = lambda _count: None
    full: Callable[[], None] = lambda: None


class Options(BaseModel):
    """Base of the kinds: frozen, no unknown fields.

    ``takes_image_size``: whether results depend on the size of the picture, beside the network's outputs.
    ``takes_long``: whether results take so long that one process for all cores would hold the others up.
    ``leaves_with_pictures``: whether results leave beside the pictures of a video that they are drawn into.
    ``names_objects``: whether a later stage may choose among their classes, and metrics count them.
    ``labels_have_spaces``: whether a line of the labels file may be a space.
    ``loops``: modules of compiled loops of what is done to the pictures of a video; none of kinds that do nothing.
    ``parity_section``: what a report tells of the answers.
    Of a cascade's stages: ``finds_regions`` in a picture, for later stages, which ``finds_lines`` of text;
    ``takes_regions``, so that a later stage may end in it; ``turns_regions``, so that those after it take them turned;
    ``kind_of_cascade`` is the kind of one that ends in it.
    Of the network: ``needs_no_network``, whether it may answer what the definition gives; ``network_gives``, the
    outputs that the build makes of its own as the options say, none where those stay; ``ends_in_graph``, whether nodes
    at its end can compute the answer; ``takes_one_size`` of input; ``needs_output_sizes``, also those that follow from
    the input's; ``ranks_classes``, whether the answer are the best classes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if TYPE_CHECKING:
        # A field of each kind: one here would stand first in their JSON.
        kind: str

    takes_image_size: ClassVar[bool] = False
    takes_long: ClassVar[bool] = False
    leaves_with_pictures: ClassVar[bool] = False
    finds_regions: ClassVar[bool] = False
    finds_lines: ClassVar[bool] = False
    takes_regions: ClassVar[bool] = False
    turns_regions: ClassVar[bool] = False
    kind_of_cascade: ClassVar[str] = "regions"
    names_objects: ClassVar[bool] = False
    ends_in_graph: ClassVar[bool] = False
    takes_one_size: ClassVar[bool] = False
    needs_output_sizes: ClassVar[bool] = False
    ranks_classes: ClassVar[bool] = False
    needs_no_network: ClassVar[bool] = False
    network_gives: ClassVar[tuple[str, ...]] = ()
    loops: ClassVar[tuple[str, ...]] = ()
    labels_have_spaces: ClassVar[bool] = False
    parity_section: ClassVar[ParitySection] = ""

    @property
    def named_labels(self) -> tuple[str, Labels]:
        """The option that names the classes, and its value."""
        return "labels", None

    @property
    def compares_outputs(self) -> bool:
        """Whether the network's outputs can be compared value by value; what is found comes in any order."""
        return self.parity_section in ("", "classes")

    @property
    def most_found(self) -> int:
        """How many objects there may be in a picture, of kinds that find them."""
        return 0

    def class_names(self, labels: Sequence[str] | None) -> Sequence[str]:
        """The names of a network's classes, in their order; as many as are known."""
        return labels or ()

    @property
    def id_of_class(self) -> tuple[int, ...] | None:
        """The ids of the network's classes in the answer, where they are others than 0, 1, 2 and so on."""
        return None

    @property
    def not_in_a_stage(self) -> str:
        """Why these options are not for a stage of a cascade; empty where they are."""
        return ""

    @property
    def request_parameters(self) -> tuple[RequestParameter, ...]:
        """The options that one request may set, and their bounds: none of most kinds."""
        return ()

    def keeps(self, answer: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Whether a region of which a stage of a cascade gives this has a row in the cascade's answer."""
        return True

    def order(self, quads: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """The order of the regions in the answer; a first stage found them, later ones may have turned them."""
        return np.arange(len(quads))

    def open(self, opening: Opening) -> Postprocess:
        """From a network's outputs to what is returned for each picture.

        What finds regions says in ``left_out`` how many were beyond ``max_detections`` or ``max_lines``.
        """
        raise NotImplementedError

    # ---- what is asked where two networks are compared -----------------------------------------------------------

    def open_compared(self, opening: Opening) -> Postprocess:
        """The function to the answers that ``agreement`` compares, where they are others than the kind's."""
        return self.open(opening)

    def agreement(self, pairs: Sequence[tuple[Tensors, Tensors]]) -> Agreement:
        """How far answers to the same pictures agree, those that are right first."""
        from onestream.postprocess.agreement import of_predictions, of_vectors
        from onestream.wire.comparing import compare

        row = KINDS[self.kind]
        if not row.is_found and not row.said:
            return of_vectors(pairs)
        return of_predictions([compare(self.kind, *pair) for pair in pairs])

    # ---- what streams ask, of kinds that work on frames -------------------------------------------------------------

    def frame_work(
        self, definition: Definition, read_file: Callable[[], bytes], *, rule: ColorRule, gpu: GpuFrames | None
    ) -> FrameWork:
        """What is done to the frames of a new stream. ``read_file`` gives what ``frames_file`` names; ``gpu`` decodes.

        Raises ``OSError`` where that file is missing and ``ValueError`` where it cannot be read.
        """
        raise NotImplementedError

    def prepare_gpu(self, device: Device) -> None:
        """Compile what ``frame_work`` does on a GPU."""

    def behind(self, read_file: Callable[[], bytes]) -> Background | None:
        """A new background for what the answer cuts out; None where it cuts nothing out. Raises as ``frame_work``."""
        return None

    # ---- what the build asks ----------------------------------------------------------------------------------------

    @property
    def network_file(self) -> tuple[str, str] | None:
        """The option that names a file with an array for what the build makes of the network, and the path in it."""
        return None

    @property
    def frames_file(self) -> tuple[str, str] | None:
        """The option that names a file which a stream needs beside the model, and the path in it."""
        return None

    def check_frames_file(self, content: bytes) -> None:
        """Raise ``ValueError`` where the content of ``frames_file`` cannot be used."""

    def check_values(self, outputs: Sequence[NetworkOutput], runs: Iterable[Tensors]) -> None:
        """Raise ``BadNetwork`` where the network's values, of the package's photos and noise, are not what is read."""

    def labels_for(self, classes: NetworkClasses, labels: str | None) -> str | None:
        """The text of the labels file that belongs to a network, from that of the file that the options name.

        Raises ``BadPipeline`` where the labels are not those of its classes.
        """
        return labels

    @property
    def not_given(self) -> tuple[str, ...]:
        """The tensors of the kind's row on the wire that these options leave out."""
        return ()

    def suited_to(self: OptionsT, outputs: Sequence[NetworkOutput]) -> OptionsT:
        """With *softmax*, *sigmoid* or *none* in the place of *auto*, whichever suits the network.

        Raises ``BadNetwork`` or ``BadPipeline`` where the network or the options are others than the kind takes.
        """
        return self

    def lengths(self, outputs: Sequence[NetworkOutput], definition: Definition, names: int | None) -> dict[str, int]:
        """The lengths in the shapes of the kind's row on the wire that are fixed, by their names there.

        ``names`` says how many names of classes there are. Raises as ``suited_to``.
        """
        return {}

    def tail(self, nodes: Nodes, outputs: Sequence[NetworkOutput]) -> dict[str, Made]:
        """Append the nodes that compute the answer, by its tensors' names, of kinds whose ``ends_in_graph``."""
        raise NotImplementedError


def rows(tensors: Tensors) -> list[Tensors]:
    """Batched tensors cut up: one entry for each row, with a leading dimension of 1."""
    count = len(next(iter(tensors.values())))
    return [{name: value[row : row + 1] for name, value in tensors.items()} for row in range(count)]


def names_of(labels: Sequence[str] | None) -> Names:
    """The function from classes to their names, as bytes."""
    if labels is None:
        return lambda classes: classes.astype(str).astype("S").astype(object)
    known = np.array([label.encode() for label in labels], object)
    return lambda classes: known[classes]


def count_bad(bad: npt.NDArray[np.bool_], dropped: Callable[[int], None]) -> None:
    """Report the number of unusable values, if any."""
    if count := int(np.count_nonzero(bad)):
        dropped(count)


# ---- the regions that the stages of a cascade tell -------------------------------------------------------------------


def place_of(names: Container[str]) -> str:
    """The tensor that says where regions are, of those that a stage gives."""
    return BOXES if BOXES in names else QUADS


def corners_of(tensors: Mapping[str, npt.NDArray[Any]]) -> Quads:
    """The corners (n, 4, 2) of the regions that a stage found, from its tensors without the batch."""
    return tensors[QUADS] if place_of(tensors) == QUADS else quads_of(tensors[BOXES])


def turned_by(tensors: Mapping[str, npt.NDArray[Any]], quads: Quads) -> Quads:
    """The corners of regions as a stage turns them, whose tensors have a row for each; most turn none."""
    if DEGREES not in tensors:
        return quads
    from onestream.preprocess.quads import turned

    return turned(quads, tensors[DEGREES] // _QUARTER)
