"""Another version of a pipeline takes the place of the served one on a real Triton, while clients go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import detectors
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from builds import build
from int8_networks import color_network, pictures, pipeline_file
from networks import mean_color
from onnx import numpy_helper
from pages import blocks
from patience import PATIENCE_S, wait_until
from PIL import Image
from proxies import plain_proxy
from rollouts import clients_that_go_on, rollout, version_2
from small_models import running
from typer.testing import CliRunner

from onestream.cli.demo_page.served import Served
from onestream.cli.main import app
from onestream.client import Client
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.built.versions import version_steps
from onestream.serving.server.rollout_service import RolloutSession
from onestream.serving.server.server import Server
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PHOTO = ROOT / "examples" / "photos" / "cat.jpg"
FORMS = ("own", "own_fused")


def build_version(folder: Path, version: int, *, factor: float = 1.0, value: int = 114) -> Path:
    """Build a version whose scores are ``factor`` times those of version 1, on a border of ``value``."""
    network = mean_color((1, 3, 48, 64))
    (weights,) = network.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(factor), weights.name))
    (folder / "own.onnx").write_bytes(network.SerializeToString())
    operations = [
        {"op": "decode"},
        {"op": "letterbox", "size": [48, 64], "value": value},
        {"op": "normalize", "mean": [0.5] * 3, "std": [0.25] * 3},
    ]
    postprocess = {"kind": "classification", "top_k": 2, "activation": "none"}
    # One process of each model: starting them is what takes the time of these tests.
    serving = {"cpu_instances": 1}
    (folder / "own.yaml").write_text(
        yaml.safe_dump({"preprocess": {"operations": operations}, "postprocess": postprocess, "serving": serving})
    )
    build(folder / "own.yaml", folder=folder / "repository", onnx_file=folder / "own.onnx", version=version)
    return folder / "repository"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of every pipeline of these tests."""
    folder = tmp_path_factory.mktemp("rollout")
    build_version(folder, 1)
    build_detector(folder, 1, score_threshold=0.3)
    file, own = pipeline_file(folder, color_network(), cpu_instances=1)
    build(file, folder=folder / "repository", onnx_file=own)
    return folder


@pytest.fixture(scope="module")
def own_server(folder: Path) -> Iterator[Server]:
    with running(folder / "repository", device="cpu") as server:
        yield server


@contextmanager
def proxied(server: Server, folder: Path) -> Iterator[list[str]]:
    """The addresses of a proxy before the server, where this machine has an nginx."""
    if not shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        yield []
        return
    repository = f"--repository={server.repository}"
    with plain_proxy(folder / "proxy.log", repository, http=server.http_address, grpc=server.grpc_address) as addresses:
        yield [f"http://{addresses[0]}", addresses[1]]


def scores(client: Client, model: str) -> npt.NDArray[np.float32]:
    return client.infer(model, PHOTO)["scores"]


def words(printed: str) -> list[str]:
    """The words of each line; what was measured left out, and how the pixels differ."""
    return [re.sub(r"(?<=^pixels ).*|[\d.]+", "", " ".join(line.split())) for line in printed.splitlines()]


def model_names(server: Server) -> set[str]:
    """The models of all versions of this pipeline that run."""
    running = {process.model for process in find_model_processes(server.pid).running}
    return {model for model in running if model.startswith("own_")}


def wait_for_version(server: Server, version: int) -> None:
    """Wait until the models of this version are the only ones."""
    steps = set(version_steps(server.repository, "own", version))
    allowed = steps | {"own_fused", f"own_v{version}_fused"}
    wait_until(lambda: steps < model_names(server) <= allowed)


def test_clients_notice_nothing_but_other_answers(folder: Path, own_server: Server) -> None:
    """Those of a proxy neither. Version 2 has other pixels and three times the scores: a mixture would be neither."""
    build_version(folder, 2, factor=3.0, value=0)
    with Client(own_server.grpc_url) as client, proxied(own_server, folder) as behind:
        before = scores(client, "own")
        options = {"photos": [PHOTO], "wait_for_version": wait_for_version}
        urls = [own_server.grpc_url, own_server.http_url, *behind]
        with (
            clients_that_go_on(urls, FORMS, [scores]) as seen,
            version_2(own_server, "own", "--least-top1=0", **options) as there,
        ):
            (shown,) = blocks("rollout.md", "text")
            assert words(there.output.replace("own", "classify")) == words(shown)
            after = scores(client, "own")
        client.wait_until_ready(timeout_s=PATIENCE_S)
    assert not np.allclose(before, after)

    def version_of(answer: npt.NDArray[np.float32]) -> int:
        # Batches of other sizes may round the mean of a channel otherwise.
        (version,) = [number for number, known in ((1, before), (2, after)) if np.allclose(answer, known, rtol=1e-5)]
        return version

    there.check(seen, FORMS, version_of, more_than=10)
    assert own_server.restarts == {}


