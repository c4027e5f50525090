"""Reads Triton's log and error texts, and says in one line what went wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from onestream.serving.child_process import describe_exit
from onestream.serving.server.errors import MissingLibrary, ModelLoadFailed, PortInUse, ServerError, TritonDied

_MISSING_LIBRARY = re.compile(
    r"([\w.+-]+\.so[\w.]*): cannot open shared object file|version [`'](GLIBC\w*_[\d.]+)' not found"
)
_PORT_IN_USE = re.compile(r"failed to start (HTTP|GRPC|Metrics) service: .*already in use")
_BAD_FLAG = re.compile(r"^(?:.*: (unrecognized option .*)|Bad option: (.*)\n(.*))$", re.MULTILINE)
_STATUS_PREFIX = re.compile(
    r"^(?:version \d+ is at UNAVAILABLE state: )?"
    r"(?:(?:Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown|Already exists): )?"
)
_STUB_DIED = re.compile(r"Stub process '[^']*' is not healthy\.?")
_POLL_FAILED = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>[^\"]*)")
_PARSE_ERROR = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<reason>.*)")
_ENSEMBLE_FAILED = re.compile(r"Invalid argument: (?P<reason>ensemble '?(?P<model>[\w.-]+)'? [^\"]*)")


DIED_LOADING = "its process died while it was loading"
"""The reason of a model whose process ended, or was killed, for no fault that Triton knows of."""


def one_line(text: str) -> str:
    """Cut the trace ("At: …") from a message of Triton's Python backend, and join its lines."""
    text = text.replace("\\n", "\n").split("\n\nAt:\n")[0]
    text = " ".join(text.split())
    text = re.sub(r"^\[StatusCode\.\w+\] ", "", text)
    text = re.sub(r"^load failed for model '[^']*': ", "", text)
    text = _STATUS_PREFIX.sub("", text).rstrip("; ")
    return _STUB_DIED.sub(DIED_LOADING, text)


def missing_library(text: str) -> str | None:
    """Find the name of a shared library (or a version of glibc) that a text says is not there."""
    found = _MISSING_LIBRARY.search(text)
    return (found[1] or found[2]) if found else None


def load_error(failed: Mapping[str, str]) -> MissingLibrary | ModelLoadFailed:
    """The error for models that did not load, at least one, with the reason of each.

    Its ``failures`` are those whose fault it is: not the ensembles that only lack one of these.
    """
    causes = {name: reason for name, reason in failed.items() if not reason.startswith("ensemble")} or dict(failed)
    for name, reason in causes.items():
        library = missing_library(reason)
        if library is not None:
            return MissingLibrary(library, f"model '{name}'", causes)
    return ModelLoadFailed(causes)


def model_reason(model: str, reason: str, log: str, folders: Sequence[Path]) -> str:
    """Say in one line why a model is not ready.

    Args:
        model: its name.
        reason: what Triton's index says; empty for a model whose configuration Triton could not read.
        log: Triton's log, searched where the index says nothing.
        folders: their paths are cut from the text.
    """
    if not reason:
        reason = _poll_failure(model, log)
    if not reason:
        reason = next((m["reason"] for m in _ENSEMBLE_FAILED.finditer(log) if m["model"] == model), "")
    cleaned = one_line(reason or "Triton gave no reason")
    for folder in folders:
        cleaned = cleaned.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return cleaned


def _poll_failure(model: str, log: str) -> str:
    """Find why Triton could not read a model's configuration; the parser's complaint is a line of its own before."""
    for failure in _POLL_FAILED.finditer(log):
        if failure["model"] == model:
            complaints = _PARSE_ERROR.findall(log, 0, failure.start())
            if "failed to read text proto" in failure["reason"] and complaints:
                return f"config.pbtxt is malformed: {complaints[-1]}"
            return failure["reason"]
    return ""


def explain_exit(log: str, *, returncode: int, host: str, ports: Mapping[str, int], log_path: Path) -> ServerError:
    """Say why Triton ended, from its log: a port, a library, a flag, or just how it ended.

    Args:
        log: the text of its log.
        returncode: its exit code, or minus the signal's number.
        host: the address it was told to bind.
        ports: port by service: *http*, *grpc*, *metrics*.
        log_path: named in the message where nothing better is known.
    """
    taken = _PORT_IN_USE.search(log)
    if taken is not None:
        service = taken[1].lower()
        return PortInUse(host, ports[service], service)
    library = missing_library(log)
    if library is not None:
        return MissingLibrary(library, "tritonserver")
    complaint = _BAD_FLAG.search(log)
    if complaint is not None:
        return ServerError(f"tritonserver did not start: {' '.join(filter(None, complaint.groups()))}")
    return TritonDied(describe_exit(returncode), returncode, log_path)


def died_before_loading(log: str, returncode: int | None) -> str:
    """Say why a model process ended too early for Triton to hear of it; ``returncode`` is None where it is unknown."""
    if (library := _MISSING_LIBRARY.search(log)) is not None:
        return library[0]
    if (complaint := re.search(r"Failed to preinitialize Python stub: (.*)", log)) is not None:
        return complaint[1]
    return f"its process {'ended' if returncode is None else describe_exit(returncode)} before it began to load"


def services_started(log: str) -> bool:
    """Tell whether the HTTP, gRPC and metrics services listen. They start when all models are loaded or refused."""
    return all(f"Started {name} at " in log for name in ("HTTPService", "GRPCInferenceService", "Metrics Service"))


def models_unloaded(log: str) -> bool:
    """Tell whether a Triton that was told to stop has unloaded every model: no request is left that it could answer."""
    return "Found 0 live models and 0 in-flight non-inference requests" in log


def pending_models(log: str) -> list[str]:
    """Find the models that Triton began to load and has neither loaded nor refused, in order of appearance."""
    began = dict.fromkeys(re.findall(r"\"loading: ([^\"]+):\d+\"", log))
    done = set(re.findall(r"(?:successfully loaded|failed to load) '([^']+)'", log))
    return [name for name in began if name not in done]
