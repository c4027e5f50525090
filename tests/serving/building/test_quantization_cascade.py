"""Cascades in int8, each stage calibrated with what it gets from those before it, and networks of onestream's own."""

from __future__ import annotations

import re
from pathlib import Path

import builds
import detectors
import numpy as np
import onnx
import pytest
import yaml
from int8_networks import COLORS, HALVES, SIDE, color_network, pictures
from PIL import Image

from benchmarks.photos import make_photos
from benchmarks.reading.pictures import ten_lines
from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built import certificate
from onestream.serving.built.triton_config import from_text, precision_of
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.models.in_process import InProcess
from onestream.wire.tensor_names import MATTE, TEXTS

pytestmark = pytest.mark.slow
PIPELINES = Path(__file__).parents[3] / "pipelines"
LAYERS = ("Conv", "Gemm", "MatMul")


def build_things(
    folder: Path, shown: list[Path] | None, network: onnx.ModelProto | None = None, **name_fields: object
) -> Built:
    """*find* takes pictures and finds what is red; *name* tells the colour of what was found, by ``network``."""
    side = detectors.SIDE
    scaled = {"op": "normalize", "scale": 255, "mean": [0, 0, 0], "std": [1, 1, 1]}
    geometry = {"op": "resize", "mode": "exact", "size": [SIDE, SIDE]}
    stages = {
        "find": {
            "preprocess": {"operations": [{"op": "decode"}, {"op": "letterbox", "size": [side, side]}, scaled]},
            "postprocess": {"kind": "detection", "family": "yolo"},
        },
        "name": {
            "preprocess": {
                "operations": [{"op": "region", "of": "find"}, geometry, {"op": "normalize", **HALVES}],
            },
            "postprocess": {"kind": "classification", "top_k": 1, "labels": list(COLORS)},
            **name_fields,
        },
    }
    (folder / "things.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    networks = {name: folder / f"{name}.onnx" for name in stages}
    detectors.level_detector(networks["find"])
    onnx.save(network or color_network(), networks["name"])
    calibration = None if shown is None else Calibration(pictures=shown, min_agreement=0.9)
    file, repository = folder / "things.yaml", folder / "repository"
    return build(file, folder=repository, onnx_files=networks, precision="int8", calibration=calibration)


def test_every_stage_is_calibrated_with_what_it_gets(tmp_path: Path) -> None:
    built = build_things(tmp_path, pictures(tmp_path / "pictures"))
    assert list(built.quantizations) == ["find", "name"]
    find, name = built.quantizations.values()
    assert (find.pictures.calibrated, find.pictures.held_out) == (12, 12)
    # A third of the pictures are red, each with more than 16 regions.
    assert min(name.pictures.calibrated, name.pictures.held_out) >= 16
    assert name.speed.pixels == (SIDE, SIDE, 3)
    assert (find.door, name.door) == ("pixels", "pixels")
    repository = built.folder
    for stage, found in built.quantizations.items():
        model = repository / f"things_{stage}_model"
        assert certificate.read(model).quantization == found
        assert certificate.read(repository / "things_fused" / "stages" / stage).quantization == found
        fused = repository / "things_fused" / "1"
        assert (fused / f"{stage}.onnx").read_bytes() == (model / "1" / "model.onnx").read_bytes()
        assert (fused / f"{stage}.float32.onnx").read_bytes() == (model / "1" / "model.float32.onnx").read_bytes()
    # They stay as they are, and a stage in int8 takes nothing from the others.
    again = build_things(tmp_path, None)
    assert again.written == []
    # What comes after the last layer, and decodes boxes, is not rounded: only what that layer gives.
    nodes = list(onnx.load(str(repository / "things_find_model" / "1" / "model.onnx")).graph.node)
    made_by = {name: number for number, node in enumerate(nodes) for name in node.output}
    last = max(number for number, node in enumerate(nodes) if node.op_type in LAYERS)
    rounded = [made_by[node.input[0]] for node in nodes[last + 1 :] if node.op_type == "QuantizeLinear"]
    assert set(rounded) <= {last}
    assert len(nodes[last + 1 :]) > 4


def test_a_stage_may_stay_in_float32(tmp_path: Path) -> None:
    shown = pictures(tmp_path / "pictures")
    ruined = color_network(layers=6, constant=3e4)
    with pytest.raises(BadNetwork, match=r"stage name: int8 would cost too much: .*write precision: float32 in this s"):
        build_things(tmp_path, shown, network=ruined)
    built = build_things(tmp_path, shown, network=ruined, precision="float32")
    assert list(built.quantizations) == ["find"]
    models = {stage: built.folder / f"things_{stage}_model" for stage in ("find", "name")}
    assert certificate.read(models["name"]).quantization is None
    assert not (models["name"] / "1" / "model.float32.onnx").exists()
    said = {stage: from_text((model / "configs" / "cpu.pbtxt").read_text()) for stage, model in models.items()}
    assert {stage: precision_of([stage], said.get) for stage in said} == {"find": "int8", "name": "float32"}


def dark_pictures(folder: Path, *, red: int, count: int = 16) -> list[Path]:
    """Dark pictures, of which the first so many have one red cell of the detector's."""
    folder.mkdir()
    for number in range(count):
        levels = np.random.default_rng(number).integers(0, 40, (detectors.SIDE, detectors.SIDE, 3), dtype=np.uint8)
        if number < red:
            levels[detectors.CELL : 2 * detectors.CELL, : detectors.CELL, 0] = 255
        Image.fromarray(levels).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def test_pictures_with_too_few_regions_are_refused_naming_the_stage(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match="stage find: float32 finds nothing in the 8 pictures that are held out"):
        build_things(tmp_path, dark_pictures(tmp_path / "none", red=0))
    said = (
        "stage name: it is calibrated with the regions that stage find finds: at least 8 to calibrate and 8 to measure"
        "; these 16 pictures have 4 and 3, in 7 of them. Of pictures like these about 37 are needed"
    )
    with pytest.raises(BadPipeline, match=re.escape(said)):
        build_things(tmp_path, dark_pictures(tmp_path / "few", red=7))
    assert not (tmp_path / "repository").exists()


def test_regions_that_suffice_are_shared_out_whichever_pictures_show_them(tmp_path: Path) -> None:
    built = build_things(tmp_path, dark_pictures(tmp_path / "half", red=16, count=32))
    name = built.quantizations["name"].pictures
    assert (name.calibrated, name.held_out) == (8, 8)


def written(folder: Path, contents: list[bytes]) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number:02}.jpg" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def test_a_matte_is_less_good_and_that_may_do(tmp_path: Path) -> None:
    sources = sorted((PIPELINES.parent / "examples" / "photos").glob("*.jpg"))
    shown = written(tmp_path / "shown", make_photos("500x375", 16, sources=sources, seed=7, threads=2))
    repository = tmp_path / "repository"
    less = Calibration(pictures=shown, min_agreement=0.3)
    built = builds.build(PIPELINES / "matte.yaml", folder=repository, precision="int8", calibration=less)
    assert 0.3 <= built.quantizations["matte"].agreement.share < 0.97
    (answer,) = InProcess(repository / "matte_fused")([shown[0].read_bytes()])
    assert isinstance(answer, dict)
    assert 0 <= answer[MATTE].min() <= answer[MATTE].max() <= 255


@pytest.mark.night
def test_text_is_found_in_int8_and_read_in_float32(tmp_path: Path) -> None:
    shown = written(tmp_path / "shown", list(ten_lines("640x480", tmp_path / "photos").contents[:16]))
    texts = []
    for name, calibration in (("float32", None), ("int8", Calibration(pictures=shown))):
        built = builds.build(
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
