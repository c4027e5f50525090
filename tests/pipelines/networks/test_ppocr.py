"""PP-OCR's networks: what they take and give, that they are built as they are, and read as `rapidocr` does."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from builds import build
from PIL import Image, ImageDraw, ImageFont

from onestream.pipelines.networks import package_files
from onestream.pipelines.networks.errors import WeightsError
from onestream.pipelines.networks.ppocr import Network, fetch_network
from onestream.postprocess.kinds import AnyPostprocess
from onestream.postprocess.kinds.rotation import Rotation
from onestream.postprocess.kinds.text_lines import TextLines
from onestream.postprocess.same_lines import Line, lines_of
from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.building.build import Built
from onestream.serving.building.repository import answer_of
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.graph import onnx_graph
from onestream.serving.models.in_process import InProcess
from onestream.wire.comparing import quad_iou

ROOT = Path(__file__).parents[3]
HALF = {"op": "normalize", "scale": 255, "mean": [0.5] * 3, "std": [0.5] * 3}


def written(text: str) -> Image.Image:
    """A line of 48 pixels in height, black on white."""
    font = ImageFont.load_default(32)
    picture = Image.new("RGB", (int(font.getlength(text)) + 20, 48), "white")
    ImageDraw.Draw(picture).text((10, 4), text, fill="black", font=font)
    return picture


def test_the_recognizer_has_a_character_for_each_class() -> None:
    """The blank before them, and a space after."""
    # Float32 (1, 3, height, width), BGR, -1 to 1.
    values = (np.asarray(written("Hello world"), np.float32)[..., ::-1] / 127.5 - 1).transpose(2, 0, 1)[None]
    values = np.ascontiguousarray(values[..., : values.shape[-1] // 8 * 8])
    network = str(fetch_network("ppocr-v6-rec"))
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    ((steps,),) = session.run(None, {session.get_inputs()[0].name: values})
    metadata = {entry.key: entry.value for entry in onnx.load(network).metadata_props}
    characters = metadata["character"].split("\n")
    assert steps.shape == (values.shape[-1] // 8, 18710)
    assert len(set(characters)) == len(characters) == 18708
    np.testing.assert_allclose(steps.sum(axis=1), 1, atol=1e-3)


def operations(size: list[int]) -> list[dict[str, Any]]:
    return [{"op": "decode", "color": "bgr"}, {"op": "resize", "mode": "exact", "size": size}, HALF]


@pytest.mark.parametrize(
    ("network", "size", "postprocess", "answer"),
    [
        ("ppocr-v6-det", [64, 128], TextLines(),
         {"quads": (-1, 4, 2), "scores": (-1,), "image_size": (2,), "left_out": (1,)}),
        ("ppocr-cls", [48, 192], Rotation(degrees=(0, 180)), {"degrees": (1,), "scores": (1,)}),
    ],
)  # fmt: skip
def test_each_answers_as_its_kind(
    network: Network, size: list[int], postprocess: AnyPostprocess, answer: dict[str, tuple[int, ...]]
) -> None:
    definition = Definition.model_validate({"operations": operations(size)})
    graph = onnx_graph.prepare(onnx_graph.load(fetch_network(network)), definition, postprocess)
    served = served_network.outputs(graph)
    assert {one.name: one.dims for one in answer_of(postprocess, definition, served, None)} == answer


def answered(made: Built, picture: Image.Image) -> dict[str, np.ndarray]:
    """By the fused model, in this process."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    (answer,) = InProcess(made.folder / f"{made.pipeline.name}_fused")([file.getvalue()])
    return answer


