"""The errors of a call, told apart by what the caller can do about them.

::

    OnestreamError                    every error of this package
    ├── CannotConnect                 nothing answered at the address, or the connection broke
    ├── TimedOut                      the server was reached, but no answer came before the deadline
    ├── ServerRefused                 the server answered, and said no (``status`` holds its code)
    │   ├── ServerOverloaded          its queue is full, or the request waited in it too long: send slower
    │   ├── ServerUnavailable         the model is starting, stopping, being restarted, or has no room for
    │   │                             this (large) image now: try again soon
    │   ├── ModelNotFound             no model of this name is served
    │   ├── InvalidRequest            the request does not fit the model (names, types, shapes)
    │   └── ServerFailed              the model or the server failed while it worked
    ├── BadImage                      this image is refused (``code``, ``reason``); other images are fine
    ├── BadStream                     this video stream is refused or was ended (``code``, ``reason``)
    ├── UnexpectedResponse            the answer is malformed, too large, or not what a pipeline of this kind returns
    ├── UnsupportedInput              the object given is no image or no source of video (also a TypeError)
    ├── UnreadableInput               the file or video source given cannot be read (also an OSError)
    │   └── TruncatedInput            the video file was cut short; what is there was read
    ├── SharedMemoryUnavailable       the server cannot open shared memory of this process
    └── ClientClosed                  the client was closed before or during the call

Messages say what was seen and what was expected. They never contain a path of the server or a stack trace.
"""

from __future__ import annotations

from onestream.wire.refusals import bad_image, bad_stream

_LONGEST_NAME = 200
"""Letters of a file's or source's name that a message shows."""


class OnestreamError(Exception):
    """Base class of every error that this package raises on purpose.

    ``request_id`` is the id of the call for one image that failed, under which the server's log and traces know it if
    it came that far; None for other calls.
    """

    request_id: str | None = None


class CannotConnect(OnestreamError):
    """Nothing answered at the address within ``connect_timeout_s``, or an open connection broke."""


class TimedOut(OnestreamError):
    """The deadline passed before the answer came. The server may still be working on the request."""


class ServerRefused(OnestreamError):
    """The server answered with an error.

    ``status`` is the server's code in gRPC spelling, for example ``"INVALID_ARGUMENT"``, also over HTTP.
    """

    def __init__(self, message: str, *, status: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_refusal, (type(self), str(self), self.status), self.__dict__


class ServerOverloaded(ServerRefused):
    """The model's queue is full, or the request waited in it longer than the server allows."""


class ServerUnavailable(ServerRefused):
    """The model is known but does not serve this at the moment: it is starting, stopping or being restarted, too many
    large images wait to be decoded, or memory for this one cannot be had. The message says which."""


class ModelNotFound(ServerRefused):
    """The server has no model of this name."""


class InvalidRequest(ServerRefused):
    """The request does not fit the model's inputs."""


class ServerFailed(ServerRefused):
    """The model or the server failed while it worked on the request."""


class BadImage(OnestreamError):
    """This image was refused, by the server or already by the client. Sending it again changes nothing.

    ``code`` is one of ``onestream.wire.refusals.ImageRefusal`` (a newer server may send others); ``reason`` is a
    sentence for people.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return bad_image(self.code, self.reason)


class BadStream(OnestreamError):
    """This video stream was refused or ended by the server, or by the client because the server would do so.

    ``code`` is one of ``onestream.wire.refusals.StreamRefusal``, or ``ended`` where the server says that it is done too
    early (a newer server may send others); ``reason`` is a sentence for people.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return bad_stream(self.code, self.reason)


class UnexpectedResponse(OnestreamError):
    """The server answered, but not in the way the wire contract says: malformed, too large, or something else."""


class UnsupportedInput(OnestreamError, TypeError):
    """The object given as an image or video source is of a type, dtype, shape or mode that cannot be sent."""


class UnreadableInput(OnestreamError, OSError):
    """The file given as an image, or the source of a video stream, cannot be read.

    ``name`` is the file or source, empty where it has no name; ``reason`` is a sentence for people.
    """

    def __init__(self, reason: str, *, name: str = "") -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        # A name may be the content of a file that was given as a path.
        name = self.name if len(self.name) <= _LONGEST_NAME else f"{self.name[:_LONGEST_NAME]}…"
        # repr() shows what could command a terminal as an escape.
        name = name if name.isprintable() else repr(name)
        return f"{name}: {self.reason}" if name else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason,), self.__dict__


class TruncatedInput(UnreadableInput):
    """The video file ends before its container says. Raised after the results of what is there."""


class SharedMemoryUnavailable(OnestreamError):
    """The server cannot open a shared memory region of this process: it is closed to callers, or runs elsewhere."""


class ClientClosed(OnestreamError):
    """The client was closed before or during the call."""


def _rebuild_refusal(kind: type[ServerRefused], message: str, status: str) -> ServerRefused:
    return kind(message, status=status)
