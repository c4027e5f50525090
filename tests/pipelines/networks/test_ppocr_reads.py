"""The pipeline that reads text, of PP-OCR's three networks, reads what the `rapidocr` package reads."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import yaml
from builds import build
from PIL import Image, ImageDraw, ImageFont

from onestream.postprocess.same_lines import Line, lines_of
from onestream.serving.models.in_process import InProcess
from onestream.wire.comparing import quad_iou

pytestmark = pytest.mark.slow


class Reader:
    """The fused model, in this process; its pictures are of rapidocr's size, whose shorter side is at least 736."""

    def __init__(self, folder: Path) -> None:
        fields = yaml.safe_load((Path(__file__).parents[3] / "pipelines" / "read.yaml").read_text())
        operations = fields["stages"]["find"]["preprocess"]["operations"]
        operations[1] = {"op": "resize", "mode": "shorter", "size": 736, "multiple_of": 32, "antialias": False}
        (folder / "read.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
        self._model = InProcess(build(folder / "read.yaml", folder=folder / "repository").folder / "read_fused")

    def __call__(self, picture: Image.Image) -> list[Line]:
        file = io.BytesIO()
        picture.save(file, "PNG")
        (answer,) = self._model([file.getvalue()])
        assert isinstance(answer, dict)
        return lines_of(answer)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("read"))


PAGE = [
    ("Region-based segmentation", [[3, 9], [296, 10], [295, 36], [3, 35]]),
    ("Let us first determine markers of the coins and the", [[2, 45], [379, 47], [379, 68], [2, 66]]),
    ("background. These markers are pixels that we can label", [[1, 62], [380, 63], [380, 87], [1, 86]]),
    ("unambiguously as either object or background. Here,", [[1, 79], [380, 81], [380, 105], [1, 104]]),
    ("the markers are found at the two extreme parts of the", [[1, 95], [381, 97], [381, 124], [1, 122]]),
    ("histogram of grey values:", [[4, 114], [173, 120], [173, 140], [3, 133]]),
    ("markers = np.zeros_like(coins)", [[38, 167], [243, 175], [242, 190], [37, 186]]),
]
"""What is written in scikit-image's `page.png`, and where rapidocr 3.10.0 finds it; it misses an underscore."""


def test_a_photographed_page_is_read_where_rapidocr_reads_it(read: Reader) -> None:
    from skimage import data

    lines = read(Image.fromarray(data.page()).convert("RGB"))
    assert [line.text for line in lines] == [text for text, _ in PAGE]
    for line, (_, quad) in zip(lines, PAGE, strict=True):
        # Half a pixel at each edge of a line of 15 is 0.94; rapidocr's corners are whole numbers, its offsets too.
        assert quad_iou([line.quad], [np.array(quad, float)])[0, 0] > 0.92


def test_nothing_is_read_where_rapidocr_reads_nothing(read: Reader) -> None:
    from skimage import data

    assert not any(line.text.strip() for line in read(Image.fromarray(data.text()).convert("RGB")))


SAID = ["Postprocessing of text", "finds 12 lines a page", "(3,456.78 EUR) & more", "then reads each of them"]


@pytest.mark.parametrize("degrees", [0, -29, 90, 180])
def test_a_rendered_page_reads_whichever_way_it_lies(read: Reader, degrees: int) -> None:
    """Lines on their side are turned to be read from the top to the bottom; the classifier finds those upside down."""
    page = Image.new("RGB", (640, 400), (250, 248, 240))
    font = ImageFont.load_default(34)
    for row, text in enumerate(SAID):
        ImageDraw.Draw(page).text((60, 50 + 80 * row), text, fill=(20, 20, 60), font=font)
    lines = read(page.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=(250, 248, 240)))
    assert [line.text for line in lines] == SAID
    assert min(line.score for line in lines) > 0.9
