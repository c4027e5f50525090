"""Pictures with boxes: three formats give one value, and what is wrong in a file is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from box_sets import CATEGORY_IDS, CLASSES, coco, drawn_set, write_coco, write_voc, write_yolo
from hypothesis import given
from hypothesis import strategies as st
from image_sets import assert_one_bad

from onestream.preprocess import BadDataset, BadSample
from onestream.preprocess.training import DetectionFiles, read_coco, read_voc, read_yolo

PICTURES = drawn_set(9)
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same pictures, written in each format."""
    folder = tmp_path_factory.mktemp("sets")
    return {
        "coco": write_coco(folder / "coco", PICTURES),
        "voc": write_voc(folder / "voc", PICTURES),
        "yolo": write_yolo(folder / "yolo", PICTURES),
    }


def test_three_formats_give_the_same_value(sets: dict[str, Path]) -> None:
    coco_files = read_coco(sets["coco"], images=sets["coco"].parent / "photos")
    for files in (coco_files, read_voc(sets["voc"]), read_yolo(sets["yolo"])):
        files.refuse_bad()
        assert files.classes == CLASSES
        assert files.category_ids == (CATEGORY_IDS if files is coco_files else (0, 1, 2))
        assert len(files) == len(PICTURES)
        for sample, expected in zip(files.samples, PICTURES, strict=True):
            assert (sample.path.name, sample.size_hw) == (expected.name, expected.size_hw)
            assert (sample.boxes.dtype, sample.class_ids.dtype) == (np.float32, np.int64)
            assert sample.class_ids.tolist() == [class_id for class_id, _ in expected.objects]
            # Corners are whole and sides multiples of 64: shares of a side, and so the corners, are nearly exact.
            corners = np.array([box for _, box in expected.objects]).reshape(-1, 4)
            np.testing.assert_allclose(sample.boxes, corners, atol=1e-4)
    assert [sample.image_id for sample in coco_files.samples] == [7 * number for number in range(len(PICTURES))]


def edited(tmp_path: Path, edit: Edit | str) -> DetectionFiles:
    """COCO's file of the pictures after ``edit``, or another text in its place."""
    content = coco(PICTURES)
    if not isinstance(edit, str):
        edit(content)
    for one in PICTURES:
        one.save(tmp_path / one.name)
    (tmp_path / "boxes.json").write_text(edit if isinstance(edit, str) else json.dumps(content))
    return read_coco(tmp_path / "boxes.json", images=tmp_path)


def first(part: str, **values: Any) -> Edit:
    return lambda content: content[part][0].update(values)


def bbox(*values: float) -> Edit:
    return first("annotations", bbox=values)


def picture(name: str) -> Edit:
    return first("images", file_name=name)


SIZE = f"{PICTURES[1].size_hw[1]}x{PICTURES[1].size_hw[0]}"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (bbox(5, 5, 0, 8), r"001\.png: boxes\.json, annotation id 100: the box x0 y0 x1 y1 = 5 5 5 13 has no area; ex"),
        (bbox(5, 5, -3, 8), r"= 5 5 2 13 has no area"),
        (bbox(5, 5, 5000, 8), rf"= 5 5 5005 13 is outside the picture of {SIZE}; it may reach 1 pixel beyond at most"),
        (bbox(-1.5, 5, 9, 8), rf"is outside the picture of {SIZE}"),
        (bbox(-0.9, 5, 0.9, 8), rf"is outside the picture of {SIZE}"),
        (bbox(float("nan"), 5, 9, 8), r"= nan 5 nan 13 is not finite; expected four numbers"),
        (bbox(5, 5, 1e300, 8), r"is not finite"),
        (first("annotations", category_id=4), r"annotation id 100: got the category 4; the file lists 3, 38, 90"),
        (picture("none.png"), r"none\.png: there is no such picture"),
        (picture("a" * 5000), r"the picture cannot be read: File name too long"),
        (picture("../none.png"), r"names the picture '\.\./none\.png'; expected a path within"),
        (picture("/etc/passwd"), r"names the picture '/etc/passwd'; expected a path within"),
        (picture("a\0.png"), r"expected a path within"),
        (first("images", width=0), r"size is given as 0x\d+; expected 1 to 65535 pixels a side"),
        (first("images", width=10**40), r"expected 1 to 65535 pixels a side"),
    ],
)
def test_a_bad_picture_of_coco_is_one_line(tmp_path: Path, edit: Edit, message: str) -> None:
    assert_one_bad(edited(tmp_path, edit), message)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (first("annotations", image_id=5), r"boxes\.json: annotation id 100 is of image 5, which is none of its 9 im"),
        (first("images", id=7), r"two entries have the image id 7"),
        (first("categories", id=38), r"two entries have the category id 38"),
        (bbox(1, 2, 3), r"is no COCO file: annotations\.0\.bbox"),
        (lambda content: content["annotations"][0].pop("bbox"), r"annotations\.0\.bbox: Field required"),
        (lambda content: content.pop("categories"), r"categories: Field required"),
        (lambda content: content.update(images=[], annotations=[]), "got no picture"),
        *((text, r"boxes\.json is no COCO file: ") for text in ("", "{", "[]", '"a"', "[" * 100_000, "\0\0", "null")),
        ('{"images": 1e999}', r"boxes\.json is no COCO file: "),
    ],
)
def test_a_malformed_coco_file_is_refused(tmp_path: Path, edit: Edit | str, message: str) -> None:
    with pytest.raises(BadDataset, match=message) as raised:
        edited(tmp_path, edit)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_missing_files_and_folders_of_coco_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=r"boxes\.json cannot be read: No such file"):
        read_coco(tmp_path / "boxes.json", images=tmp_path)
    with pytest.raises(BadDataset, match=r"nothing is not a folder; expected that of the pictures of boxes\.json"):
        read_coco(tmp_path / "boxes.json", images=tmp_path / "nothing")


