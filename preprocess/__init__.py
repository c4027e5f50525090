"""The definition of preprocessing, and what executes it.

>>> from onestream.preprocess import Definition, compile
>>> definition = Definition.from_yaml(open("my_preprocess.yaml").read())  # doctest: +SKIP
>>> compiled = compile(definition, backend="reference")                   # doctest: +SKIP
>>> (pixels,) = compiled.run([open("cat.jpg", "rb").read()])              # doctest: +SKIP
"""

from onestream.preprocess.backends.base import Compiled, FromPicture
from onestream.preprocess.compile import compile, compile_from_picture
from onestream.preprocess.definition import WHOLE_PICTURE, Definition, first_difference
from onestream.preprocess.errors import (
    BackendMissing,
    BadDataset,
    BadImage,
    BadSample,
    CannotCompile,
    CannotImport,
    CannotVary,
    OutOfMemory,
    PreprocessError,
    StampMismatch,
)
from onestream.preprocess.limits import Limits
from onestream.preprocess.moves import CenterCrop, Letterbox, Pad, Resize
from onestream.preprocess.operations import Decode, Normalize, Output, Patches, Region, TensorSpec
from onestream.preprocess.operations.tiles import Tiles

__all__ = [
    "WHOLE_PICTURE",
    "BackendMissing",
    "BadDataset",
    "BadImage",
    "BadSample",
    "CannotCompile",
    "CannotImport",
    "CannotVary",
    "CenterCrop",
    "Compiled",
    "Decode",
    "Definition",
    "FromPicture",
    "Letterbox",
    "Limits",
    "Normalize",
    "OutOfMemory",
    "Output",
    "Pad",
    "Patches",
    "PreprocessError",
    "Region",
    "Resize",
    "StampMismatch",
    "TensorSpec",
    "Tiles",
    "compile",
    "compile_from_picture",
    "first_difference",
]
