"""Cascades on a real Triton: both forms and every protocol give the same rows, whatever the number of regions."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import builds
import detectors
import numpy as np
import pytest
from colored_cells import (
    FORMS,
    GRID,
    MOST,
    SCALE,
    SIDE,
    ask_in_a_crowd,
    drawn,
    fields,
    picture,
    places,
    write,
    write_clip,
)
from networks import strongest_channel
from pages import blocks
from patience import wait_until
from PIL import Image
from shared_server import Served, SharedServer
from tritonclient import grpc
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.client import Client, Regions
from onestream.serving.building import build as building
from onestream.serving.errors import BadNetwork, BadPipeline

pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(GRID)]
BULKY_SIDE = 64


def test_networks_that_do_not_fit_are_refused_by_their_stage(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    networks = write(tmp_path)
    strongest_channel(networks["name"], side=32)
    for given, reason in (
        (networks, "stage name: .* takes .*32, 32"),
        ({"find": networks["find"]}, "stage name: .* names no built-in network; give its file: --onnx name=FILE"),
        ({"other": networks["find"]}, "grid has no stage 'other'; it has find, name"),
    ):
        with pytest.raises((BadNetwork, BadPipeline), match=reason):
            building.build(path, folder=tmp_path / "repository", onnx_files=given)
    with pytest.raises(BadPipeline, match="grid is a cascade; say whose network it is: --onnx STAGE="):
        building.build(path, folder=tmp_path / "repository", onnx_file=networks["find"])


def test_every_region_is_classified_in_both_forms(any_client: Client) -> None:
    for count in (0, 1, 5, MOST, 1000):
        colors = drawn(count, count)
        for form in FORMS:
            found = any_client.infer(form, picture(colors))
            rows = min(count, MOST)
            assert found["boxes"].shape == (1, rows, 4)
            assert found["labels"].shape == found["find_scores"].shape == (1, rows)
            assert found["left_out"].tolist() == [[count - rows]]
            assert found["image_size"].tolist() == [[SIDE * SCALE, SIDE * SCALE]]
            named = dict(zip(places(found["boxes"][0]), found["labels"][0].tolist(), strict=True))
            assert len(named) == rows
            assert all(label == colors[place].encode() for place, label in named.items())


def test_callers_get_their_own_rows_and_bad_pictures_hurt_nobody(server: SharedServer) -> None:
    ask_in_a_crowd(server.grpc_url, FORMS)


def test_a_network_of_a_stage_can_be_asked_alone(server: SharedServer) -> None:
    pixels = np.full((1, 16, 16, 3), (255, 0, 51), np.uint8)
    given = grpc.InferInput("pixels", list(pixels.shape), "UINT8")
    given.set_data_from_numpy(pixels)
    with grpc.InferenceServerClient(server.grpc_address) as client:
        found = client.infer("grid_name_model", [given]).as_numpy("out")
    np.testing.assert_allclose(found, [[1, 0, 0.2]], atol=1e-6)


def test_each_stage_has_its_time_and_its_regions(server: SharedServer, grpc_client: Client) -> None:
    def metrics() -> dict[str, float]:
        return {form: server.metric(f'onestream_regions_total{{model="{form}",stage="name"}}') for form in FORMS}

    before = metrics()
    # What was asked before arrives within a second.
    while (time.sleep(2), metrics())[1] != before:
        before = metrics()
    for form in FORMS:
        grpc_client.infer(form, picture(drawn(9, 1)))
    expected = {form: count + 9 for form, count in before.items()}
    wait_until(lambda: metrics() == expected, expected)
    for form in FORMS:
        for step in ("decode", "find_preprocess", "find_network", "find_postprocess", "name_network"):
            assert server.metric(f'onestream_step_batches_total{{model="{form}",step="{step}"}}') > 0


def test_every_frame_of_a_stream_has_its_regions(grpc_client: Client, tmp_path: Path) -> None:
    shown = [drawn(count, count) for count in (3, 0, 7, 40)]
    clip = write_clip(tmp_path / "cells.mkv", shown)
    with grpc_client.stream(clip, pipeline="grid") as frames:
        results = list(frames)
    assert len(results) == len(shown)
    for colors, result in zip(shown, results, strict=True):
        found = result.result
        assert isinstance(found, Regions)
        order = np.argsort(places(found.boxes))
        assert [found.tensors["labels"][place] for place in order] == colors
        assert found.left_out == 0


CELLS = 80
"""Of 8 pixels: the page's detector takes 640 by 640."""