def test_boxes_a_pixel_beyond_are_cut_and_those_of_crowds_or_difficult_ones_left_out(tmp_path: Path) -> None:
    files = edited(tmp_path, bbox(-1, -0.25, 9, 8))
    np.testing.assert_array_equal(files.samples[1].boxes[0], np.array([0, 0, 8, 7.75], np.float32))
    files = edited(tmp_path, first("annotations", iscrowd=1))
    counts = [len(sample.boxes) for sample in files.samples]
    assert counts == [0, 0, *(len(one.objects) for one in PICTURES[2:])]
    write_voc(tmp_path / "voc", PICTURES)
    xml = tmp_path / "voc" / "Annotations" / "001.xml"
    xml.write_text(xml.read_text().replace("<difficult>0", "<difficult>1"))
    assert [len(sample.boxes) for sample in read_voc(tmp_path / "voc").samples] == counts


def test_many_bad_pictures_are_ten_lines_and_a_number(tmp_path: Path) -> None:
    pictures = drawn_set(30)
    write_coco(tmp_path, pictures)
    for one in pictures[4:]:
        (tmp_path / "photos" / one.name).unlink()
    with pytest.raises(BadSample) as raised:
        read_coco(tmp_path / "boxes.json", images=tmp_path / "photos").refuse_bad()
    lines = str(raised.value).splitlines()
    assert lines[0] == "26 of 30 pictures cannot be used:"
    assert lines[1].endswith("photos/004.png: there is no such picture")
    assert len(lines) == 12
    assert lines[-1] == "  and 16 more"


BILLION_LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;">]><annotation><filename>&c;</filename></annotation>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><annotation><filename>&b;</filename></annotation>'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (None, "<annotation>", r"001\.xml is not XML: no element found"),
        (None, '<?xml version="1.0" encoding="x-unknown"?><a/>', r"001\.xml is not XML: "),
        (None, BILLION_LAUGHS, r"001\.xml declares a document type; expected plain XML without one"),
        (None, OUTSIDE, r"001\.xml declares a document type"),
        (None, "<a>" * 200_000 + "</a>" * 200_000, r"001\.xml nests more than 16 elements"),
        (None, "<a>" + " " * 4 * 1024**2 + "</a>", r"001\.xml has 4194311 bytes; at most 4194304 are read"),
        ("<filename>001.png</filename>", "", r"001\.xml: there is no <filename>"),
        ("001.png", "../001.png", r"names the picture '\.\./001\.png'; expected a path within"),
        ("001.png", "none.png", r"none\.png: there is no such picture"),
        ("<name>", "<name>x", r"001\.xml, object 1: got the class 'x.*; allowed: cup, kite, sports ball"),
        ("<width>", "<width>x", r"001\.xml: <size><width> is 'x\d+'; expected a number of pixels"),
        ("<xmin>", "<xmin>nan", r"object 1: <bndbox><xmin> is 'nan"),
        ("<xmax>", "<xmax>9", r"001\.xml, object 1: the box .* is outside the picture"),
        ("xmin", "left", r"object 1: there is no <bndbox><xmin>"),
    ],
)
def test_a_bad_file_of_voc_is_one_line(tmp_path: Path, old: str | None, new: str, message: str) -> None:
    write_voc(tmp_path, PICTURES)
    xml = tmp_path / "Annotations" / "001.xml"
    xml.write_text(new if old is None else xml.read_text().replace(old, new))
    assert_one_bad(read_voc(tmp_path, classes=CLASSES), message)


