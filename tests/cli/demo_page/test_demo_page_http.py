"""What the page's program answers, over plain HTTP and before a real server."""

from __future__ import annotations

import io
import re
import shlex
import socket
import sys
import tracemalloc
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from page_process import ROOT, PageProcess, PageThread, pixels_of
from pages import blocks
from PIL import Image
from shared_server import SharedServer
from typer.testing import CliRunner

from onestream.cli.demo_page.inspect_image import legend
from onestream.cli.main import app
from onestream.client import Client
from onestream.measure.parity.heatmap import BRIGHTEST_LEVEL, paint
from onestream.preprocess import compile
from onestream.preprocess.training import Augmentation
from onestream.preprocess.training.sheet import Subject, contact_sheet
from onestream.serving.pipeline import Pipeline
from onestream.wire.box_style import color_of

MIB = 1024 * 1024


def test_it_offers_what_is_served_and_names_what_is_not_there(page: PageThread, photos: dict[str, bytes]) -> None:
    status, found = page.ask("/api/pipelines")
    assert status == 200
    expected = [name + form for name in ("classify", "detect", "matte", "page_gray") for form in ("", "_fused")]
    names = [one["name"] for one in found["pipelines"]]
    # The server has more, of other tests.
    assert [name for name in names if name in expected] == expected
    assert not any(name.endswith(("_preprocess", "_model", "_postprocess")) for name in names)
    assert found["samples"] == [f"{name}.jpg" for name in sorted(photos)]
    status, found = page.ask("/api/look?form=absent", b"x")
    assert status == 404
    assert "no pipeline 'absent' that takes images; it has " in found["error"]
    assert {"classify,", "classify_fused,", "detect,"} <= set(found["error"].split())
    assert page.ask("/api/samples/absent.jpg")[0] == 404
    assert page.ask("/../pyproject.toml")[0] == 404


def assert_is_the_sheet(shown: dict[str, object], augmentation: Augmentation, pipeline: str, subject: Subject) -> None:
    definition = Pipeline.from_file(ROOT / "pipelines" / f"{pipeline}.yaml").preprocess
    sheet = contact_sheet(definition, augmentation, [subject], epochs=5)
    np.testing.assert_array_equal(pixels_of(str(shown["image"])), np.asarray(sheet.image))
    assert shown["variations"] == [str(one) for one in sheet.drawn[0]]
    assert "why" not in shown


def test_pixels_and_heat_maps_are_of_what_the_network_is_fed(
    page: PageThread, server: SharedServer, photos: dict[str, bytes]
) -> None:
    photo = photos["astronaut"]
    found = page.look("classify", photo)
    with Client(server.grpc_url) as client:
        fed = client.infer("classify_preprocess", photo)["pixels"][0]
    seen = pixels_of(found["seen"].pop("image"))
    np.testing.assert_array_equal(seen, fed)
    assert found["seen"] == {
        "width": 224,
        "height": 224,
        "source": "the output of classify_preprocess on the server",
        "operations": [
            "decode",
            "resize: mode shorter, size 256",
            "center_crop: size 224",
            "normalize: mean 127, std 128, scale 1",
            "output",
        ],
    }
    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    (reference,) = compile(definition.pixels(), backend="reference").run([photo])
    np.testing.assert_array_equal(pixels_of(found["parity"]["reference"]["image"]), reference)
    server_row, *usual = found["parity"]["rows"]
    difference = np.abs(seen.astype(int) - reference)
    assert server_row["name"] == "the server: classify_preprocess"
    assert server_row["max"] == difference.max() == 0
    assert server_row["mean"] == pytest.approx(difference.mean())
    assert server_row["equal"] == pytest.approx((difference == 0).mean())
    np.testing.assert_array_equal(pixels_of(server_row["heat"]), paint(difference.max(axis=2)))
    assert server_row["same"] is True
    assert server_row["answer"].startswith("bobsled ")
    assert [row["name"].split(":")[0] for row in usual] == ["OpenCV", "Pillow"]
    for row in usual:
        # Neither antialiases as the definition does; docs/parity.md measures the same and names the flip.
        assert row["max"] > 10
        assert (row["same"], row["answer"].rpartition(" ")[0]) == (False, "football helmet")
    fused = page.look("classify_fused", photo)
    for shown in (found, fused):
        assert_is_the_sheet(shown["training"], Augmentation(), "classify", Subject("photo", photo))
    assert (fused["answer"], fused["parity"]) == (found["answer"], found["parity"])
    np.testing.assert_array_equal(pixels_of(fused["seen"].pop("image")), fed)
    assert fused["seen"] == found["seen"]


