"""What the page shows of cascades: outlines on the picture, text, and what is done before each stage's network."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from client_fakes import reading
from fake_triton import HEIGHT, WIDTH, FakeTriton, Model, Outputs, serving
from page_browser import opened
from page_process import PageThread, pixels_of

from onestream.cli.demo_page.inspect_image import look
from onestream.cli.demo_page.served import Served
from onestream.postprocess.kinds.classification import Classification
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess import Decode, Definition, Normalize, Region, Resize, compile
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.sheet import line_sheet
from onestream.preprocess.training.text.files import TextLine
from onestream.serving.cascade import SERVED_STAGES, ServedStage
from onestream.serving.pipeline import GpuOptions

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCALE = Normalize(mean=(0.5,) * 3, std=(0.5,) * 3)
FIND = Definition(operations=(Decode(color="bgr"), Resize(mode="longer", size=64, multiple_of=32), SCALE))
NAME = Definition(operations=(Region(of="find"), Resize(mode="exact", size=(16, 16)), SCALE))
SIGN = ((10, 10), (60, 20), (58, 30), (8, 20))


def stage(name: str, definition: Definition, postprocess: Detection | Classification) -> ServedStage:
    said = {"definition": definition, "definition_digest": definition.digest, "postprocess": postprocess}
    return ServedStage(name=name, network_outputs=("out",), answer=(), **said)


STAGES = (stage("find", FIND, Detection(family="yolo")), stage("name", NAME, Classification()))
PARAMETERS = {"stages": SERVED_STAGES.dump_json(STAGES).decode(), "pipeline": "things", "kind": "reading"}


def text(*lines: str) -> Outputs:
    return reading(*((line, 0.75, SIGN) for line in lines), size_hw=(HEIGHT, WIDTH))


def things() -> Outputs:
    return {
        "boxes": np.array([[(8, 4, 48, 44)]], np.float32),
        "labels": np.array([[b"rusty"]], object),
        "scores": np.array([[0.5]], np.float32),
        "class_ids": np.array([[3]], np.int32),
        "find_labels": np.array([[b"bolt"]], object),
        "find_scores": np.array([[0.875]], np.float32),
        "image_size": np.array([[HEIGHT, WIDTH]], np.int32),
        "left_out": np.array([[7]], np.int32),
    }


def models() -> dict[str, Model]:
    read = Model(
        answer=lambda: text("EXIT", "<b>7 km"), inputs=["image"], outputs=("quads", "texts"), parameters=PARAMETERS
    )
    return {
        "read": read,
        "things": replace(read, answer=things, parameters={**PARAMETERS, "kind": "regions"}),
        "empty": replace(read, answer=text),
    }


@pytest.fixture
def page(faked: tuple[FakeTriton, PageThread]) -> PageThread:
    return faked[1]


def test_what_training_sees_of_a_cascade_that_reads_are_its_lines(picture: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture)
    chain, quad = Augmentation([{"op": "warp"}]), np.array(SIGN, np.float32)
    lines = [TextLine(tmp_path / "a.png", "", (HEIGHT, WIDTH), quad, one) for one in ("EXIT", "<b>7 km")]
    with serving(models()) as (address, _), contextlib.closing(Served(address)) as served:
        form = served.offer().forms["read"]
        shown = look(served, form, picture, chain)["training"]
        refused = look(served, form, picture, Augmentation())["training"]
    sheet = line_sheet(NAME, chain, lines, epochs=5)
    np.testing.assert_array_equal(pixels_of(shown["image"]), np.asarray(sheet.image))
    assert shown["variations"] == [str(one) for row in sheet.drawn for one in row]
    assert refused["image"] is None
    assert refused["why"].startswith("Not shown: box cannot vary lines, only")
    assert refused["why"].endswith("Start the page with another --augmentation.")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, "float32"),
        ({"precision": "int8"}, "int8"),
        ({"gpu": GpuOptions().model_dump_json()}, "float32"),
        ({"gpu": GpuOptions(precision="int8").model_dump_json()}, "int8"),
        ({"gpu": GpuOptions(precision="tf32").model_dump_json()}, "TF32"),
    ],
)
def test_the_precision_of_the_network_is_told(parameters: dict[str, str], expected: str, picture: bytes) -> None:
    read = models()["read"]
    with (
        serving({"read": replace(read, parameters=PARAMETERS | parameters)}) as (address, _),
        contextlib.closing(Served(address)) as served,
    ):
        form = served.offer().forms["read"]
        assert look(served, form, picture, "not shown here")["time"]["precision"] == form.precision == expected


def test_objects_have_their_quads_and_what_each_stage_said(page: PageThread, picture: bytes) -> None:
    read, sorted_things, empty = (page.look(form, picture)["answer"] for form in ("read", "things", "empty"))
    assert (read["kind"], read["width"], read["height"]) == ("objects", WIDTH, HEIGHT)
    assert [(one["label"], one["what"], one["score"]) for one in read["objects"]] == [
        ("EXIT", "EXIT", 0.75),
        ("<b>7 km", "<b>7 km", 0.75),
    ]
    assert read["objects"][0]["quad"] == [list(corner) for corner in SIGN]
    assert read["objects"][0]["where"] == "10,10 60,20 58,30 8,20"
    assert "left out" not in read["note"]
    (bolt,) = sorted_things["objects"]
    assert (bolt["label"], bolt["what"], bolt["where"]) == ("rusty", "rusty (find: bolt 0.88)", "8, 4, 48, 44")
    assert bolt["quad"] == [[8, 4], [48, 4], [48, 44], [8, 44]]
    assert "7 more were found and left out" in sorted_things["note"]
    assert (empty["objects"], empty["nothing"]) == ([], "No text.")


def test_the_first_network_s_view_is_shown_and_what_is_done_before_each(page: PageThread, picture: bytes) -> None:
    shown = page.look("read", picture)
    (pixels,) = compile(FIND.pixels(), backend="reference").run([picture])
    np.testing.assert_array_equal(pixels_of(shown["seen"]["image"]), pixels[:, :, ::-1])
    assert shown["seen"]["source"].startswith("what the first network saw, that of find; made here by the reference")
    operations = shown["seen"]["operations"]
    assert operations[0] == "find: decode: color bgr"
    assert next(line for line in operations if line.startswith("name: ")) == "name: region: of find"
    assert [part["name"] for part in shown["time"]["parts"]] == ["all stages", "queue", "transfer"]
    status, offered = page.ask("/api/pipelines")
    assert (status, offered["unreadable"]) == (200, [])
    assert [one["name"] for one in offered["pipelines"]] == ["empty", "read", "things"]


@pytest.mark.needs_chromium
@pytest.mark.slow
def test_quads_lie_on_the_picture_and_texts_beside_it(browser: Browser, page: PageThread, picture: bytes) -> None:
    with opened(browser, page.url) as tab:
        tab.get_by_label("Pipeline").select_option("read")
        tab.locator("#file").set_input_files({"name": "sign.png", "mimeType": "image/png", "buffer": picture})
        tab.get_by_text("sign.png: done.").wait_for()
        assert tab.locator("#objects .label").all_inner_texts() == ["EXIT", "<b>7 km"]
        assert tab.locator("#boxes text").all_text_contents() == ["<b>7 km", "EXIT"]
        quads = tab.locator("#boxes polygon")
        assert quads.count() == 2
        assert quads.first.get_attribute("points") == "10,10 60,20 58,30 8,20"
        assert tab.locator("#boxes").get_attribute("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
        tab.get_by_label("Pipeline").select_option("empty")
        tab.get_by_text("No text.").wait_for()
        assert quads.count() == 0