def test_the_built_recognizer_reads(tmp_path: Path) -> None:
    """From its own file and its labels, nothing else; the network comes from the cache, or is fetched."""
    described = {"preprocess": {"operations": operations([48, 192])}, "postprocess": {"kind": "text"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"network": "ppocr-v6-rec", **described}))
    made = build(tmp_path / "mine.yaml", folder=tmp_path / "repository")
    config = from_text((made.folder / "mine" / "config.pbtxt").read_text(encoding="utf-8"))
    assert {output.name: list(output.dims) for output in config.output} == {"texts": [1], "scores": [1]}
    labels = (made.folder / "mine_fused" / "labels.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(labels) == 18709
    answer = answered(made, written("Hello world").resize((192, 48)))
    assert answer["texts"][0, 0].decode() == "Hello world"
    assert answer["scores"][0, 0] > 0.9


@pytest.mark.parametrize(("network", "channels_last"), [("ppocr-v6-det", False), ("ppocr-cls", True)])
def test_sides_stay_free(network: Network, channels_last: bool) -> None:
    """Of the detector both; a classifier of a paddle's export, whose sizes of -1 are open, takes any."""
    operations = (Decode(color="bgr"), Resize(mode="longer", size=320), Normalize(mean=(0.5,) * 3, std=(0.5,) * 3))
    definition = Definition(operations=(*operations, Output(dtype="float32")))
    served = onnx_graph.prepare(onnx_graph.load(fetch_network(network)), definition)
    engine = OnnxRuntimeEngine(served.SerializeToString(), threads=1)
    for sides in ((64, 96), (96, 64)):
        (output,) = engine.run({"pixels": np.zeros((2, *sides, 3), np.uint8)}).values()
        assert output.shape == ((2, 2) if channels_last else (2, 1, *sides))


@pytest.mark.slow
def test_the_page_shows_where_text_is(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kinds.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```yaml\n(# lines\.yaml.*?)```", page, flags=re.DOTALL)
    (tmp_path / "lines.yaml").write_text(lines)
    made = build(tmp_path / "lines.yaml", folder=tmp_path / "repository")
    picture = Image.new("RGB", (960, 480), "white")
    picture.paste(written("Hello world").resize((400, 96)), (300, 120))
    (quad,) = answered(made, picture)["quads"][0]
    # Round the letters, of which those without stems are two thirds of a line's height.
    assert 300 < quad[0, 0] < 340 < 660 < quad[2, 0] < 700
    assert 100 < quad[0, 1] < 150 < 180 < quad[2, 1] < 230


def test_all_three_are_fetched_at_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: tuple[Network, ...] = ("ppocr-v6-det", "ppocr-cls", "ppocr-v6-rec")
    sources = [fetch_network(name) for name in names]
    asked = []

    def wheel(change: Callable[[bytes], bytes]) -> Callable[..., dict[str, bytes]]:
        def read(package: object, files: Any, *_: Path) -> dict[str, bytes]:
            asked.append(str(package))
            return {file.member: change(source.read_bytes()) for file, source in zip(files, sources, strict=True)}

        return read

    monkeypatch.setattr(package_files, "_read_wheel", wheel(lambda content: content + b"\0"))
    with pytest.raises(WeightsError, match=r"PP-OCRv6_det_small\.onnx from rapidocr==3\.10\.0 has SHA-256"):
        fetch_network("ppocr-cls", cache_dir=tmp_path)
    monkeypatch.setattr(package_files, "_read_wheel", wheel(lambda content: content))
    paths = [fetch_network(name, cache_dir=tmp_path) for name in names]
    assert [path.read_bytes() for path in paths] == [source.read_bytes() for source in sources]
    assert asked == ["rapidocr==3.10.0"] * 2
    shutil.rmtree(tmp_path / "ppocr")


class Reader:
    """The fused model, in this process; its pictures are of rapidocr's size, whose shorter side is at least 736."""

    def __init__(self, folder: Path) -> None:
        fields = yaml.safe_load((ROOT / "pipelines" / "read.yaml").read_text())
        operations = fields["stages"]["find"]["preprocess"]["operations"]
        operations[1] = {"op": "resize", "mode": "shorter", "size": 736, "multiple_of": 32, "antialias": False}
        (folder / "read.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
        self._made = build(folder / "read.yaml", folder=folder / "repository")

    def __call__(self, picture: Image.Image) -> list[Line]:
        return lines_of(answered(self._made, picture))


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


@pytest.mark.slow
def test_a_photographed_page_is_read_where_rapidocr_reads_it(read: Reader) -> None:
    from skimage import data

    lines = read(Image.fromarray(data.page()).convert("RGB"))
    assert [line.text for line in lines] == [text for text, _ in PAGE]
    for line, (_, quad) in zip(lines, PAGE, strict=True):
        # Half a pixel at each edge of a line of 15 is 0.94; rapidocr's corners are whole numbers, its offsets too.
        assert quad_iou([line.quad], [np.array(quad, float)])[0, 0] > 0.92


@pytest.mark.slow
def test_nothing_is_read_where_rapidocr_reads_nothing(read: Reader) -> None:
    from skimage import data

    assert not any(line.text.strip() for line in read(Image.fromarray(data.text()).convert("RGB")))


SAID = ["Postprocessing of text", "finds 12 lines a page", "(3,456.78 EUR) & more", "then reads each of them"]


@pytest.mark.slow
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
