"""The JSON files of a model of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onestream.preprocess.errors import CannotImport
from onestream.preprocess.interop.huggingface.network import check_network
from onestream.preprocess.user_files import read_bounded

Config = Mapping[str, Any]
_MOST_BYTES = 1 << 24
"""Of a config; that of a network with 100,000 named classes has some megabytes."""
_MOST_DEPTH = 32


def network_beside(path: Path) -> Config | None:
    """The config of the network beside an image processor's; None where there is none.

    Raises ``CannotImport`` where it cannot be read, or contradicts the image processor.
    """
    beside = path.with_name("config.json")
    if beside == path or not beside.is_file():
        return None
    network = read_json(beside)
    check_network(network)
    return network


def read_json(path: Path) -> Config:
    """The object in a JSON file. Raises ``CannotImport``."""
    try:
        content = json.loads(read_bounded(path, _MOST_BYTES).decode())
        _check_depth(content)
    except OSError as error:
        raise CannotImport(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise CannotImport(f"{path}: it nests more than {_MOST_DEPTH} lists and objects") from None
    except ValueError as error:
        raise CannotImport(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CannotImport(f"{path}: expected fields such as 'image_processor_type', got {type(content).__name__}")
    return content


def _check_depth(value: Any) -> None:
    """Raise ``RecursionError`` for what nests deeply, which Python's own functions do not all survive."""
    values = [value]
    for _ in range(_MOST_DEPTH + 1):
        values = [
            inner
            for outer in values
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not values:
            return
    raise RecursionError
