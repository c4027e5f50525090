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
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.triton.ports import free_port

MIB = 1024 * 1024


def test_it_offers_what_the_server_serves(page: PageThread, photos: dict[str, bytes]) -> None:
    status, found = page.ask("/api/pipelines")
    assert status == 200
    expected = [name + form for name in ("classify", "detect", "matte", "page_gray") for form in ("", "_fused")]
    names = [one["name"] for one in found["pipelines"]]
    # The server has more, of other tests.
    assert [name for name in names if name in expected] == expected
    assert not any(name.endswith(("_preprocess", "_model", "_postprocess")) for name in names)
    assert found["samples"] == [f"{name}.jpg" for name in sorted(photos)]


def test_the_picture_is_what_the_server_feeds_its_network(
    page: PageThread, server: SharedServer, photos: dict[str, bytes]
) -> None:
    found = page.look("classify", photos["coffee"])
    seen = pixels_of(found["seen"]["image"])
    with Client(server.grpc_url) as client:
        fed = client.infer("classify_preprocess", photos["coffee"])["pixels"][0]
    np.testing.assert_array_equal(seen, fed)
    assert (found["seen"]["width"], found["seen"]["height"]) == (224, 224)
    assert found["seen"]["source"] == "the output of classify_preprocess on the server"
    assert found["seen"]["operations"] == [
        "decode",
        "resize: mode shorter, size 256",
        "center_crop: size 224",
        "normalize: mean 127, std 128, scale 1",
        "output",
    ]
    reference = pixels_of(found["parity"]["reference"]["image"])
    definition = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").preprocess
    (expected,) = compile(definition.pixels(), backend="reference").run([photos["coffee"]])
    np.testing.assert_array_equal(reference, expected)


def test_the_heat_maps_are_of_these_pixels(page: PageThread, photos: dict[str, bytes]) -> None:
    found = page.look("classify", photos["astronaut"])
    seen = pixels_of(found["seen"]["image"]).astype(int)
    reference = pixels_of(found["parity"]["reference"]["image"])
    server, *usual = found["parity"]["rows"]
    difference = np.abs(seen - reference)
    assert server["name"] == "the server: classify_preprocess"
    assert server["max"] == difference.max() == 0
    assert server["mean"] == pytest.approx(difference.mean())
    assert server["equal"] == pytest.approx((difference == 0).mean())
    np.testing.assert_array_equal(pixels_of(server["heat"]), paint(difference.max(axis=2)))
    assert server["same"] is True
    assert server["answer"].startswith("bobsled ")
    assert [row["name"].split(":")[0] for row in usual] == ["OpenCV", "Pillow"]
    for row in usual:
        # Neither antialiases as the definition does; docs/parity.md measures the same and names the flip.
        assert row["max"] > 10
        assert (row["same"], row["answer"].rpartition(" ")[0]) == (False, "football helmet")


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


def test_both_forms_show_the_same(page: PageThread, photos: dict[str, bytes]) -> None:
    ensemble, fused = (page.look(form, photos["coffee"]) for form in ("classify", "classify_fused"))
    assert ensemble["answer"]["labels"][0]["label"] == "espresso"
    for part in ("seen", "answer", "parity"):
        assert ensemble[part] == fused[part]


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


def test_bad_images_are_refused_in_the_clients_words(page: PageThread, photos: dict[str, bytes]) -> None:
    coffee = photos["coffee"]
    cases = {
        b"": "bad image (empty): 0 bytes, expected an encoded image",
        b"hello": "bad image (unsupported_format): got text; allowed: JPEG, PNG, WebP, TIFF, BMP",
        coffee[: len(coffee) // 2]: "bad image (corrupt): ",
    }
    for image, text in cases.items():
        status, found = page.ask("/api/look?form=classify", image)
        assert status == 422
        assert found["error"].startswith(text)
        assert found["again"] is False
    assert page.look("classify", coffee)["answer"]["labels"][0]["label"] == "espresso"


def test_a_file_of_200_mb_is_refused_without_being_held(page: PageThread) -> None:
    sent = [bytes(MIB)] * 200
    tracemalloc.start()
    try:
        status, found = page.ask("/api/look?form=classify", sent, **{"Content-Length": str(200 * MIB)})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, found["error"]) == (
        413,
        "bad image (too_large): 209715200 bytes, allowed are at most 33554432",
    )
    # It may keep the 32 MiB that are allowed until it knows better, in a buffer that grows by copying.
    assert peak < 80 * MIB


