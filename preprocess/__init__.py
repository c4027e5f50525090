"""The definition of preprocessing, and what executes it.

>>> from onestream.preprocess import Definition, compile
>>> definition = Definition.from_yaml(open("my_preprocess.yaml").read())  # doctest: +SKIP
>>> compiled = compile(definition, backend="reference")                   # doctest: +SKIP
>>> (pixels,) = compiled.run([open("cat.jpg", "rb").read()])              # doctest: +SKIP
"""

from onestream.preprocess.backends.base import Compiled
from onestream.preprocess.compile import compile
from onestream.preprocess.definition import Definition
from onestream.preprocess.difference import first_difference
from onestream.preprocess.errors import (
    BackendMissing,
    BadDataset,
    BadImage,
    BadSample,
    CannotCompile,
    CannotImport,
    OutOfMemory,
    PreprocessError,
    StampMismatch,
)
from onestream.preprocess.limits import Limits
from onestream.preprocess.operations import CenterCrop, Decode, Letterbox, Normalize, Output, Pad, Resize, TensorSpec

__all__ = [
    "BackendMissing",
    "BadDataset",
    "BadImage",
    "BadSample",
    "CannotCompile",
    "CannotImport",
    "CenterCrop",
    "Compiled",
    "Decode",
    "Definition",
    "Letterbox",
    "Limits",
    "Normalize",
    "OutOfMemory",
    "Output",
    "Pad",
    "PreprocessError",
    "Resize",
    "StampMismatch",
    "TensorSpec",
    "compile",
    "first_difference",
]
