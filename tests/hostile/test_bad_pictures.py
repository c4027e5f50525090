"""Good pictures get the answers that they get alone, with bad ones among them, from many callers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hostile import pictures
from onestream.serving.building.build import build
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[2]
FORMS = ("detect", "detect_fused")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bad-pictures")
    build(ROOT / "pipelines" / "detect.yaml", folder=folder)
    with Server(folder, http_port=0, grpc_port=0, metrics_port=0, models=FORMS) as started:
        yield started


@pytest.mark.slow
@pytest.mark.needs_triton
def test_good_pictures_are_unharmed_among_bad_ones(server: Server) -> None:
    urls = (server.grpc_url, server.http_url)
    found = pictures.measure(urls=urls, forms=FORMS, requests=240, seed=1, progress=lambda _: None)
    for form in FORMS:
        assert found[form]["how"] == {}
        assert found[form]["good"] > found[form]["bad"] > 0
        assert found[form]["good"] + found[form]["bad"] == 240


def test_an_answer_that_differs_from_the_one_alone_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drifting:
        """Answers each time with another number."""

        calls = 0

        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Drifting:
            return self

        def __exit__(self, *_: object) -> None: ...
        def predict(self, *_: object, **__: object) -> Drifting:
            Drifting.calls += 1
            return self

        def to_dict(self) -> dict[str, int]:
            return {"labels": Drifting.calls, "latency_ms": 1}

    monkeypatch.setattr(pictures, "Client", Drifting)
    found = pictures.measure(urls=("x",), forms=("one",), requests=48, seed=1, progress=lambda _: None)
    assert found["one"]["hurt"] == found["one"]["how"]["another answer"] == found["one"]["good"] > 0
