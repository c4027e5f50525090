"""Good pictures get the answers that they get alone, with bad ones among them, from many callers."""

from __future__ import annotations

import pytest
from shared_server import SharedServer, built_in

from benchmarks.hostile import pictures

FORMS = ("detect", "detect_fused")


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.serves(built_in("detect"))
def test_good_pictures_are_unharmed_among_bad_ones(server: SharedServer) -> None:
    urls = (server.grpc_url, server.http_url)
    found = pictures.measure(urls=urls, forms=FORMS, requests=96, seed=1, progress=lambda _: None)
    for form in FORMS:
        assert found[form]["how"] == {}
        assert found[form]["good"] > found[form]["bad"] > 0
        assert found[form]["good"] + found[form]["bad"] == 96


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
