"""Cascades on a real Triton: both forms and every protocol give the same rows, whatever the number of regions."""

from __future__ import annotations

import io
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import av
import detectors
import numpy as np
import pytest
import yaml
from colored_cells import CELLS, FORMS, MOST, SCALE, SIDE, ask_in_a_crowd, drawn, fields, picture, places
from networks import strongest_channel
from PIL import Image
from tritonclient import grpc

from onestream.client import Client, OnestreamError, ServerUnavailable
from onestream.serving.building.build import build
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = pytest.mark.needs_triton


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cascades")
    (folder / "things.yaml").write_text(yaml.safe_dump(fields(), sort_keys=False))
    detectors.level_detector(folder / "find.onnx", cells=CELLS)
    strongest_channel(folder / "name.onnx")
    networks = {name: folder / f"{name}.onnx" for name in ("find", "name")}
    built = build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)
    assert built.models == ["things", "things_find_model", "things_name_model", "things_fused", "things_video"]
    return folder / "repository"


def test_a_class_that_the_first_stage_does_not_know_is_refused_at_the_build(tmp_path: Path) -> None:
    described = fields()
    described["stages"]["find"]["postprocess"]["labels"] = ["cell"]
    described["stages"]["name"]["preprocess"]["operations"][0]["classes"] = ["sell"]
    (tmp_path / "things.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    detectors.level_detector(tmp_path / "find.onnx", cells=CELLS)
    strongest_channel(tmp_path / "name.onnx")
    networks = {name: tmp_path / f"{name}.onnx" for name in ("find", "name")}
    with pytest.raises(BadPipeline, match=r"stage name: region.classes has 'sell'.* expected cell"):
        build(tmp_path / "things.yaml", folder=tmp_path / "repository", onnx_files=networks)


def test_networks_that_do_not_fit_are_refused_by_their_stage(tmp_path: Path) -> None:
    path = tmp_path / "things.yaml"
    path.write_text(yaml.safe_dump(fields(), sort_keys=False))
    strongest_channel(tmp_path / "name.onnx", side=32)
    detectors.level_detector(tmp_path / "find.onnx", cells=CELLS)
    networks = {name: tmp_path / f"{name}.onnx" for name in ("find", "name")}
    for given, reason in (
        (networks, "stage name: .* takes .*32, 32"),
        ({"find": networks["find"]}, "stage name: .* names no built-in network; give its file: --onnx name=FILE"),
        ({"other": networks["find"]}, "things has no stage 'other'; it has find, name"),
    ):
        with pytest.raises((BadNetwork, BadPipeline), match=reason):
            build(path, folder=tmp_path / "repository", onnx_files=given)
    with pytest.raises(BadPipeline, match="things is a cascade; say whose network it is: --onnx STAGE="):
        build(path, folder=tmp_path / "repository", onnx_file=networks["find"])


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, shared_memory=True) as started:
        yield started


@pytest.fixture(params=["grpc", "http", "grpc, shared memory"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = server.http_url if request.param == "http" else server.grpc_url
    with Client(url, timeout_s=60, shared_memory="shared" in request.param) as connected:
        yield connected


@pytest.mark.parametrize("count", [0, 1, 5, 64, MOST, 1000])
def test_every_region_is_classified_in_both_forms(client: Client, count: int) -> None:
    colors = drawn(count, count)
    for form in FORMS:
        found = client.infer(form, picture(colors))
        rows = min(count, MOST)
        assert found["boxes"].shape == (1, rows, 4)
        assert found["labels"].shape == found["find_scores"].shape == (1, rows)
        assert found["left_out"].tolist() == [[count - rows]]
        assert found["image_size"].tolist() == [[SIDE * SCALE, SIDE * SCALE]]
        named = dict(zip(places(found["boxes"][0]), found["labels"][0].tolist(), strict=True))
        assert len(named) == rows
        assert all(label == colors[place].encode() for place, label in named.items())


def test_callers_get_their_own_rows_and_bad_pictures_hurt_nobody(server: Server) -> None:
    ask_in_a_crowd(server.grpc_url, FORMS)


def test_a_network_of_a_stage_can_be_asked_alone(server: Server) -> None:
    pixels = np.full((1, 16, 16, 3), (255, 0, 51), np.uint8)
    given = grpc.InferInput("pixels", list(pixels.shape), "UINT8")
    given.set_data_from_numpy(pixels)
    with grpc.InferenceServerClient(server.grpc_url.removeprefix("grpc://")) as client:
        found = client.infer("things_name_model", [given]).as_numpy("out")
    np.testing.assert_allclose(found, [[1, 0, 0.2]], atol=1e-6)


def test_each_stage_has_its_time_and_its_regions(server: Server) -> None:
    def value(series: str) -> float:
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))

    def metrics() -> dict[str, float]:
        return {form: value(f'onestream_regions_total{{model="{form}",stage="name"}}') for form in FORMS}

    before = metrics()
    # What was asked before arrives within a second.
    while (time.sleep(2), metrics())[1] != before:
        before = metrics()
    with Client(server.grpc_url, timeout_s=60) as client:
        for form in FORMS:
            client.infer(form, picture(drawn(9, 1)))
    deadline = time.monotonic() + 10
    while metrics() != {form: count + 9 for form, count in before.items()}:
        # Metrics arrive once a second.
        assert time.monotonic() < deadline, (before, metrics())
        time.sleep(0.2)
    for form in FORMS:
        for step in ("decode", "find_preprocess", "find_network", "find_postprocess", "name_network"):
            assert value(f'onestream_step_batches_total{{model="{form}",step="{step}"}}') > 0


def test_every_frame_of_a_stream_has_its_regions(server: Server, tmp_path: Path) -> None:
    counts = [3, 0, 7, 1, 40, 5]
    shown = [drawn(count, count) for count in counts]
    side = CELLS * detectors.CELL * SCALE
    with av.open(str(tmp_path / "cells.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv444p"
        for colors in shown:
            pixels = np.asarray(Image.open(io.BytesIO(picture(colors))))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    with (
        Client(server.grpc_url, timeout_s=60) as client,
        client.stream(tmp_path / "cells.mkv", pipeline="things") as frames,
    ):
        results = list(frames)
    assert len(results) == len(counts)
    for colors, result in zip(shown, results, strict=True):
        found = result.regions
        order = np.argsort(places(found.boxes))
        assert [found.tensors["labels"][place] for place in order] == colors
        assert found.left_out == 0


def test_a_network_that_is_killed_is_served_again_and_the_fused_form_does_not_notice(server: Server) -> None:
    (victim,) = [one for one in find_model_processes(server.pid).running if one.model == "things_name_model"]
    colors = drawn(6, 3)
    os.kill(victim.pid, signal.SIGKILL)
    failures = set()
    deadline = time.monotonic() + 60
    with Client(server.grpc_url, timeout_s=20, retries=0) as client:
        while True:
            assert sorted(places(client.infer("things_fused", picture(colors))["boxes"][0])) == list(range(6))
            try:
                found = client.infer("things", picture(colors))
            except OnestreamError as error:
                failures.add(type(error))
                assert time.monotonic() < deadline, failures
                time.sleep(0.1)
                continue
            break
    assert found["labels"].shape == (1, 6)
    assert failures <= {ServerUnavailable}, failures
