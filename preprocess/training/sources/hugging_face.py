"""Samples in datasets of Hugging Face's library, which this does not import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onestream.preprocess.errors import BadDataset, BadSample
from onestream.preprocess.headers.reader import Encoded
from onestream.preprocess.storage.files import read_file
from onestream.preprocess.training.sources.columns import (
    NO_IMAGE,
    LabelColumns,
    check_columns,
    label_columns,
    labels_in,
)
from onestream.preprocess.training.sources.labels import NO_LABEL, Label, LabelKind, Labels


class HuggingFaceRows:
    """The rows of a ``datasets.Dataset``; see ``read_hugging_face``."""

    def __init__(self, dataset: Any, column: str, labels: Sequence[Label], *, kind: Labels | None) -> None:
        self.labels, self.kind = tuple(labels), kind
        self.classes: tuple[str, ...] = () if kind is None else kind.classes
        self._dataset, self._column = dataset, column

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._dataset)

    def read(self, index: int) -> Encoded:
        """See ``Samples.read``."""
        image: Any = self._dataset[index][self._column]
        if isinstance(image, Mapping):
            path, image = image.get("path"), image.get("bytes")
            if image is None and path is not None:
                return read_file(path)
        if image is None:
            raise BadSample(NO_IMAGE)
        data: bytes = image
        return data

    def label(self, index: int) -> Label:
        """See ``Samples.label``."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The position in the dataset."""
        return _row(index)


def read_hugging_face(
    dataset: Any,
    *,
    image: str | None = None,
    label: LabelColumns = "label",
    labels: LabelKind = "class",
    classes: Sequence[str] | None = None,
) -> HuggingFaceRows:
    """Read a ``datasets.Dataset`` of Hugging Face's library; its images are taken as they are stored, not decoded.

    ``image``: the column of images, by default the only one of the feature ``Image`` or of bytes. ``label``, ``labels``
    and ``classes`` as of ``read_parquet``; the names of a ``ClassLabel`` are the classes.

    Raises ``BadDataset`` for a dataset of several splits, a streamed one, a column that is missing, and a label that is
    none of its kind, naming the row.
    """
    name = type(dataset).__name__
    if isinstance(dataset, Mapping):
        raise BadDataset(f"got a {name} of {', '.join(map(str, dataset))}; give one of them, such as dataset['train']")
    if not hasattr(dataset, "__len__"):
        raise BadDataset(f"{name} is streamed and has no length; load it without streaming, or read its Parquet files")
    features = dataset.features
    fitting = [one for one, feature in features.items() if _is_image(feature)]
    column = fitting[0] if image is None and len(fitting) == 1 else image
    if column is None or column not in fitting:
        shown = f"the columns {', '.join(features)}, of images {', '.join(fitting) or 'none'}"
        raise BadDataset(f"{name} has {shown}; choose one by image=")
    wanted = label_columns(label)
    try:
        check_columns(wanted, list(features))
    except ValueError as error:
        raise BadDataset(f"{name} has {error}") from None
    stored = dataset.with_format(None)
    if type(features[column]).__name__ == "Image":
        stored = stored.cast_column(column, type(features[column])(decode=False))
    images = stored.select_columns([column])
    if label is None:
        return HuggingFaceRows(images, column, [NO_LABEL] * len(images), kind=None)
    found = stored.select_columns(list(wanted))[:]
    known = getattr(features[label], "names", None) if isinstance(label, str) else None
    kind, values = labels_in(found, label, labels, classes or known, _row)
    return HuggingFaceRows(images, column, values, kind=kind)


def is_hugging_face(source: object) -> bool:
    """Whether something is a dataset of Hugging Face's library, or several."""
    return type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "cast_column")


def _is_image(feature: Any) -> bool:
    return type(feature).__name__ == "Image" or getattr(feature, "dtype", None) in ("binary", "large_binary")


def _row(index: int) -> str:
    return f"row {index}"