def write_documented(folder: Path) -> dict[str, Path]:
    """The page's pipeline, whose own name another test serves, and networks of its stages."""
    (shown,) = [block for block in blocks("cascades.md", "yaml") if block.startswith("# things.yaml\n")]
    (folder / "documented.yaml").write_text(shown)
    networks = {"find": folder / "detector.onnx", "grade": folder / "classifier.onnx"}
    detectors.level_detector(networks["find"], cells=CELLS)
    strongest_channel(networks["grade"], side=128)
    return networks


def run(line: str, *more: str) -> str:
    """What a command of the page prints."""
    words = shlex.split(line)
    assert words[0] == "onestream"
    ended = CliRunner().invoke(app, [*words[1:], *more])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.mark.slow
@pytest.mark.serves(
    Served("documented", write_documented, ("documented", "documented_find_model", "documented_grade_model"))
)
def test_the_page_takes_two_networks_of_one_s_own_to_an_answer(
    server: SharedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(building, "build", builds.build)
    (commands,) = blocks("cascades.md", "bash")
    build_line, serve, predict = commands.replace("things", "documented").splitlines()
    write_documented(tmp_path)
    assert "documented_find_model, documented_grade_model, documented_fused" in run(build_line)
    assert serve == "onestream serve"
    # A cell is 24 pixels wide in it, so that it is above the page's min_side.
    pixels = np.zeros((1920, 1920, 3), np.uint8)
    pixels[300:900, 600:1080] = (255, 0, 0)
    Image.fromarray(pixels).save("photo.png")
    (line,) = run(predict, "--json", "--url", server.grpc_address).splitlines()
    answer = json.loads(line)
    assert answer["image_size"] == [1920, 1920]
    # Of the detector's 300 candidates the page's pipeline takes 100.
    assert answer["left_out"] == 200
    assert set(answer["labels"]) == {"good"}
    assert len(answer["boxes"]) == len(answer["find_scores"]) == len(answer["labels"]) == 100


def write_bulky(folder: Path) -> Mapping[str, Path]:
    """A cascade in which 600 regions are more work than is done at once."""
    stages = fields()["stages"]
    stages["name"]["preprocess"]["operations"][1]["size"] = [BULKY_SIDE, BULKY_SIDE]
    networks = write(folder, name="bulky", stages=stages)
    strongest_channel(networks["name"], side=BULKY_SIDE)
    return networks


@pytest.mark.serves(Served("bulky", write_bulky))
@pytest.mark.parametrize("form", ["bulky", "bulky_fused"])
def test_pictures_with_few_regions_do_not_wait_for_those_with_many(server: SharedServer, form: str) -> None:
    def ask(count: int) -> list[bytes]:
        found: list[bytes] = client.infer(form, picture(drawn(count, count)))["labels"][0].tolist()
        return found

    with Client(server.grpc_url, timeout_s=120.0, retries=0) as client, ThreadPoolExecutor(8) as threads:
        many = [threads.submit(ask, MOST) for _ in range(6)]
        # When the first is answered, the others have been put off.
        wait(many, return_when=FIRST_COMPLETED)
        few = [threads.submit(ask, 3).result() for _ in range(3)]
        assert not all(future.done() for future in many)
        assert [sorted(one) for one in few] == [sorted(color.encode() for color in drawn(3, 3))] * 3
        assert {tuple(sorted(one.result())) for one in many} == {tuple(sorted(c.encode() for c in drawn(MOST, MOST)))}