def test_other_web_sites_cannot_use_the_page(page: PageThread, photos: dict[str, bytes]) -> None:
    cases = [
        ({"Host": "attacker.example"}, "this page is at a local address, not at attacker.example"),
        (
            {"Host": "127.0.0.1.attacker.example:80"},
            "this page is at a local address, not at 127.0.0.1.attacker.example:80",
        ),
        ({"Host": "[x"}, "this page is at a local address, not at [x"),
        ({"Origin": "https://attacker.example"}, "a page of https://attacker.example may not ask here"),
        ({"Origin": "null"}, "a page of null may not ask here"),
    ]
    for headers, text in cases:
        assert page.ask("/api/look?form=classify", photos["coffee"], **headers) == (
            403,
            {"error": text, "again": False},
        )
    for host in (f"127.0.0.1:{page.port}", "localhost", "[::1]:1"):
        status, _ = page.ask("/api/look?form=classify", photos["coffee"], Host=host, Origin=f"http://{host}")
        assert status == 200


def test_what_is_not_there_is_named(page: PageThread) -> None:
    status, found = page.ask("/api/look?form=absent", b"x")
    assert status == 404
    assert "no pipeline 'absent' that takes images; it has " in found["error"]
    assert {"classify,", "classify_fused,", "detect,"} <= set(found["error"].split())
    assert page.ask("/api/samples/absent.jpg")[0] == 404
    assert page.ask("/../pyproject.toml")[0] == 404


def test_a_server_that_is_not_there_is_named_and_asked_again() -> None:
    with PageThread(f"127.0.0.1:{free_port('127.0.0.1')}") as page:
        status, found = page.ask("/api/pipelines")
    assert status == 503
    assert found["error"].startswith("cannot reach grpc://127.0.0.1:")
    assert found["again"] is True


def test_what_cannot_be_started_is_one_line_and_exit_status_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = [
            (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines reach the page"),
            (["--url", "127.0.0.1:1", "--serve"], "exclude each other"),
            (["--url", "http://127.0.0.1:8000", "--port", "0"], "expected host:port of Triton's gRPC service"),
            (["--port", str(taken.getsockname()[1])], "Address already in use"),
            (["--serve", "--repository", "absent", "--port", "0"], "absent"),
        ]
        for arguments, text in cases:
            result = CliRunner().invoke(app, ["demo", "page", *arguments])
            assert result.exit_code == 2, result.output
            assert text in result.stderr.strip().splitlines()[-1]
            assert isinstance(result.exception, SystemExit)


def test_beyond_this_machine_it_is_allowed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened beyond this machine: 127.0.0.1 stands for an address that is."""
    monkeypatch.setattr("onestream.cli.demo_page.service.is_loopback", lambda _host: False)
    monkeypatch.setattr("aiohttp.web.run_app", lambda *_page, **_options: None)
    result = CliRunner().invoke(app, ["demo", "page", "--insecure-bind", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert "warning: all who reach 127.0.0.1 can use this page" in result.stderr
    assert result.stdout.startswith("open http://127.0.0.1:")


def test_without_its_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = CliRunner().invoke(app, ["demo", "page"])
    assert result.exit_code == 2
    assert "aiohttp is not installed. Run: pip install -e '.[cpu,demo]'" in result.stderr


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
