"""Files that users name: read whole within a bound, YAML as plain values, and what is wrong with the fields in them."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError


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
    """The value of a YAML text: mappings, lists, strings, numbers and dates only.

    Raises ``BadYaml``, also where there is no value but comments.
    """
    try:
        _check_size(text)
        value = yaml.safe_load(text)
    except BadYaml:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise BadYaml(f"not YAML: {_one_line(error.problem or error.context)}{place}") from None
    except Exception as error:  # PyYAML lets through whatever Python says of a date, number or key that cannot be
        raise BadYaml(f"not YAML: {_one_line(error)}") from None
    if value is None:
        raise BadYaml("it is empty: it holds no values")
    return value


_MOST_PROBLEMS = 20
"""Of one file in one message. The next ones are shown when these are mended."""


def describe(error: ValidationError, kind: type[BaseModel] | None = None) -> str:
    """What is wrong with the fields of a file, in one line: of each problem the field, the reason and what was seen.

    ``kind`` is what the file was read as; with it an unknown field comes with those that are allowed.
    """
    problems = error.errors()
    parts = [_described(problem, kind) for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        parts.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(parts)


def _described(problem: Any, kind: type[BaseModel] | None) -> str:
    place, about = problem["loc"], problem.get("ctx", {})
    field = ".".join(_short(part) for part in place)
    if problem["type"] == "extra_forbidden":
        reason = f"no such field{instead(place[-1], _fields_at(place[:-1], kind) if kind else [])}"
    elif problem["type"] == "union_tag_invalid":
        tag, chooser, allowed = (about[name].replace("'", "") for name in ("tag", "discriminator", "expected_tags"))
        reason = f"no {chooser} {_short(repr(tag))}{instead(tag, allowed.split(', '))}"
    else:
        reason = problem["msg"].removeprefix("Value error, ")
        # Our own reasons say which of several fields do not go together; the mapping of all of them hides it.
        if problem["type"] != "value_error" or not isinstance(problem["input"], Mapping):
            reason += f" (got {_short(repr(problem['input']))})"
    return f"{field}: {reason}" if field else reason


def instead(name: object, allowed: Sequence[str]) -> str:
    """What to write in the place of an unknown name, in brackets: the nearest of those allowed, and all; or nothing."""
    if not allowed:
        return ""
    nearest = get_close_matches(str(name), allowed, n=1)
    meant = f"did you mean {nearest[0]}? " if nearest else ""
    return f" ({meant}allowed: {', '.join(allowed)})"


def _fields_at(place: Sequence[int | str], kind: type[BaseModel]) -> list[str]:
    """The fields that there are at a place of ``kind``; none where its JSON schema does not tell."""
    whole = kind.model_json_schema()
    options = [whole]
    for part in place:
        options = [inner for one in options for inner in _inner(one, part, whole)]
    return [name for one in options for name in one.get("properties", ())]


def _inner(schema: dict[str, Any], part: int | str, whole: dict[str, Any]) -> list[dict[str, Any]]:
    """What JSON schemas say of the value under ``part``, a field, an index or the tag of a kind, alternatives apart."""
    tagged = schema.get("discriminator", {}).get("mapping", {}).get(part)
    rest = schema.get("additionalProperties")
    found = (
        {"$ref": tagged} if tagged else None,
        schema.get("properties", {}).get(part),
        schema.get("items") if isinstance(part, int) else None,
        rest if isinstance(rest, dict) else None,
    )
    alternatives = [one for inner in found if inner for one in inner.get("anyOf", [inner])]
    return [whole["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in alternatives]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
