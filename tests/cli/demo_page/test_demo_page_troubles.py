"""What the page says of servers that are busy, gone, of another version, or answer in any shape."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from fake_triton import FakeTriton, Model, Outputs, serving
from page_browser import opened
from page_process import ROOT, PageThread, pixels_of
from patience import wait_until

from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Resize, compile
from onestream.serving.server.triton.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZE = 8
DEFINITION = Definition(
    operations=(
        Decode(),
        Resize(mode="shorter", size=SIZE),
        CenterCrop(size=(SIZE, SIZE)),
        Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    )
)
STAMP = {"definition": DEFINITION.canonical_json(), "pipeline": "raw", "postprocess": '{"kind": "raw"}'}
FOUND = ("boxes", "names", "nothing", "scores", "unsure")


def found(number: int, *, score: float, unsure: int) -> Outputs:
    """The outputs of a network that finds so many things."""
    return {
        "boxes": np.ones((1, number, 4), np.float32),
        "names": np.full((1, number), b"thing", dtype=object),
        "nothing": np.zeros((1, 0), np.float32),
        "scores": np.full((1, 3), score, np.float32),
        "unsure": np.zeros((1, unsure), np.int64),
    }


def models() -> dict[str, Model]:
    """A raw pipeline that finds two things where its parts alone find five, and some that is unsure."""
    image, pixels, features = ["image"], ["pixels"], ["features"]
    black = {"pixels": np.zeros((1, SIZE, SIZE, 3), np.uint8)}
    return {
        "raw": Model(answer=lambda: found(2, score=0.5, unsure=1), inputs=image, outputs=FOUND, parameters=STAMP),
        "raw_preprocess": Model(answer=lambda: black, inputs=image, outputs=pixels),
        "raw_model": Model(answer=lambda: {"features": np.zeros((1, 2), np.float32)}, inputs=pixels, outputs=features),
        "raw_postprocess": Model(answer=lambda: found(5, score=0.25, unsure=0), inputs=features, outputs=FOUND),
    }


def newer() -> Model:
    """A pipeline whose definition has an operation that this version does not know."""
    definition = json.dumps({"operations": [{"op": "paint"}]})
    return Model(answer=dict, inputs=["image"], outputs=FOUND, parameters={**STAMP, "definition": definition})


@pytest.fixture
def triton(faked: tuple[FakeTriton, PageThread]) -> FakeTriton:
    """The server, as every test finds it."""
    fresh, _ = faked
    fresh.models = models()
    fresh.failing.clear()
    fresh.asked.clear()
    fresh.configs = 0
    return fresh


@pytest.fixture
def page(faked: tuple[FakeTriton, PageThread]) -> PageThread:
    return faked[1]


@pytest.mark.usefixtures("triton")
def test_outputs_of_any_shape_and_type_are_compared_where_they_can_be(page: PageThread, picture: bytes) -> None:
    shown = page.look("raw", picture)
    assert shown["answer"]["outputs"] == [
        "boxes: float32 [1, 2, 4], from 1 to 1",
        "names: object [1, 2]",
        "nothing: float32 [1, 0]",
        "scores: float32 [1, 3], from 0.5 to 0.5",
        "unsure: int64 [1, 1], from 0 to 0",
    ]
    server, *usual = shown["parity"]["rows"]
    assert server["answer"] == "scores: at most 0.25 apart, mean 0.25; boxes, unsure: outputs of another shape"
    assert {row["answer"] for row in usual} == {"boxes, scores: at most 0 apart, mean 0"}


def test_pixels_in_bgr_are_shown_as_they_look(triton: FakeTriton, page: PageThread, picture: bytes) -> None:
    bgr = Definition(operations=(Decode(color="bgr"), *DEFINITION.operations[1:]))
    (pixels,) = compile(bgr.pixels()).run([picture])
    whole, preprocess = triton.models["raw"], triton.models["raw_preprocess"]
    triton.models["raw"] = replace(whole, parameters={**STAMP, "definition": bgr.canonical_json()})
    triton.models["raw_preprocess"] = replace(preprocess, answer=lambda: {"pixels": pixels[None]})
    shown = page.look("raw", picture)
    for url in (shown["seen"]["image"], shown["parity"]["reference"]["image"]):
        np.testing.assert_array_equal(pixels_of(url), pixels[:, :, ::-1])
    assert shown["seen"]["operations"][0] == "decode: color bgr"


@pytest.mark.parametrize(
    "outputs",
    [{"names": np.full((1, 2), b"thing", dtype=object)}, {"boxes": np.zeros((1, 0, 4), np.float32)}],
    ids=["strings", "nothing"],
)
def test_what_cannot_be_compared_is_shown_without_a_comparison(
    triton: FakeTriton, page: PageThread, picture: bytes, outputs: Outputs
) -> None:
    for name in ("raw", "raw_postprocess"):
        triton.models[name] = replace(triton.models[name], answer=lambda: outputs, outputs=tuple(outputs))
    rows = page.look("raw", picture)["parity"]["rows"]
    assert rows[0]["name"] == "the server: raw_preprocess"
    assert {row["answer"] for row in rows} == {""}


@pytest.mark.parametrize(
    ("where", "code", "words", "status", "says"),
    [
        ("raw_postprocess", "UNAVAILABLE", "Exceeds maximum queue size", 503, "send fewer images at once, or later"),
        ("raw_postprocess", "DEADLINE_EXCEEDED", "Deadline Exceeded", 503, "no answer from model 'raw_postprocess'"),
        ("raw_model", "UNAVAILABLE", "failed to connect to all addresses", 503, "cannot reach grpc://127.0.0.1:"),
        ("ModelConfig", "UNAVAILABLE", "server is stopping", 503, "starting, stopping or being restarted"),
        ("raw_model", "INVALID_ARGUMENT", "unexpected shape", 502, "refused (INVALID_ARGUMENT): unexpected shape"),
    ],
)
def test_what_passes_can_be_tried_again(
    triton: FakeTriton, page: PageThread, picture: bytes, where: str, code: str, words: str, status: int, says: str
) -> None:
    triton.failing[where] = (grpc.StatusCode[code], words)
    given, answer = page.ask("/api/look?form=raw", picture)
    assert says in answer["error"]
    assert (given, answer["again"]) == (status, status == 503)


def test_a_model_of_another_version_leaves_others_usable(triton: FakeTriton, page: PageThread, picture: bytes) -> None:
    triton.models["newer"] = newer()
    status, offered = page.ask("/api/pipelines")
    assert status == 200
    assert [one["name"] for one in offered["pipelines"]] == ["raw"]
    (reason,) = offered["unreadable"]
    assert reason.startswith("model 'newer' was built by another version of onestream: ")
    assert page.look("raw", picture)["form"] == "raw"
    assert page.ask("/api/look?form=newer", picture) == (502, {"error": reason, "again": False})
    del triton.models["raw"]
    status, answer = page.ask("/api/pipelines")
    assert status == 503
    assert answer["error"].endswith(f"has no pipeline ready that takes images; {reason}")


def test_a_picture_that_nobody_waits_for_any_more_is_not_asked_about(
    triton: FakeTriton, page: PageThread, picture: bytes
) -> None:
    triton.go_on.clear()
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(page.ask("/api/look?form=raw", picture)))
    first.start()
    wait_until(lambda: triton.asked == ["raw"])
    read = triton.configs
    head = f"POST /api/look?form=raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(picture)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", page.port)) as given_up:
        given_up.sendall(head.encode() + picture)
        wait_until(lambda: triton.configs >= read + len(triton.models))
        # Answered after whatever the page had to do before; so is the next, after the page saw the connection close.
        page.ask("/api/samples/none.jpg")
    page.ask("/api/samples/none.jpg")
    triton.go_on.set()
    first.join(20)
    assert [status for status, _ in answers] == [200]
    page.look("raw", picture)
    assert triton.asked.count("raw") == 2


def test_a_browser_that_stops_sending_is_no_error(
    triton: FakeTriton, page: PageThread, picture: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as given_up:
        given_up.sendall(b"POST /api/look?form=raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nbegun")
        wait_until(lambda: triton.configs == len(triton.models))
        page.ask("/api/samples/none.jpg")
    page.look("raw", picture)
    assert caplog.records == []


@pytest.mark.needs_chromium
@pytest.mark.slow
def test_the_page_says_what_is_left_out_and_tries_again_where_a_server_is_busy(
    browser: Browser, triton: FakeTriton, page: PageThread
) -> None:
    triton.models["newer"] = newer()
    triton.failing["raw_postprocess"] = (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
    with opened(browser, page.url) as tab:
        left_out = tab.locator("#unreadable").inner_text()
        assert left_out.startswith("Left out: model 'newer' was built by another version of onestream: ")
        tab.get_by_role("button", name="coffee").click()
        again = tab.get_by_role("button", name="Try again")
        again.wait_for()
        assert "send fewer images at once, or later" in tab.get_by_role("alert").inner_text()
        triton.failing.clear()
        again.click()
        tab.get_by_text("coffee.jpg: done.").wait_for()
        assert "scores: float32 [1, 3]" in tab.locator("#answer").inner_text()


@pytest.mark.needs_chromium
@pytest.mark.slow
def test_a_server_that_is_gone_is_said_and_tried_again(browser: Browser) -> None:
    port = free_port("127.0.0.1")
    gone = f"cannot reach grpc://127.0.0.1:{port}"
    with PageThread(f"127.0.0.1:{port}") as page, browser.new_context() as context:
        tab = context.new_page()
        tab.goto(page.url)
        alert, again = tab.get_by_role("alert"), tab.get_by_role("button", name="Try again")
        coffee = tab.get_by_role("button", name="coffee")
        again.wait_for()
        assert gone in alert.inner_text()
        with serving({"raw": models()["raw"]}, port=port):
            wait_until(lambda: page.ask("/api/pipelines")[0] == 200)
            again.click()
            tab.get_by_text("Ready.").wait_for()
            coffee.click()
            tab.get_by_text("coffee.jpg: done.").wait_for()
            # This server has no model that shows its pixels, and none of the steps.
            assert "made here by the reference" in tab.locator("#seen-note").inner_text()
            assert "the server:" not in tab.locator("#maps").inner_text()
        coffee.click()
        again.wait_for()
        assert gone in alert.inner_text()
        page.stop()
        coffee.click()
        tab.get_by_text("is onestream demo page still running?").wait_for()


@pytest.mark.needs_triton
@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_ctrl_c_while_the_server_starts_ends_it_in_order() -> None:
    command = [sys.executable, "-m", "onestream", "demo", "page", "--serve", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("starting Triton with the models of ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
