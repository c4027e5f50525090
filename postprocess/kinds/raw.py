"""A network's outputs as they are."""

from __future__ import annotations

from typing import ClassVar, Literal

from onestream.postprocess.kinds.base import Opening, Options, ParitySection, Postprocess, rows


class Raw(Options):
    """The network's outputs as they are."""

    parity_section: ClassVar[ParitySection] = "classes"
    needs_no_network: ClassVar[bool] = True

    kind: Literal["raw"] = "raw"

    def open(self, opening: Opening) -> Postprocess:
        return lambda outputs, _sizes, _parameters=(): rows(outputs)
