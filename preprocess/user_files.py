"""Files that users name: read whole within a bound, and YAML as plain values, with a bound on what it may grow to."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from typing import Any

import yaml


class FileTooLarge(OSError):
    """A file has more bytes than are read."""


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file. Raises ``OSError``, whose ``strerror`` says why, also where it is no regular file.

    ``FileTooLarge`` where it has more than ``max_bytes``, whatever size it claims.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    size = status.st_size
    if size <= max_bytes:
        with path.open("rb") as file:
            # Files of /proc claim to be empty, and others grow.
            content = file.read(max_bytes + 1)
        size = len(content)
    if size > max_bytes:
        raise FileTooLarge(errno.EFBIG, f"it has {size} bytes; at most {max_bytes} are read")
    return content


MAX_CHARACTERS = 100_000
"""The longest text; a pipeline file has some thousand characters."""
MAX_VALUES = 10_000
"""Of a text whose aliases are written out; a pipeline file has some hundred. More come of aliases of aliases."""
MAX_DEPTH = 32
"""Lists and mappings inside each other; a pipeline file has 5. PyYAML reads them by recursion."""


class BadYaml(yaml.YAMLError):
    """The text is not YAML, or too much of it; the message is one line."""


def read_plain_yaml(text: str) -> Any:
    """The value of a YAML text: mappings, lists, strings, numbers and dates only. Raises ``BadYaml``."""
    try:
        _check_size(text)
        return yaml.safe_load(text)
    except BadYaml:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise BadYaml(f"not YAML: {_one_line(error.problem or error.context)}{place}") from None
    except Exception as error:  # PyYAML lets through whatever Python says of a date, number or key that cannot be
        raise BadYaml(f"not YAML: {_one_line(error)}") from None


def _check_size(text: str) -> None:
    """Count the values as if every alias were written out."""
    if len(text) > MAX_CHARACTERS:
        raise BadYaml(f"it has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    counts, names, anchors = [0], [""], dict[str, int]()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            counts.append(1)
            names.append(event.anchor or "")
        elif isinstance(event, yaml.CollectionEndEvent):
            values = counts.pop()
            anchors[names.pop()] = values
            counts[-1] += values
        elif isinstance(event, yaml.ScalarEvent):
            anchors[event.anchor or ""] = 1
            counts[-1] += 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise BadYaml(f"the value {str(event.anchor)[:40]!r} contains itself")
            counts[-1] += anchors.get(str(event.anchor), 1)
        if len(counts) > MAX_DEPTH:
            raise BadYaml(f"it nests more than {MAX_DEPTH} lists and mappings")
        if sum(counts) > MAX_VALUES:
            raise BadYaml(f"it has more than {MAX_VALUES} values, aliases written out")


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split())[:200]