@pytest.mark.parametrize("form", ["detect", "detect_fused"])
def test_objects_are_those_that_the_client_gets(
    page: PageThread, server: SharedServer, photos: dict[str, bytes], form: str
) -> None:
    found = page.look(form, photos["coffee"])
    with Client(server.grpc_url) as client:
        expected = client.detect(photos["coffee"], pipeline=form)
    answer = found["answer"]
    assert (answer["kind"], answer["height"], answer["width"]) == ("objects", 400, 600)
    assert [(one["label"], one["score"], [*one["quad"][0], *one["quad"][2]]) for one in answer["objects"]] == [
        (one.label, one.score, list(one.box)) for one in expected
    ]
    assert answer["objects"][0]["label"] == "cup"
    count = f"{len(expected)} of {len(expected)} objects"
    assert found["parity"]["reference"]["answer"] == count
    server, *usual = found["parity"]["rows"]
    assert (server["answer"], server["same"]) == (count, True)
    assert all(" of " in row["answer"] for row in usual)


def test_the_milliseconds_are_of_one_request_and_sum_up(page: PageThread, photos: dict[str, bytes]) -> None:
    # Nobody else asks this pipeline.
    steps = {"page_gray": ["preprocess", "network", "postprocess"], "page_gray_fused": ["all steps"]}
    for form, names in steps.items():
        time = page.look(form, photos["coffee"])["time"]
        parts = {part["name"]: part["ms"] for part in time["parts"]}
        assert list(parts) == [*names, "queue", "transfer"]
        assert time["requests"] == 1
        assert sum(parts.values()) == pytest.approx(time["total_ms"])
        # Each runs for some time, and no clock of the server exceeds what its client waited.
        assert all(0 < ms < time["total_ms"] for ms in parts.values()), parts


def test_a_matte_is_composed(page: PageThread, photos: dict[str, bytes]) -> None:
    found = page.look("matte", photos["astronaut"])
    picture = np.asarray(Image.open(io.BytesIO(photos["astronaut"]))).astype(int)
    composed = pixels_of(found["answer"]["composed"]).astype(int)
    assert composed.shape == picture.shape
    face, flag = np.s_[100:160, 190:250], np.s_[20:200, 0:80]
    # Her face stays, within what JPEG loses; the flag behind her is blurred.
    assert np.abs(composed[face] - picture[face]).mean() < 4
    assert composed[flag].std(axis=0).mean() < 0.5 * picture[flag].std(axis=0).mean()
    assert pixels_of(found["answer"]["matte"]).shape == (256, 256)
    assert found["answer"]["person"] == pytest.approx(0.55, abs=0.1)
    assert found["parity"]["rows"][0]["answer"].startswith("matte: at most ")


def test_a_raw_pipeline_in_gray_shows_its_outputs(page: PageThread, photos: dict[str, bytes]) -> None:
    found = page.look("page_gray", photos["cat"])
    assert pixels_of(found["seen"]["image"]).shape == (48, 64)
    (scores,) = found["answer"]["outputs"]
    assert re.fullmatch(r"scores_out: float32 \[1, 7\], from -?[\d.]+ to [\d.]+", scores)
    server, *usual = found["parity"]["rows"]
    assert server["max"] == 0
    assert float(re.findall(r"scores_out: at most (\S+) apart", server["answer"])[0]) == 0
    assert all(row["max"] > server["max"] for row in usual)


CHAIN = "operations:\n- {op: scale_jitter}\n- {op: rotation, degrees: [20, 30]}\nfill: 200\n"


