"""Networks that onestream brings, in int8: a matte, which it costs too much, and text, whose reader stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from builds import build

from benchmarks.photos import make_photos
from benchmarks.reading.pictures import ten_lines
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.models.in_process import InProcess
from onestream.wire.tensor_names import MATTE, TEXTS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PIPELINES = ROOT / "pipelines"


def written(folder: Path, contents: list[bytes]) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number:02}.jpg" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def test_a_matte_is_less_good_and_that_may_do(tmp_path: Path) -> None:
    sources = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
    shown = written(tmp_path / "shown", make_photos("500x375", 16, sources=sources, seed=7, threads=2))
    repository = tmp_path / "repository"
    less = Calibration(pictures=shown, min_agreement=0.3)
    built = build(PIPELINES / "matte.yaml", folder=repository, precision="int8", calibration=less)
    assert 0.3 <= built.quantizations["matte"].agreement.share < 0.97
    (answer,) = InProcess(repository / "matte_fused")([shown[0].read_bytes()])
    assert isinstance(answer, dict)
    assert 0 <= answer[MATTE].min() <= answer[MATTE].max() <= 255


@pytest.mark.night
def test_text_is_found_in_int8_and_read_in_float32(tmp_path: Path) -> None:
    shown = written(tmp_path / "shown", list(ten_lines("640x480", tmp_path / "photos").contents[:16]))
    texts = []
    for name, calibration in (("float32", None), ("int8", Calibration(pictures=shown))):
        built = build(
            PIPELINES / "read.yaml",
            folder=tmp_path / name,
            precision="int8" if calibration else None,
            calibration=calibration,
        )
        assert set(built.quantizations) == ({"find"} if calibration else set())
        answers = InProcess(built.folder / "read_fused")([file.read_bytes() for file in shown[:4]])
        texts.append([text for answer in answers if isinstance(answer, dict) for text in answer[TEXTS].ravel()])
    before, after = (set(found) for found in texts)
    # Ten lines a picture; what is cut a little otherwise may be read otherwise.
    assert len(before) >= 30
    assert len(before & after) >= 0.8 * len(before)
