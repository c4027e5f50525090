"""Writes options into the ``serving`` section of a pipeline file and leaves every other character as it is.

The file is not dumped anew: values are replaced and lines inserted at the places that the YAML parser names, so
comments, blank lines, quotes, indentation and line ends stay what their author made them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from onestream.measure.tune.knobs import Value

SECTION = "serving"


class CannotEdit(Exception):
    """The file's YAML cannot be changed in place; the message says what to write by hand."""


def edited(text: str, changes: Mapping[str, Value]) -> str:
    """The text of a pipeline file with these fields of ``serving`` set; a field of a field is named ``gpu.decode``.

    The new text means what the old one meant but for these fields: that is checked. Raises ``CannotEdit`` where it
    cannot be done so, as with anchors and aliases.
    """
    new = text
    try:
        for field, value in changes.items():
            new = _with(new, [SECTION, *field.split(".")], value)
        same = yaml.safe_load(new) == _expected(text, changes)
    except (yaml.YAMLError, _NotPlain):
        same = False
    if not same:
        by_hand = "; ".join(f"{SECTION}.{field}: {value}" for field, value in changes.items())
        raise CannotEdit(f"its YAML is too intricate to be changed in place; set by hand: {by_hand}")
    return new


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content at once, so that nobody ever reads half of it. Its mode stays; a link stays a link."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """A file's content with its own line ends."""
    return path.read_bytes().decode("utf-8")


class _NotPlain(Exception):
    """Anchors, aliases or a structure that is not mappings of scalars."""


def _with(text: str, path: list[str], value: Value) -> str:
    mapping = _mapping(yaml.compose(text, Loader=yaml.SafeLoader))
    for depth, key in enumerate(path):
        pair = _pair(mapping, key)
        rest = path[depth + 1 :]
        if pair is None:
            return _inserted(text, mapping, [key, *rest], value)
        key_node, node = pair
        # The node of an alias is its anchor's, which stands elsewhere and may be used by others.
        if node.start_mark.index < key_node.end_mark.index or _has_anchor(text, node):
            raise _NotPlain
        if not rest:
            if not isinstance(node, yaml.ScalarNode):
                raise _NotPlain
            return text[: node.start_mark.index] + _scalar(value) + text[node.end_mark.index :]
        mapping = _mapping(node)
    raise AssertionError("a path is never empty")


def _inserted(text: str, mapping: yaml.MappingNode, path: list[str], value: Value) -> str:
    """The text with a key that the mapping lacks, after the last key it has."""
    if mapping.flow_style:
        end = mapping.end_mark.index - 1
        before = text[:end].rstrip()
        separator = "" if not mapping.value or before.endswith(",") else ", "
        return before + separator + _flow(path, value) + text[len(before) : end] + text[end:]
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = int(mapping.value[0][0].start_mark.column)
    lines = newline.join(_block(path, value, indent))
    if len(path) > 1 and path[0] == SECTION:
        # A new section goes to the end of the file, after a blank line.
        return text + ("" if text.endswith("\n") else newline) + newline + lines + newline
    end = text.find("\n", _last_mark(mapping))
    if end < 0:
        return text + newline + lines
    line_end = end - 1 if text[end - 1] == "\r" else end
    return text[:line_end] + newline + lines + text[line_end:]


def _last_mark(node: yaml.Node) -> int:
    """Where the last scalar or flow collection of a node ends, without the comments that follow."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _last_mark(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_mark(node.value[-1])
    return int(node.end_mark.index)


def _block(path: list[str], value: Value, indent: int) -> list[str]:
    head, *rest = path
    if not rest:
        return [f"{' ' * indent}{head}: {_scalar(value)}"]
    return [f"{' ' * indent}{head}:", *_block(rest, value, indent + 2)]


def _flow(path: list[str], value: Value) -> str:
    head, *rest = path
    return f"{head}: " + ("{" + _flow(rest, value) + "}" if rest else _scalar(value))


def _scalar(value: Value) -> str:
    return str(value)


def _mapping(node: Any) -> yaml.MappingNode:
    if not isinstance(node, yaml.MappingNode):
        raise _NotPlain
    return node


def _pair(mapping: yaml.MappingNode, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    found = [pair for pair in mapping.value if isinstance(pair[0], yaml.ScalarNode) and pair[0].value == key]
    return found[-1] if found else None


def _has_anchor(text: str, node: yaml.Node) -> bool:
    return text[node.start_mark.index : node.start_mark.index + 1] in ("&", "*", "!")


def _expected(text: str, changes: Mapping[str, Value]) -> Any:
    data = yaml.safe_load(text)
    for field, value in changes.items():
        target = data
        *parents, last = [SECTION, *field.split(".")]
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return data
