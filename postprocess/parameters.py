"""What one request may set of a pipeline's postprocessing: numbers, within the pipeline's bounds."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

from onestream.preprocess.errors import BadValue
from onestream.wire.limits import is_reserved
from onestream.wire.refusals import bad_parameter

Parameters = Mapping[str, float]
"""The numbers that one request sets, by the names of the options in whose place they are."""

NO_PARAMETERS: Parameters = {}

_LONGEST_NUMBER = 64
"""Characters of a number that is given as text."""


class BadParameter(BadValue):
    """A parameter of a request that the pipeline does not take, or a value out of its bounds."""

    value = "bad_parameter"

    def __str__(self) -> str:
        return bad_parameter(self.reason)


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """A number from ``least`` to ``most``, whole where ``is_whole``, that a request may set."""

    name: str
    least: float
    most: float
    is_whole: bool = False

    def __str__(self) -> str:
        return f"a {'whole ' if self.is_whole else ''}number from {self.least:g} to {self.most:g}"

    def read(self, value: object) -> float:
        """The number in a value of JSON; Triton 2.51 takes no fractions over HTTP, so texts such as "0.4" hold them.

        Raises ``ValueError`` where it holds none, or one out of bounds.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number or (isinstance(value, str) and len(value) <= _LONGEST_NUMBER):
            number = float(value)  # type: ignore[arg-type]  # one of the two
            if self.least <= number <= self.most and (number.is_integer() or not self.is_whole):
                return int(number) if self.is_whole else number
        raise ValueError(f"expected {self}")


def read_parameters(given: Mapping[str, object], allowed: Mapping[str, RequestParameter]) -> dict[str, float]:
    """The numbers that a request sets, by the names of ``allowed``; Triton's own parameters are passed over.

    Raises ``BadParameter`` for any other name and for a value that ``allowed`` does not take.
    """
    found: dict[str, float] = {}
    for name, value in given.items():
        if is_reserved(name):
            continue
        parameter = allowed.get(name)
        if parameter is None:
            known = ", ".join(sorted(allowed)) or "no parameters"
            raise BadParameter(f"{reprlib.repr(name)}: this pipeline takes {known}")
        try:
            found[name] = parameter.read(value)
        except (ValueError, OverflowError):
            raise BadParameter(f"{name}={reprlib.repr(value)}: expected {parameter}") from None
    return found