def test_the_page_can_start_with_an_augmentation(
    server: SharedServer, photos: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    with PageThread(server.grpc_address, augmentation=tmp_path / "chain.yaml") as page:
        seen = page.look("detect", photos["cat"])
    # With the boxes of what the server found.
    objects = seen["answer"]["objects"]
    classes = {f"rgb{color_of(class_id)}": class_id for class_id in range(100)}
    subject = Subject(
        "photo",
        photos["cat"],
        np.array([[*one["quad"][0], *one["quad"][2]] for one in objects], np.float32),
        np.array([classes[one["color"]] for one in objects], np.int64),
    )
    assert len(objects) > 0
    assert_is_the_sheet(seen["training"], Augmentation.from_yaml(CHAIN), "detect", subject)


@pytest.mark.slow
def test_without_pytorch_the_page_says_so_and_shows_the_rest(
    server: SharedServer, photos: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with PageProcess("--url", server.grpc_address, "--port", "0") as page:
        shown = page.look("classify", photos["coffee"])
    assert shown["answer"]["labels"][0]["label"] == "espresso"
    assert shown["training"]["image"] is None
    assert "needs PyTorch: pip install -e '.[train]'" in shown["training"]["why"]


def test_bad_images_are_refused_in_the_clients_words(page: PageThread, photos: dict[str, bytes]) -> None:
    coffee = photos["coffee"]
    cases = {
        b"": "bad image (empty): 0 bytes, expected an encoded image",
        b"hello": "bad image (unsupported_format): got text; allowed: JPEG, PNG, WebP, TIFF, BMP",
        coffee[: len(coffee) // 2]: "bad image (corrupt): ",
    }
    for image, text in cases.items():
        status, found = page.ask("/api/look?form=classify", image)
        assert (status, found["again"]) == (422, False)
        assert found["error"].startswith(text)
    assert page.look("classify", coffee)["answer"]["labels"][0]["label"] == "espresso"


def test_a_file_of_200_mb_is_refused_without_being_held(page: PageThread) -> None:
    tracemalloc.start()
    try:
        length = {"Content-Length": str(200 * MIB)}
        status, found = page.ask("/api/look?form=classify", [bytes(MIB)] * 200, **length)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, found["error"]) == (413, "bad image (too_large): 209715200 bytes, allowed are at most 33554432")
    # It may keep the 32 MiB that are allowed until it knows better, in a buffer that grows by copying.
    assert peak < 80 * MIB


def test_other_web_sites_cannot_use_the_page(page: PageThread, photos: dict[str, bytes]) -> None:
    hosts = ("attacker.example", "127.0.0.1.attacker.example:80", "[x")
    origins = ("https://attacker.example", "null")
    cases = [({"Host": host}, f"this page is at a local address, not at {host}") for host in hosts]
    cases += [({"Origin": origin}, f"a page of {origin} may not ask here") for origin in origins]
    for headers, text in cases:
        refused = page.ask("/api/look?form=classify", photos["coffee"], **headers)
        assert refused == (403, {"error": text, "again": False})
    for host in (f"127.0.0.1:{page.port}", "localhost", "[::1]:1"):
        status, _ = page.ask("/api/look?form=classify", photos["coffee"], Host=host, Origin=f"http://{host}")
        assert status == 200


def test_what_cannot_be_started_is_one_line_and_exit_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("operations: [{op: spin}]\n")

    def assert_refused(text: str, *arguments: str) -> None:
        result = CliRunner().invoke(app, ["demo", "page", *arguments])
        assert result.exit_code == 2, result.output
        assert text in result.stderr.strip().splitlines()[-1]
        assert isinstance(result.exception, SystemExit)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert_refused("Address already in use", "--port", str(taken.getsockname()[1]))
    assert_refused("--host 0.0.0.0 lets other machines reach the page", "--host", "0.0.0.0")
    assert_refused("exclude each other", "--url", "127.0.0.1:1", "--serve")
    assert_refused("expected host:port of Triton's gRPC service", "--url", "http://127.0.0.1:8000", "--port", "0")
    assert_refused("absent", "--serve", "--repository", "absent", "--port", "0")
    wrong = ("--augmentation", str(tmp_path / "wrong.yaml"))
    assert_refused("wrong.yaml: operations.0: no op 'spin' (allowed: ", "--port", "0", *wrong)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert_refused("aiohttp is not installed. Run: pip install -e '.[cpu,demo]'")


def test_beyond_this_machine_it_is_allowed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened beyond this machine: 127.0.0.1 stands for an address that is."""
    monkeypatch.setattr("onestream.cli.demo_page.service.is_loopback", lambda _host: False)
    monkeypatch.setattr("aiohttp.web.run_app", lambda *_page, **_options: None)
    result = CliRunner().invoke(app, ["demo", "page", "--insecure-bind", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert "warning: all who reach 127.0.0.1 can use this page" in result.stderr
    assert result.stdout.startswith("open http://127.0.0.1:")


def test_the_legend_shows_the_colours_of_the_levels_that_it_names() -> None:
    found = legend()
    strip = pixels_of(found["image"])[0].astype(int)
    for tick in found["ticks"]:
        color = strip[round(tick["at"] * (len(strip) - 1))]
        # Of 256 colours, the nearest pixel's may be the neighbour.
        assert np.abs(color - paint(np.array([tick["level"]]))[0]).max() <= 6
    assert found["ticks"][-1] == {"level": BRIGHTEST_LEVEL, "at": 1.0}
    np.testing.assert_array_equal(paint(np.array([BRIGHTEST_LEVEL])), paint(np.array([255])))


@pytest.mark.slow
def test_the_commands_of_the_docs_run(server: SharedServer, repository: Path) -> None:
    (block,) = (block for block in blocks("client.md", "bash") if "demo page" in block)
    serve, ask = (shlex.split(line, comments=True)[3:] for line in block.splitlines())
    assert repository == ROOT / "model_repository", "where the command looks"
    for arguments in (serve, [one.replace("127.0.0.1:8001", server.grpc_address) for one in ask]):
        with PageProcess(*arguments, "--port", "0") as page:
            with urlopen(page.url, timeout=30) as answer:
                assert b"What the network saw" in answer.read()
            status, found = page.ask("/api/pipelines")
            assert status == 200
            assert {"classify", "classify_fused"} <= {one["name"] for one in found["pipelines"]}
