"""``python -m make_stubs``: write every generated stub anew."""

from pathlib import Path

from make_stubs import cuda_core, nvimgcodec, tensorrt

TYPINGS = Path(__file__).resolve().parents[1]

cuda_core.generate(TYPINGS)
nvimgcodec.generate(TYPINGS)
tensorrt.generate(TYPINGS)