def test_the_forms_of_voc(tmp_path: Path) -> None:
    write_voc(tmp_path / "set", PICTURES)
    folder = tmp_path / "set"
    whole = read_voc(folder)
    apart = read_voc(folder / "Annotations", images=folder / "JPEGImages", classes=("kite", "sports ball", "cup"))
    edges = read_voc(folder, coordinates="edges")
    for one, other, edge in zip(whole.samples, apart.samples, edges.samples, strict=True):
        assert [whole.classes[n] for n in one.class_ids] == [apart.classes[n] for n in other.class_ids]
        np.testing.assert_array_equal(one.boxes, other.boxes)
        if not edge.problem:  # a box of one pixel has no area between its edges
            np.testing.assert_array_equal(edge.boxes - one.boxes, np.tile([1, 1, 0, 0], (len(one.boxes), 1)))
    with pytest.raises(ValueError, match="coordinates must be 'pixels' or 'edges', got 'x'"):
        read_voc(folder, coordinates="x")  # type: ignore[arg-type]
    with pytest.raises(BadDataset, match="no XML file in"):
        read_voc(folder / "JPEGImages")
    with pytest.raises(BadDataset, match="nothing is not a folder"):
        read_voc(folder, images=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.2", r"001\.txt line 2: expected class x y width height, got '0 0\.5 0\.5 0\.2'"),
        ("0 0.1 0.1 0.2 0.1 0.2 0.2", r"line 2: expected class x y width height"),
        ("x 0.5 0.5 0.2 0.2", r"line 2: expected class x y width height"),
        ("3 0.5 0.5 0.2 0.2", r"001\.txt line 2: got the class 3; allowed: 0 to 2"),
        ("-1 0.5 0.5 0.2 0.2", r"line 2: got the class -1; allowed: 0 to 2"),
        ("0 0.5 0.5 1.2 0.2", r"line 2: the box .* is outside the picture"),
        ("0 1e400 0.5 0.2 0.2", r"line 2: the box .* is not finite"),
        ("9" * 5000 + " 1 1 1 1", r"line 2: expected class x y width height, got '9{60}'"),
        ("\udcff", r"001\.txt is not text in UTF-8"),
    ],
)
def test_a_bad_line_of_yolo_is_one_line(tmp_path: Path, line: str, message: str) -> None:
    write_yolo(tmp_path, PICTURES)
    with (tmp_path / "labels" / "train" / "001.txt").open("a", errors="surrogateescape") as file:
        file.write(line)
    assert_one_bad(read_yolo(tmp_path), message)
    (tmp_path / "images" / "train" / "001.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert_one_bad(read_yolo(tmp_path), r"001\.png: bad image \(")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: images/train", r"expected names, a list or a mapping of 0, 1, … to names, got 'None'"),
        ("names: {0: a, 2: b}", r"expected names, a list or a mapping"),
        ("names: []", r"expected names, a list or a mapping"),
        ("[1, 2]", r"expected a mapping with names, got list"),
        ("names: [a\n", r"data\.yaml cannot be read: not YAML"),
        ("names: [a]\ntrain: [images/train]", r"expected path and train to be folders"),
        ("names: [a]\ntrain: images/none", r"train is 'images/none', which is no folder in"),
        ("names: [a]\ntrain: labels/train", r"no picture in .*labels/train, where .* has the split 'train'"),
    ],
)
def test_a_bad_data_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_yolo(tmp_path, PICTURES)
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(BadDataset, match=message):
        read_yolo(tmp_path)


def test_the_forms_of_yolo(tmp_path: Path) -> None:
    write_yolo(tmp_path / "set", PICTURES)
    (tmp_path / "set" / "data.yaml").write_text("names: [a, b, c]\n")
    assert len(read_yolo(tmp_path / "set")) == len(PICTURES)
    roboflow = tmp_path / "roboflow"
    (roboflow / "train").mkdir(parents=True)
    (tmp_path / "set" / "images" / "train").rename(roboflow / "train" / "images")
    (tmp_path / "set" / "labels" / "train").rename(roboflow / "train" / "labels")
    (roboflow / "data.yaml").write_text("train: ../train/images\nval: ../valid/images\nnc: 3\nnames: ['a', 'b', 'c']\n")
    files = read_yolo(roboflow / "data.yaml")
    files.refuse_bad()
    assert [len(sample.boxes) for sample in files.samples] == [len(one.objects) for one in PICTURES]
    with pytest.raises(BadDataset, match=r"val is '\.\./valid/images', which is no folder"):
        read_yolo(roboflow, split="val")


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
@given(data=st.data())
def test_damaged_files_end_in_an_error_of_ours_or_a_value(
    sets: dict[str, Path], kind: str, data: st.DataObject
) -> None:
    """Bytes are overwritten, taken out or doubled anywhere in a file of boxes."""
    path = {
        "coco": sets["coco"],
        "voc": sets["voc"] / "Annotations" / "003.xml",
        "yolo": data.draw(st.sampled_from([sets["yolo"] / "data.yaml", sets["yolo"] / "labels/train/003.txt"])),
    }[kind]
    whole = path.read_bytes()
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    added = data.draw(st.binary(max_size=8)) + data.draw(st.sampled_from([b"", whole[begin:end]]))
    path.write_bytes(whole[:begin] + added + whole[end:])
    refused = ""
    try:
        if kind == "coco":
            files = read_coco(path, images=path.parent / "photos")
        else:
            files = read_voc(sets["voc"]) if kind == "voc" else read_yolo(sets["yolo"])
        for sample in files.samples:
            assert sample.problem.count("\n") == 0
            assert np.isfinite(sample.boxes).all()
            assert ((sample.boxes[:, 2:] > sample.boxes[:, :2]) & (sample.boxes[:, :2] >= 0)).all()
            assert (sample.boxes <= [*sample.size_hw[::-1], *sample.size_hw[::-1]]).all()
    except BadDataset as error:
        refused = str(error)
    finally:
        path.write_bytes(whole)
    assert "\n" not in refused
