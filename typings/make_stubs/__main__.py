"""``python -m make_stubs [FOLDER]``: write every generated stub anew, into ``typings`` where no folder is named."""

import sys
from pathlib import Path

from make_stubs import cuda_core, nvimgcodec, tensorrt

target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
for library in (cuda_core, nvimgcodec, tensorrt):
    library.generate(target)
