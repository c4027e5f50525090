"""The errors of preprocessing, and what it says once of pictures and videos where it passes something over.

::

    PreprocessError
    ├── BadImage          this image cannot be processed; its batch-mates are not affected
    │   ├── OutOfMemory   not for a fault of its own: there is too little memory now, and it may be tried again
    │   └── BadValue      not for a fault of its own either: of a value that its request has beside it
    │       └── BadInput  of the network's inputs, which breaks a limit
    ├── CannotCompile     a backend cannot execute a definition exactly
    │   └── CannotVary    an augmentation has an operation that cannot vary what it is given
    ├── BackendMissing    a backend's package is not installed; the message names the command
    ├── CannotImport      other preprocessing that a definition cannot state exactly, or that is not there
    ├── BadDataset        there is nothing to train on where a source points, or it is malformed
    ├── BadSample         a sample of a training set cannot be used; the message names it
    └── StampMismatch     two stamped definitions differ; the message names the first field

A malformed definition raises ``pydantic.ValidationError``, which names the field and what it accepts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar, Literal

from onestream.wire.refusals import SAID_ONCE, ImageRefusal, bad_image, bad_input, shortened

BadImageCode = ImageRefusal | Literal["out_of_memory", "bad_parameter", "bad_input"]
"""The last three never travel as codes of a bad image."""


class PreprocessError(Exception):
    """Base of everything this room raises on purpose."""


class BadImage(PreprocessError):
    """One image that cannot be processed.

    ``code`` is stable and machine-readable, ``reason`` says what was seen and what is allowed, in at most 200
    characters. ``str()`` is the text that travels over the wire (``onestream.wire.refusals.bad_image``).
    """

    def __init__(self, code: BadImageCode, reason: str) -> None:
        self.code: BadImageCode = code
        self.reason = shortened(reason)
        super().__init__(bad_image(code, self.reason))

    def __reduce__(self) -> tuple[type[BadImage], tuple[BadImageCode, str]]:
        """Pickle by code and reason, so that the error crosses processes."""
        return type(self), (self.code, self.reason)

    def named(self, name: str) -> BadImage:
        """The same error of one of several images of a request, which is called so."""
        return BadImage(self.code, f"{name}: {self.reason}")

    def as_result(self) -> BadImage:
        """This error to be kept: without the frames that it passed through.

        They hold the whole batch's pictures and often the error itself, which only Python's garbage collector would
        see, and it looks at old objects seldom: the memory of a server rises for days.
        """
        self.__traceback__ = self.__context__ = None
        return self


class OutOfMemory(BadImage):
    """There is too little memory for this image now; nothing is known against the image itself.

    ``code`` is ``out_of_memory``. It never travels as a bad image: a server answers that it is not available now.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("out_of_memory", reason)

    def named(self, name: str) -> BadImage:  # noqa: ARG002 (memory is short for all)
        """See ``BadImage.named``: it is no fault of that image."""
        return self

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[str]]:  # type: ignore[override]
        return type(self), (self.reason,)


class BadValue(BadImage):
    """A value that a request has beside its image is refused: only this request has no answer, as of a bad image.

    ``value`` is the code; ``str()`` is the subclass's.
    """

    value: ClassVar[BadImageCode]

    def __init__(self, reason: str) -> None:
        super().__init__(self.value, reason)

    def __reduce__(self) -> tuple[type[BadValue], tuple[str]]:  # type: ignore[override]
        return type(self), (self.reason,)


class BadInput(BadValue):
    """What a request gives the network beside the image breaks a limit."""

    value = "bad_input"

    def __str__(self) -> str:
        return bad_input(self.reason)


class CannotCompile(PreprocessError):
    """A backend refuses a definition that it cannot execute exactly."""


class CannotVary(CannotCompile):
    """An augmentation has an operation that cannot vary what it is given."""


class BackendMissing(PreprocessError):
    """A backend's package is not installed."""


class CannotImport(PreprocessError):
    """Preprocessing of another library that a definition cannot state exactly, or a source that names none."""


class BadDataset(PreprocessError):
    """A source of training data that holds no samples, or is malformed."""


class BadSample(PreprocessError):
    """A sample of a training set that cannot be used."""


class StampMismatch(PreprocessError):
    """A model and the files beside it carry different definitions."""


_LOG = logging.getLogger("onestream")
_said: set[str] = set()


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


def send_notices_to(write: Callable[[str], None]) -> None:
    """Hand every line to ``write``, and to nobody else, from now on."""
    _LOG.handlers, _LOG.propagate = [_Lines(write)], False


def say_once(text: str) -> None:
    """Log a warning, unless this process said the same before."""
    if text not in _said:
        _said.add(text)
        _LOG.warning("%s %s", text, SAID_ONCE)
