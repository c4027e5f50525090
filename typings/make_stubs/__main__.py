"""``python -m make_stubs``: write every generated stub anew."""

from pathlib import Path

from make_stubs import cuda_core, nvimgcodec

TYPINGS = Path(__file__).resolve().parents[1]

cuda_core.generate(TYPINGS)
nvimgcodec.generate(TYPINGS)
