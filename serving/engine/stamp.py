"""The stamp: a definition carried by the model it belongs to, and checked wherever it is read.

An ONNX file carries it in ``metadata_props``; a Triton model in ``definition.json`` beside it and in the ``parameters``
of its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onestream.preprocess import Definition, StampMismatch, first_difference

DEFINITION_KEY = "onestream.definition"
DIGEST_KEY = "onestream.definition_digest"


def stamp_of(definition: Definition) -> dict[str, str]:
    """Metadata entries that carry a definition."""
    return {DEFINITION_KEY: definition.canonical_json(), DIGEST_KEY: definition.digest}


def stamp_onnx(path: Path, definition: Definition) -> None:
    """Write a definition into an ONNX file, in place, for the build to check. Raises ONNX's own errors."""
    import onnx

    model = onnx.load(str(path))
    kept = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, kept | stamp_of(definition))
    onnx.save(model, str(path))


def read_stamp(metadata: Mapping[str, str], *, where: str) -> Definition | None:
    """The definition that metadata carries; None where there is none.

    Raises ``StampMismatch`` where the digest does not belong to the definition beside it.
    """
    if DEFINITION_KEY not in metadata:
        return None
    definition = Definition.from_json(metadata[DEFINITION_KEY])
    digest = metadata.get(DIGEST_KEY, "")
    if definition.digest != digest:
        raise StampMismatch(
            f"{where} carries digest {digest[:12] or 'none'}, but its definition's is {definition.digest[:12]}"
        )
    return definition


def check_same(one: Definition, other: Definition, *, one_is: str, other_is: str) -> None:
    """Raise ``StampMismatch`` naming both digests and the first differing field, unless they are equal."""
    if one.digest != other.digest:
        raise StampMismatch(
            f"{one_is} was built with definition {one.digest[:12]}, {other_is} with {other.digest[:12]}; "
            f"first difference: {first_difference(one, other)}. Build the pipeline again: onestream build"
        )
