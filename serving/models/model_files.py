"""What lies in a model's folder, checked against its stamp as it is read."""

from __future__ import annotations

from pathlib import Path

from onestream.preprocess import Definition, StampMismatch, first_difference
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.stamp import check_same


def read_definition(folder: Path, stamped: Definition, digest: str, *, model: str) -> Definition:
    """The definition in a folder, which the configuration of ``model`` must carry too.

    ``stamped`` and ``digest`` are the configuration's. Raises ``StampMismatch`` where they differ.
    """
    definition = Definition.from_json((folder / "definition.json").read_text())
    if definition.digest != digest:
        raise StampMismatch(
            f"model {model}: config.pbtxt was built with definition {digest[:12]}, the definition.json beside "
            f"it is {definition.digest[:12]}; first difference: "
            f"{first_difference(stamped, definition) or 'the digest itself'}. "
            "Build the pipeline again: onestream build"
        )
    return definition


def open_network(
    path: Path,
    definition: Definition,
    *,
    threads: int,
    model: str,
    engine: type[OnnxRuntimeEngine] = OnnxRuntimeEngine,
) -> OnnxRuntimeEngine:
    """A network's engine on the CPU. Raises ``StampMismatch`` where it was built with another definition."""
    opened = engine(path, threads=threads)
    stamped = opened.definition
    if stamped is None:
        raise StampMismatch(f"model {model}: {path.name} carries no definition; build it with onestream build")
    check_same(stamped, definition, one_is=path.name, other_is=f"model {model}")
    return opened
