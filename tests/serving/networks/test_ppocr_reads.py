"""PP-OCR's three networks, chained by hand with the postprocessing of each, read what the `rapidocr` package reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont

from onestream.postprocess.options import TextLines
from onestream.postprocess.text.decoding import Decoder
from onestream.postprocess.text.lines import find_lines
from onestream.postprocess.text.rotation import rotations
from onestream.preprocess.geometry import Mapping
from onestream.serving.building.ctc_tail import append_ctc_tail, characters_of
from onestream.serving.networks.ppocr import fetch_network

pytestmark = pytest.mark.slow


class Read(NamedTuple):
    """One line: its corners (4, 2) and what it says."""

    quad: np.ndarray
    text: str
    score: float


class Reader:
    """Finds lines, turns them and reads them, one after the other."""

    def __init__(self) -> None:
        recognizer = onnx.load(str(fetch_network("ppocr-v6-rec")))
        classes = append_ctc_tail(recognizer)
        self.decode = Decoder(characters_of(recognizer, classes, None).removesuffix("\n").split("\n"))
        self.find, self.turn = (self.session(str(fetch_network(name))) for name in ("ppocr-v6-det", "ppocr-cls"))
        self.recognize = self.session(recognizer.SerializeToString())

    @staticmethod
    def session(model: str | bytes) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def lines(self, picture: Image.Image, *, least_side: int = 736) -> tuple[np.ndarray, np.ndarray]:
        """Quads and scores, found at rapidocr's size: the shorter side at least so long, both multiples of 32."""
        ratio = max(1.0, least_side / min(picture.size))
        width, height = (round(int(side * ratio) / 32) * 32 for side in picture.size)
        resized = picture.resize((width, height), Image.Resampling.BILINEAR)
        (maps,) = self.find.run(None, {"x": as_input(resized)})
        placed = Mapping(
            picture.size[::-1], (height, width), (height / picture.height, width / picture.width), (0.0, 0.0)
        )
        found = find_lines(maps[0, 0], placed, **TextLines().model_dump(exclude={"kind"}))
        return found.quads, found.scores

    def __call__(self, picture: Image.Image) -> list[Read]:
        quads, _ = self.lines(picture)
        return [self.read(picture, quad) for quad in quads]

    def read(self, picture: Image.Image, quad: np.ndarray) -> Read:
        line = rectified(picture, quad)
        (angles,) = self.turn.run(None, {"x": as_input(on_gray(line, 192), width=192)})
        degrees, _ = rotations(angles, (0, 180), min_score=0.9, activation="none")
        line = line.rotate(int(degrees[0, 0]))
        width = max(320, -(-48 * line.width // line.height))
        outputs = self.recognize.run(None, {"x": as_input(on_gray(line, width), width=width)})
        texts, scores, _ = self.decode(*outputs)
        return Read(quad, texts[0].decode(), float(scores[0]))


def as_input(picture: Image.Image, *, width: int | None = None) -> np.ndarray:
    """Float32 (1, 3, height, width), BGR, -1 to 1; what is added on the right is 0."""
    values = np.asarray(picture.convert("RGB"), np.float32)[..., ::-1] / 127.5 - 1
    values = np.pad(values, ((0, 0), (0, (width or picture.width) - picture.width), (0, 0)))
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def on_gray(line: Image.Image, most: int) -> Image.Image:
    """A line of 48 pixels in height, in proportion, at most so wide."""
    return line.resize((min(most, -(-48 * line.width // line.height)), 48), Image.Resampling.BILINEAR)


def rectified(picture: Image.Image, quad: np.ndarray) -> Image.Image:
    """What is in a quad, turned upright where it is taller than wide by half."""
    corners = quad.astype(float)
    top, right, bottom, left = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    width, height = int(max(top, bottom)), int(max(left, right))
    rows, values = [], []
    for (x, y), (u, v) in zip([(0, 0), (width, 0), (width, height), (0, height)], corners, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    line = picture.transform(
        (width, height), Image.Transform.PERSPECTIVE, np.linalg.solve(rows, values), Image.Resampling.BICUBIC
    )
    return line.transpose(Image.Transpose.ROTATE_90) if height >= 1.5 * width else line


@pytest.fixture(scope="module")
def read() -> Reader:
    return Reader()


PAGE = [
    ("Region-based segmentation", [[3, 9], [296, 10], [295, 36], [3, 35]]),
    ("Let us first determine markers of the coins and the", [[2, 45], [379, 47], [379, 68], [2, 66]]),
    ("background. These markers are pixels that we can label", [[1, 62], [380, 63], [380, 87], [1, 86]]),
    ("unambiguously as either object or background. Here,", [[1, 79], [380, 81], [380, 105], [1, 104]]),
    (None, [[1, 95], [381, 97], [381, 124], [1, 122]]),
    ("histogram of grey values:", [[4, 114], [173, 120], [173, 140], [3, 133]]),
    ("markers = np.zeros like(coins)", [[38, 167], [243, 175], [242, 190], [37, 186]]),
]
"""What rapidocr 3.10.0 reads in scikit-image's `page.png`, and where. Of a line that bends it is not sure."""


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two quads, of points a tenth of a pixel apart."""
    corners = np.concatenate([one, other])
    low, high = corners.min(axis=0), corners.max(axis=0)
    size = tuple(np.ceil((high - low) * 10).astype(int))
    masks = []
    for quad in (one, other):
        mask = Image.new("1", size)
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in (quad - low) * 10], fill=1)
        masks.append(np.asarray(mask))
    return float((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())


def test_a_photographed_page_reads_as_rapidocr_reads_it(read: Reader) -> None:
    from skimage import data

    lines = read(Image.fromarray(data.page()).convert("RGB"))
    assert len(lines) == len(PAGE)
    for line, (text, quad) in zip(lines, PAGE, strict=True):
        assert line.text == text or (text is None and line.score < 0.8)
        # Half a pixel at each edge of a line of 15 is 0.94; rapidocr's corners are whole numbers, its offsets too.
        assert overlap(line.quad.astype(float), np.array(quad, float)) > 0.92


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
    # Quads say how a page lies up to half a turn; then its first row is the last.
    expected = SAID[::-1] if degrees in (90, 180) else SAID
    assert [line.text for line in lines] == expected
    assert min(line.score for line in lines) > 0.9