@pytest.mark.parametrize(
    ("version", "broken", "reason"),
    [
        (3, "network", "own_v3_model' failed to load"),
        (4, "stamp", "model own_v4_preprocess: config.pbtxt was built with definition"),
        (5, "classes", "the same best class for 0.0% of the photos; asked for 99.0%"),
    ],
)
def test_a_version_that_is_not_right_is_refused(
    folder: Path, own_server: Server, version: int, broken: str, reason: str
) -> None:
    # The opposite of every score makes the worst class the best.
    repository = build_version(folder, version, factor=-1.0 if broken == "classes" else 1.0)
    if broken == "network":
        (repository / "own_v3_model" / "1" / "model.onnx").unlink()
        (repository / "own_v3_model" / "1" / "model.onnx").write_bytes(b"not a network")
    if broken == "stamp":
        for model in repository.glob("own_v4*"):
            stamp = model / "definition.json"
            stamp.write_text(stamp.read_text().replace("114", "115"))
    with Client(own_server.grpc_url) as client:
        before = scores(client, "own")
        result = rollout(own_server, "own", f"--to={version}", photos=[PHOTO])
        assert result.exit_code == 1
        assert reason in " ".join(result.output.split())
        assert str(repository) not in result.output
        wait_for_version(own_server, 1)
        client.wait_until_ready(timeout_s=PATIENCE_S)
        for model in FORMS:
            np.testing.assert_array_equal(scores(client, model), before)


def build_detector(folder: Path, version: int, *, score_threshold: float) -> Path:
    detectors.level_detector(folder / "cells.onnx")
    fields = detectors.pipeline("cells", score_threshold=score_threshold)
    (folder / "cells.yaml").write_text(yaml.safe_dump(fields))
    build(folder / "cells.yaml", folder=folder / "repository", onnx_file=folder / "cells.onnx", version=version)
    return folder / "repository"


def test_versions_of_a_detector_are_compared_by_their_objects(folder: Path, own_server: Server, tmp_path: Path) -> None:
    """A bright and a dim object in one photo, none in another: a higher threshold loses the dim one."""
    photos = tmp_path / "photos"
    photos.mkdir()
    pixels = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    Image.fromarray(pixels).save(photos / "nothing.png")
    pixels[:8, :8, 0], pixels[-8:, -8:, 0] = 255, 128
    Image.fromarray(pixels).save(photos / "two.png")
    build_detector(folder, 2, score_threshold=0.7)
    lost = rollout(own_server, "cells", "--to=2", photos=[photos])
    assert lost.exit_code == 1
    assert "the same object for 50.0% of the objects found; asked for 99.0%" in " ".join(lost.output.split())
    with Client(own_server.grpc_url) as client:
        assert len(client.detect(photos / "two.png", pipeline="cells")) == 2


def test_int8_takes_the_place_of_float32_and_answers_the_same(folder: Path, own_server: Server) -> None:
    """It is compared with float32 by ``onestream parity``, and the demo page names it."""
    forms, repository, file = ("colors", "colors_fused"), own_server.repository, folder / "colors.yaml"
    shown = pictures(folder / "pictures")
    calibration = Calibration(pictures=shown)
    options = {"onnx_file": folder / "colors.onnx", "precision": "int8", "calibration": calibration}
    build(file, folder=repository, version=2, **options)
    photos = [str(path) for path in shown[:3]]

    def precisions() -> set[str]:
        with contextlib.closing(Served(own_server.grpc_url)) as page:
            return {page.offer().forms[form].precision for form in forms}

    assert precisions() == {"float32"}
    with Client(own_server.grpc_url) as client:
        before = [client.classify(photo, pipeline="colors").top for photo in photos]
    ended = rollout(own_server, "colors", "--to=2", photos=photos)
    assert ended.exit_code == 0, ended.output
    assert "float32 → int8" in ended.output
    assert precisions() == {"int8"}
    with Client(own_server.grpc_url) as client:
        for form in forms:
            after = [client.classify(photo, pipeline=form).top for photo in photos]
            assert [one.label for one in after] == [one.label for one in before] == ["red", "green", "blue"]
            assert [one.score for one in after] != [one.score for one in before]
            assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=0.05)
    where = [f"--repository={repository}", f"--url={own_server.grpc_url}"]
    ended = CliRunner().invoke(app, ["parity", str(file), *photos, *where, "--against=none", "--json=-"])
    report = json.loads(ended.stdout)
    (asked,) = [subject for subject in report["subjects"] if subject["name"] == "server (int8)"]
    # Both forms' answers beside those of the reference and float32.
    assert (asked["predictions"], asked["flips"]) == (6, [])
    assert ended.exit_code == 0


def test_a_rollout_that_ends_early_is_undone(folder: Path, own_server: Server) -> None:
    build_version(folder, 6, factor=5.0)
    with Client(own_server.grpc_url) as client:
        before = scores(client, "own")
        with RolloutSession(own_server.repository, "own") as session:
            session.ask("switch", 6)
            assert not np.allclose(scores(client, "own"), before)
        wait_for_version(own_server, 1)
        np.testing.assert_array_equal(scores(client, "own_fused"), before)


def test_files_that_are_not_named_like_images_are_told(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / "a.jpg").write_bytes(PHOTO.read_bytes())
    result = CliRunner().invoke(
        app, ["rollout", "own", "--to=2", f"--photos={tmp_path}/photos", f"--repository={tmp_path}"]
    )
    assert result.exit_code == 2
    assert result.stderr.startswith("passed over 1 file that is not named like an image: ")
