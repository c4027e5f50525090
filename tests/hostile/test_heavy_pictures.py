"""Pictures that take long to decode, or are none, at a real server: others do not wait, and all are answered."""

from __future__ import annotations

import io
import resource
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache, partial
from pathlib import Path

import psutil
import pytest
from image_files import encode
from PIL import Image
from shared_server import CLASSIFY, SharedServer, built_in

from benchmarks.hostile import pictures
from onestream.client import BadImage, Client, ServerUnavailable
from onestream.preprocess.headers.reader import read_header
from onestream.preprocess.limits import HEAVY_WORK
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = pytest.mark.needs_triton
FORMS = ("classify", "classify_fused")
LARGE, DETECT = ("large", "large_fused"), ("detect", "detect_fused")
PHOTOS = sorted((Path(__file__).parents[2] / "examples" / "photos").glob("*.jpg"))


@cache
def slowly_decoded(side: int, kind: str = "JPEG") -> bytes:
    """A photo of so many pixels a side, in a form that takes long to decode."""
    options = {"progressive": True} if kind == "JPEG" else {"compress_level": 1}
    return encode(Image.open(PHOTOS[0]).convert("RGB").resize((side, side)), kind, **options)


heavy_picture = partial(slowly_decoded, 4900)
"""24 million pixels in about a megabyte."""
lighter_picture, heavy_png = partial(slowly_decoded, 3000), partial(slowly_decoded, 2000, "PNG")
with_large = pytest.mark.serves(CLASSIFY, built_in("large", of="classify", video=None))
"""The pipeline ``classify`` by a name of its own, since its queue is filled here."""


@pytest.mark.slow
def test_the_pictures_are_what_the_tests_need() -> None:
    files = (heavy_picture(), lighter_picture(), heavy_png())
    assert min(read_header(file).decoding_work for file in files) > HEAVY_WORK


@pytest.fixture(params=["grpc", "http"])
def client(server: SharedServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = server.grpc_url if request.param == "grpc" else server.http_url
    with Client(url, timeout_s=120.0, retries=0) as connected:
        yield connected


def test_a_heavy_picture_gets_the_answer_that_it_has_as_a_light_one(client: Client) -> None:
    bitmap = encode(Image.open(io.BytesIO(heavy_png())), "BMP")
    assert read_header(bitmap).decoding_work < HEAVY_WORK
    answers = [client.classify(file, pipeline=form).labels for file in (bitmap, heavy_png()) for form in FORMS]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.slow
@with_large
@pytest.mark.parametrize("pipeline", LARGE)
def test_light_pictures_are_answered_while_heavy_ones_wait(server: SharedServer, pipeline: str) -> None:
    photos = [path.read_bytes() for path in PHOTOS]
    with Client(server.grpc_url, timeout_s=120.0, retries=0) as client, ThreadPoolExecutor(24) as threads:
        alone = [client.classify(file, pipeline=pipeline).labels for file in photos]
        heavy_alone = client.classify(heavy_picture(), pipeline=pipeline).labels
        heavy = {threads.submit(client.classify, heavy_picture(), pipeline=pipeline) for _ in range(8)}
        wait(heavy, return_when=FIRST_COMPLETED)
        # What was decoded so far says that the others are in the line now.
        light = [threads.submit(client.classify, file, pipeline=pipeline) for file in photos]
        for number, future in enumerate(light):
            assert future.result().labels == alone[number % len(photos)]
        assert not all(future.done() for future in heavy)
        assert {future.result().labels for future in heavy} == {heavy_alone}


@pytest.mark.slow
@with_large
@pytest.mark.parametrize("pipeline", LARGE)
def test_more_heavy_pictures_than_can_wait_are_refused_as_not_available(client: Client, pipeline: str) -> None:
    def outcome(future: Future[object]) -> str:
        error = future.exception()
        if isinstance(error, ServerUnavailable):
            assert "too many large images, or pages of much text, wait" in str(error)
            assert "starting" not in str(error)
            return "refused"
        assert error is None
        return "answered"

    with ThreadPoolExecutor(60) as threads:
        futures = [threads.submit(client.classify, lighter_picture(), pipeline=pipeline) for _ in range(60)]
        counts = Counter(outcome(future) for future in futures)
    assert counts["refused"] > 0
    assert counts["answered"] > 0
    client.classify(PHOTOS[0].read_bytes(), pipeline=pipeline)


@pytest.mark.parametrize("pipeline", FORMS)
def test_a_heavy_picture_that_is_damaged_is_an_error_of_its_own(client: Client, pipeline: str) -> None:
    damaged = bytearray(heavy_png())
    middle = len(damaged) // 2
    damaged[middle : middle + 64] = bytes(64)
    files = [bytes(damaged), heavy_png(), PHOTOS[0].read_bytes()]
    items = list(client.classify_many(files, pipeline=pipeline, in_flight=3))
    for number, item in enumerate(items):
        if number % len(files) == 0:
            assert isinstance(item.error, BadImage)
            assert item.error.code == "corrupt"
        else:
            assert item.unwrap().labels


@pytest.mark.parametrize("pipeline", FORMS)
def test_one_above_the_limit_is_told_how_it_is_raised(client: Client, pipeline: str) -> None:
    large = encode(Image.new("1", (5001, 5000)), "PNG")
    with pytest.raises(BadImage, match=r"at most 25000000 are allowed \(limits\.max_pixels of the pipeline\)"):
        client.classify(large, pipeline=pipeline)


@pytest.mark.slow
@with_large
def test_one_without_memory_is_refused_as_not_available_and_the_others_are_answered(server: SharedServer) -> None:
    """The model's process may take 20 MiB more than it has; the picture's pixels are 72 MB."""
    coffee = PHOTOS[0].read_bytes()
    (process,) = [one for one in find_model_processes(server.pid).running if one.model == "large_fused"]
    before = resource.prlimit(process.pid, resource.RLIMIT_AS)
    with Client(server.grpc_url, timeout_s=120.0, retries=0) as client:
        alone = client.classify(coffee, pipeline="large_fused").labels
        allowed = psutil.Process(process.pid).memory_info().vms + 20 * 1024 * 1024
        resource.prlimit(process.pid, resource.RLIMIT_AS, (allowed, before[1]))
        try:
            for _ in range(2):
                with pytest.raises(ServerUnavailable, match=r"too little memory is free .*; it may be sent again"):
                    client.classify(heavy_picture(), pipeline="large_fused")
                assert client.classify(coffee, pipeline="large_fused").labels == alone
        finally:
            resource.prlimit(process.pid, resource.RLIMIT_AS, before)


@pytest.mark.slow
@pytest.mark.serves(built_in("detect"))
def test_good_pictures_are_unharmed_among_bad_ones(server: SharedServer) -> None:
    urls = (server.grpc_url, server.http_url)
    found = pictures.measure(urls=urls, forms=DETECT, requests=96, seed=1, progress=lambda _: None)
    for form in DETECT:
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
