"""How long ``resample`` takes on an H100, by a model whose figures docs/gpu.md has: nothing of it is measured.

A block's warps issue instructions, one a clock and scheduler, while memory moves bytes; the longer of both is the time.
The counts below are of the machine code for sm_90, by region of the kernel; the tables are those that it reads.
"""

from __future__ import annotations

import io
import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.core import Program, ProgramOptions

from onestream.preprocess.cuda.line_tables import Line, weight_tables
from onestream.preprocess.cuda.resample_kernels import ENTRY, RESAMPLE_KERNELS, TILE
from onestream.preprocess.geometry import Size

BYTES_PER_SECOND, CLOCKS_PER_SECOND, MULTIPROCESSORS, SCHEDULERS = 3e12, 1.7e9, 132, 4

# Instructions of a warp: to stage 16 pixels a lane; for an output pixel of the first pass in 32 lines, or in 64, but
# for its taps, and for each four taps; the same for one of the second pass, and where it has no taps in these lines;
# for each piece, each round of lines and each tile; and for each row that is written.
STAGE = 141
MAKE, MADE_TAPS = (85, 103), (22, 34)
BEGIN, TAPS, SKIP = 42, 20, 18
PIECE, ROUND, FINISH, ROW = 70, 40, 150, 50
STAGED, WORDS_OF_A_PIECE, LANES, WARPS = 3520, 76, 32, 8


def modelled(source_hw: Size, filter: Any, *, shorter: int = 256, crop: int = 224) -> tuple[int, float, float]:
    """Of a picture that is resized to a shorter side of 256 pixels and cropped to 224.

    Bytes moved, microseconds that memory takes for them, and that all warps take to issue their instructions.
    """
    heads, lengths = [], []
    for side in source_hw:
        resized = int(shorter * side / min(source_hw))
        line = Line(side, resized, (resized - crop) // 2, crop, 1)
        values, about = weight_tables(np.array([line]), filter)
        heads.append(values[: crop * ENTRY].view(np.int32).reshape(crop, 4))
        lengths.append(int(about[0, 2]))
    rows, columns = heads
    tiles = itertools.product(range(0, crop, TILE), repeat=2)
    instructions = sum(_of_tile(rows[y : y + TILE], columns[x : x + TILE], lengths[0]) for y, x in tiles)
    moved = 3 * (lengths[0] * lengths[1] + crop * crop)
    issued = instructions / (MULTIPROCESSORS * SCHEDULERS * CLOCKS_PER_SECOND)
    return moved, moved / BYTES_PER_SECOND * 1e6, issued * 1e6


def _of_tile(rows: Any, columns: Any, lines: int) -> int:
    found = WARPS * FINISH + len(rows) * ROW
    word, end = columns[0, 0], columns[-1, 0] + columns[-1, 1]
    whole = -(-(end - word) // 4) * 4 < STAGED // LANES
    pieces = 1 if whole else -(-(end - word) // WORDS_OF_A_PIECE)
    piece = -(-(end - word) // pieces)
    groups = 2 if whole and 2 * LANES * (-(-piece // 4) * 4 + 1) <= STAGED else 1
    words_of_lines = groups * LANES // 4
    for line_word in range(rows[0, 0], rows[-1, 0] + rows[-1, 1], words_of_lines):
        staged = min(4 * words_of_lines, lines - 4 * line_word)
        made = 1 if groups == 2 and staged > LANES else 0
        for begin in range(word, end, piece):
            units = staged * -(-min(piece, end - begin) // 4)
            words = _words(columns, begin, begin + piece)
            found += WARPS * PIECE + -(-units // 32) * STAGE
            found += len(columns) * MAKE[made] + MADE_TAPS[made] * words.sum()
        words = _words(rows, line_word, line_word + words_of_lines)
        found += WARPS * ROUND + np.where(words > 0, BEGIN + TAPS * words, SKIP).sum()
    return int(found)


def _words(heads: Any, begin: int, end: int) -> Any:
    """Of each output pixel, those that lie there."""
    words = np.minimum(heads[:, 0] + heads[:, 1], end) - np.maximum(heads[:, 0], begin)
    return np.maximum(words, 0)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("height", "width"), [(375, 500), (1080, 1920), (3000, 4000)])
def test_the_figures_of_the_page_are_the_models(height: int, width: int, filter: str) -> None:
    moved, memory, issue = modelled((height, width), filter)
    share = memory / max(memory, issue)
    row = f"| {width}x{height} | {filter} | {moved / 1e6:.2f} MB | {memory:.2f} µs | {issue:.2f} µs | {share:.2f} |"
    assert row in (Path(__file__).parents[2] / "docs" / "gpu.md").read_text("utf-8"), row


def compiled() -> tuple[bytes, str]:
    """The machine code for an H100, and what the assembler says."""
    said = io.StringIO()
    options = ProgramOptions(arch="sm_90", ptxas_options=["-v"])
    code = Program(RESAMPLE_KERNELS, "c++", options).compile("cubin", logs=said)
    return bytes(code.code), said.getvalue()


def test_four_blocks_share_a_multiprocessor_and_nothing_is_spilled() -> None:
    """It has 65,536 registers, and 227 KB of shared memory of which every block takes 1 KB for itself."""
    _, said = compiled()
    registers, shared = (int(re.findall(rf"(\d+) {what}", said)[0]) for what in ("registers", "bytes smem"))
    assert 4 * 256 * (-(-registers // 8) * 8) <= 65536
    assert 4 * (shared + 1024) <= 227 * 1024
    assert "0 bytes spill stores, 0 bytes spill loads" in said


def test_the_counts_of_the_model_are_the_machine_codes(tmp_path: Path) -> None:
    """Of the inner loops with three channels: what stages, and what adds taps in 64 lines and in 32."""
    nvidia = pytest.importorskip("nvidia", reason="needs nvidia-cuda-nvdisasm")
    found = [tool for folder in nvidia.__path__ for tool in Path(folder).glob("*/bin/nvdisasm")]
    if not found:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    code = tmp_path / "resample.cubin"
    code.write_bytes(compiled()[0])
    text = subprocess.run([found[0], "-c", code], capture_output=True, check=True).stdout.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*/\*[0-9a-f]{4,5}\*/|\.L_x", line)]
    labels = {line.rstrip(":"): at for at, line in enumerate(lines) if line.startswith(".L_x")}
    loops: dict[tuple[int, int], int] = {}
    for at, line in enumerate(lines):
        if (branch := re.search(r"BRA `\((\.L_x_\d+)\)", line)) and labels[branch[1]] < at:
            body = [one for one in lines[labels[branch[1]] : at + 1] if one.startswith("/*")]
            dots, stores = (sum(name in one for one in body) for name in (" IDP.4A", " STS"))
            loops.setdefault((dots, stores), len(body))
    # The order of the source: the loop of 32 lines comes before those of the second pass.
    assert (loops[0, 12], loops[18, 0], loops[9, 0]) == (STAGE, MADE_TAPS[1], MADE_TAPS[0])
