"""The contract of every kind: its row on the wire, what is built and answered, and what the client makes of it.

Whoever adds a kind adds a small pipeline of it to ``kind_networks``.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from both_clients import Connect
from client_fakes import FakeTransport
from hypothesis import given
from hypothesis import strategies as st
from image_files import encode
from kind_networks import built_of
from PIL import Image

from onestream.cli.bulk.outputs import arrow_columns
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.tables import Table
from onestream.cli.messages import lines
from onestream.client import Outputs, Result, Tensors, UnexpectedResponse, kinds
from onestream.client.kinds import RESULTS
from onestream.client.kinds.listed import Listed
from onestream.client.video.results import FrameResult, result_of
from onestream.measure.parity.answers import Tally
from onestream.measure.parity.network import Network
from onestream.postprocess.kinds import (
    OPTIONS,
    Opening,
    Options,
    labels_beside,
    read_postprocess,
    without_stages,
)
from onestream.preprocess import compile
from onestream.preprocess.backends.base import ON_CPU
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.models.in_process import InProcess
from onestream.wire import tensor_names
from onestream.wire.box_style import color_of
from onestream.wire.comparing import compare
from onestream.wire.kinds import KINDS, page_table
from onestream.wire.run_lengths import encode as encode_runs
from onestream.wire.tensor_names import BOXES, IMAGE_SIZE, QUADS

ROOT = Path(__file__).parents[2]
SIZE_HW = (20, 30)
LENGTHS = {"height": 4, "width": 4, "masks": 1}
CLASSES = np.where(np.arange(30) < 15, 1, 0)[None].repeat(20, axis=0)
CHARACTER_SCORES = np.float32([0.5, 0.25, 1, 0.125]).tobytes()
MASK = encode(Image.fromarray(CLASSES.astype(np.uint8)), "PNG")
RUNS = encode_runs(np.array([40, 10, 550]))


SAID = {"masks": MASK, "character_scores": CHARACTER_SCORES, "run_lengths": RUNS}
FIXED = {
    BOXES: np.array([[[1, 2, 9, 12], [11, 3, 28, 18]]], np.float32),
    QUADS: np.array([[[[x, 2], [x + 8, 2], [x + 8, 12], [x, 12]] for x in (1, 13)]], np.float32),
    IMAGE_SIZE: np.array([SIZE_HW], np.int32),
    "map": np.linspace(0, 9, 20 * 30, dtype=np.float32).reshape(1, *SIZE_HW),
    "skeleton": np.array([[[0, 1], [1, 0]]], np.int32),
    "class_ids": np.array([[0, 1]], np.int32),
}


def answer(kind: str) -> Tensors:
    """An answer of this kind: two of what there may be many, values by the datatypes of the row."""
    found: Tensors = {}
    for one in KINDS[kind].outputs:
        shape = (1, *(side if isinstance(side, int) else LENGTHS.get(side, 2) for side in one.shape))
        if one.name in FIXED:
            found[one.name] = FIXED[one.name]
        elif one.dtype in ("text", "file"):
            found[one.name] = np.empty(shape, object)
            found[one.name].fill(SAID.get(one.name, b"caf\xc3\xa9"))
        else:
            found[one.name] = np.linspace(9, 1, int(np.prod(shape))).astype(one.dtype).reshape(shape)
    if {BOXES, QUADS} <= found.keys() and any(one.is_optional for one in KINDS[kind].outputs):
        del found[BOXES]
    if kind == "raw":
        found["heat"] = np.ones((1, 2, 3), np.float32)
    return found


def read(kind: str) -> Result:
    return kinds.read(kind, "m", answer(kind), "id", 1.5)


def test_every_kind_has_its_row_and_the_page_has_them_all() -> None:
    assert {*(one.model_fields["kind"].default for one in OPTIONS), "regions", "reading"} == set(KINDS)
    assert set(RESULTS) <= set(KINDS)
    assert page_table() in (ROOT / "docs" / "wire-contract.md").read_text(encoding="utf-8"), page_table()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_becomes_a_result_json_a_table_lines_and_a_frame(kind: str) -> None:
    result = read(kind)
    assert type(result) is RESULTS.get(kind, Outputs)
    said = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {"model": "m", "request_id": "id", "latency_ms": 1.5}.items() <= said.items()
    if type(result) is not Outputs:
        again = type(result).from_dict(said)
        assert json.loads(json.dumps(again.to_dict())) == said
    row = Row.of_result("a.jpg", "", result, top=2)
    assert Row.from_journal(row.to_journal()).to_json() == row.to_json()
    for is_flat in (False, True):
        table = Table.of(result, 2, is_flat=is_flat)
        assert all(len(record) == len(table.columns) for record in table.records(row))
        assert set(result.records(is_flat=is_flat)[0]) <= set(table.columns)
    nested = arrow_columns(Table.of(result, 2, is_flat=False), [row])
    assert all(isinstance(column, pa.Array) and len(column) == 1 for column in nested.values())
    assert lines(result, 1)
    compared = result.compare(result)
    assert (len(compared.same), compared.difference) == (compared.of, 0)
    without_batch = {name: array[0] for name, array in answer(kind).items()}
    frame = FrameResult(0, 0, 0.0, 1.0, 1.0, without_batch, result=result_of(kind, "m", without_batch, 1.0))
    assert type(frame.result) is type(result)
    assert isinstance(result_of(None, "m", without_batch, 1.0), Outputs)
    assert result_of(kind, "m", {"video": np.zeros(5, np.uint8)}, 1.0) is None
    assert set(json.loads(json.dumps(frame.to_dict()))) >= set(result.values())
    picture = Image.new("RGB", SIZE_HW[::-1])
    if result.drawn_size is None:
        with pytest.raises(ValueError, match="are not drawn"):
            result.draw(picture)
    else:
        assert (result.drawn_size, result.draw(picture).size) == (SIZE_HW, picture.size)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(RESULTS.get(kind, Outputs), Outputs)])
def test_an_answer_that_lacks_a_tensor_or_has_two_of_one_is_refused(kind: str) -> None:
    for one in KINDS[kind].outputs:
        if not one.is_optional:
            with pytest.raises(UnexpectedResponse, match=r"expected .*(boxes|scores|masks|map|embedding)"):
                kinds.read(kind, "m", {name: array for name, array in answer(kind).items() if name != one.name}, "", 0)
        if one.name in answer(kind):
            twice = np.concatenate([answer(kind)[one.name]] * 2)
            with pytest.raises(UnexpectedResponse, match="for any kind use predict"):
                kinds.read(kind, "m", {**answer(kind), one.name: twice}, "", 0)


@pytest.mark.parametrize("kind", [kind for kind, result in RESULTS.items() if issubclass(result, Listed)])
@given(st.data())
def test_a_listed_result_is_indexed_and_joined_like_a_list(kind: str, data: st.DataObject) -> None:
    two = read(kind)
    result = type(two).concat([two, two[::-1], two[1:]])
    rows = [*two, *reversed(two), two[-1]]
    assert list(result) == rows
    some = data.draw(st.slices(len(rows)))
    assert list(result[some]) == rows[some]
    few = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1)))
    assert list(result[few]) == [rows[place] for place in few]
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kept = result[np.array(mask)]
    assert list(kept) == list(result[mask]) == [row for row, is_kept in zip(rows, mask, strict=True) if is_kept]
    assert type(kept) is type(result)
    again = type(result).concat([kept, result[~np.array(mask)], two[:0]])
    assert len(again) == len(rows)
    assert (again.model, again.request_id, again.latency_ms, again.drawn_size) == ("m", "id", 1.5, two.drawn_size)
    for wrong in (len(rows), [len(rows)], mask[1:]):
        with pytest.raises(IndexError):
            result[wrong]
    with pytest.raises(ValueError, match="to concatenate"):
        type(result).concat([])


def test_masks_are_drawn_in_the_colours_of_their_classes_and_counted_in_tables() -> None:
    result = read("segmentation")
    drawn = np.asarray(result.draw(Image.new("RGB", SIZE_HW[::-1])), np.int16)
    for class_id, column in ((1, 3), (0, 20)):
        assert np.abs(drawn[5, column] - np.array(color_of(class_id)) / 2).max() <= 1
    assert [(one["label"], one["class_id"], one["share"]) for one in result.records(is_flat=True)] == [
        ("café", 0, 0.5),
        ("café", 1, 0.5),
    ]
    assert result.caption() == ["café 50%, café 50%"]
    assert result.records()[0]["masks"] == [MASK]


# ---- from the pipeline file to the caller ---------------------------------------------------------------------------

CELLS = np.zeros((64, 64, 3), np.uint8)
CELLS[8:16, 8:16] = CELLS[40:48, 24:32] = (250, 40, 10)
PICTURE = io.BytesIO()
Image.fromarray(CELLS).save(PICTURE, "PNG")
TOLERANCE = 1e-5
"""Of sums in another order."""


def declared(folder: Path, model: str) -> dict[str, list[int]]:
    config = from_text((folder / model / "config.pbtxt").read_text(encoding="utf-8"))
    return {output.name: list(output.dims) for output in config.output}


def assert_alike(one: Tensors, other: Tensors) -> None:
    assert list(one) == list(other)
    for name, values in one.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, other[name], rtol=TOLERANCE, atol=TOLERANCE)
        else:
            np.testing.assert_array_equal(values, other[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_of_every_kind_is_built_answers_and_is_understood(
    kind: str, tmp_path: Path, connect: Connect
) -> None:
    built = built_of(kind, tmp_path)
    name = built.models[0]
    fused = InProcess(built.folder / f"{name}_fused")
    (answer,) = fused([PICTURE.getvalue()])
    assert isinstance(answer, dict), answer
    assert (fused.kind, KINDS[kind].missing({name: value.shape for name, value in answer.items()})) == (kind, False)
    outputs = declared(built.folder, name)
    assert outputs == declared(built.folder, f"{name}_fused")
    assert set(answer) == set(outputs)
    for output, dims in outputs.items():
        assert all(dim in (-1, side) for dim, side in zip(dims, answer[output].shape[1:], strict=True)), output
    # Both clients, whose models say the kind.
    with connect(transport=FakeTransport(lambda *_: answer, kinds={"mine": kind})) as client:
        result = client.predict(PICTURE.getvalue(), pipeline="mine")
    assert type(result) is RESULTS.get(kind, Outputs)
    assert len(result.summary()) > 0, "something is seen"
    same = compare(kind, answer, answer)
    assert (len(same.same), same.difference) == (same.of, 0)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options.model_fields["kind"].default))
def test_steps_tail_and_measures_of_every_kind(options: type[Options], tmp_path: Path) -> None:
    """The steps of the ensemble answer as the fused form, and so does the network with a tail of its own."""
    built = built_of(options.model_fields["kind"].default, tmp_path)
    folder = built.folder / f"{built.models[0]}_fused"
    (expected,) = InProcess(folder)([PICTURE.getvalue()])
    assert isinstance(expected, dict), expected
    parameters = from_text((folder / "config.pbtxt").read_text(encoding="utf-8")).parameters
    asked, definition = read_postprocess(parameters["postprocess"].string_value), built.pipeline.preprocess
    (pixels,) = compile(definition.pixels(), backend=ON_CPU).run([PICTURE.getvalue()])
    given = {"labels": labels_beside(asked, folder)}
    plain = folder / "1" / "model.onnx"
    networks: dict[bool, Any] = {False: plain, True: fused_network(plain, asked.model_dump_json())}
    for has_tail, network in networks.items():
        outputs = OnnxRuntimeEngine(network, threads=1).run({"pixels": np.asarray(pixels)[None]})
        made = asked.open(Opening(definition, has_tail=has_tail and asked.ends_in_graph, **given))
        (answer,) = without_stages(asked, made)(outputs, [CELLS.shape[:2]])
        assert_alike(answer, expected)
    compared = asked.open_compared(Opening(definition, given["labels"]))
    (one,) = compared(OnnxRuntimeEngine(plain, threads=1).run({"pixels": np.asarray(pixels)[None]}), [CELLS.shape[:2]])
    assert asked.agreement([(one, one)]).share == 1
    network = Network.built(built.folder, built.pipeline)
    assert isinstance(network, Network), network
    outputs = network.outputs(np.asarray(pixels))
    tally = Tally(network.answers)
    for form, said in (("", network.answers.read(outputs, CELLS.shape[:2])), ("mine", expected)):
        tally.add("a.png", form, network.answers.read(outputs, CELLS.shape[:2]), said)
    verdicts = tally.verdicts()
    assert (list(verdicts.flips), verdicts.predictions > 0) == ([], bool(asked.parity_section))
    for loops in asked.loops:
        importlib.import_module(loops)


# ---- who may know kinds ----------------------------------------------------------------------------------------------

ASKED = {one.__name__ for one in (*RESULTS.values(), *OPTIONS)}
TENSORS = {output.name for kind in KINDS.values() for output in kind.outputs} - {IMAGE_SIZE}
CONSTANTS = {name for name, value in vars(tensor_names).items() if isinstance(value, str) and value in TENSORS}
ROOMS = ("benchmarks", "cli", "client", "measure", "postprocess", "preprocess", "serving")
KNOWING = {
    # Tracks are of objects alone.
    "client/video/tracking.py",
    # What others' code does, who know some kinds.
    "measure/capacity/opencv_results.py",
    "measure/rapid_ocr.py",
}


def named(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def texts_in(*nodes: ast.AST | None) -> set[Any]:
    return {one.value for one in nodes if isinstance(one, ast.Constant)}


def asked_of(tree: ast.AST) -> list[str]:
    """Where a type of a kind is asked, a kind's name is compared, or a tensor is looked for; tables keyed by kinds."""
    found = []
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [
        one for one in imports if (one.module or "").startswith(("onestream.client", "onestream.postprocess.kinds"))
    ]
    asked = ASKED & {name.asname or name.name for one in ours for name in one.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found += [f"{node.lineno}: isinstance {name}" for name in named(node.args[1]) & asked]
        elif isinstance(node, ast.MatchClass):
            found += [f"{node.lineno}: case {name}" for name in named(node.cls) & asked]
        elif isinstance(node, ast.Dict):
            keys = [one for one in node.keys if one is not None]
            known = texts_in(*keys) & set(KINDS) | {one.id for one in keys if isinstance(one, ast.Name)} & asked
            found += [f"{node.lineno}: table of {sorted(known)}"] if len(known) > 1 else []
        elif isinstance(node, ast.Compare):
            if any(".kind" in ast.unparse(one) for one in (node.left, *node.comparators)):
                found += [f"{node.lineno}: kind {value}" for value in texts_in(*ast.walk(node)) & set(KINDS)]
            if isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(node.left, ast.Name):
                found += [f"{node.lineno}: {name} in" for name in {node.left.id} & CONSTANTS]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_asks_for_a_kind_by_its_type_its_name_or_its_tensors(room: str) -> None:
    """The kinds themselves may."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if path.parent.name != "kinds" and name not in KNOWING:
            found[name] = asked_of(ast.parse(path.read_text(encoding="utf-8")))
    assert not {name: places for name, places in found.items() if places}
