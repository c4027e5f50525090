"""What a call sends and how its answer is understood."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
from both_clients import Connect
from client_fakes import FakeTransport, classification, echo_size
from PIL import Image

from onestream.client import (
    DEFAULT_MAX_BODY_BYTES,
    BadImage,
    CannotConnect,
    Client,
    ClientClosed,
    Item,
    Label,
    TimedOut,
)
from onestream.client.calls import Limits, limits_of

ESPRESSO = classification(("espresso", 967, 0.95), ("café au lait", 1, 0.03))


def test_a_classification_is_typed(connect: Connect) -> None:
    answers = [ESPRESSO, {name: array for name, array in ESPRESSO.items() if name != "labels"}, {"boxes": np.zeros(3)}]
    with connect(transport=FakeTransport(lambda *_: answers.pop(0))) as client:
        result, nameless = (client.classify(b"image", pipeline="classify_fused") for _ in range(2))
        assert client.infer("detect", b"image")["boxes"].tolist() == [0, 0, 0]
    assert result.top == Label(label="espresso", class_id=967, score=pytest.approx(0.95))
    assert [label.label for label in result.labels] == ["espresso", "café au lait"]
    assert result.model == "classify_fused"
    assert result.latency_ms >= 0
    assert type(result.top.class_id) is int
    assert type(result.top.score) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.model = "other"  # type: ignore[misc]
    assert [(label.class_id, label.label) for label in nameless.labels] == [(967, "967"), (1, "1")]
    with pytest.raises(ValueError, match="exactly one"):
        Item(0, "cat.jpg")


def test_the_size_limit_is_the_callers_or_asked_once_for_each_model(connect: Connect) -> None:
    for own, limit, asked in (({}, 100, 1), ({"max_body_bytes": 200}, 200, 0)):
        transport = FakeTransport(parameters={"max_body_bytes": "100"})
        with connect(transport=transport, **own) as client:
            assert client.max_body_bytes() == limit
            client.classify(bytes(limit))
            with pytest.raises(BadImage, match=f"at most {limit}"):
                client.classify(bytes(limit + 1))
            assert transport.config_calls == asked
            client.classify(b"image", pipeline="classify_fused")
        assert transport.config_calls == 2 * asked
        assert len(transport.inferences) == 2


def test_a_picture_of_too_many_pixels_is_neither_encoded_nor_sent(connect: Connect) -> None:
    transport = FakeTransport(parameters={"max_pixels": str(25_000_000)})
    with connect(transport=transport) as client, pytest.raises(BadImage, match=r"too_many_pixels.*8000x6000"):
        client.classify(Image.new("RGB", (8000, 6000)))
    assert not transport.inferences


MINUTE = {"timeout_s": "60"}


@pytest.mark.parametrize(
    ("parameters", "options", "call", "least", "most"),
    [
        ({}, {}, {}, 0, 10),
        (MINUTE, {}, {}, 10, 60),
        (MINUTE, {"timeout_s": 300}, {}, 60, 300),
        (MINUTE, {"timeout_s": 5}, {}, 0, 5),
        (MINUTE, {}, {"timeout_s": 400}, 60, 400),
        (MINUTE, {"timeout_s": 300}, {"timeout_s": 500}, 300, 500),
        # No configuration is read, so nothing is known of the model.
        (MINUTE, {"max_body_bytes": 1000}, {}, 0, 10),
    ],
)
def test_the_call_says_it_or_the_client_or_the_model(
    parameters: dict[str, str],
    options: dict[str, Any],
    call: dict[str, Any],
    least: float,
    most: float,
    connect: Connect,
) -> None:
    transport = FakeTransport(parameters=parameters)
    with connect(transport=transport, **options) as client:
        client.classify(b"image", **call)
        client.infer("any", b"image", **call)
    assert all(least < timeout_s <= most for _, timeout_s in transport.inferences)


def test_a_client_tells_how_long_it_waits_for_a_model(connect: Connect) -> None:
    for options, expected in (({}, 60), ({"timeout_s": 3}, 3)):
        with connect(transport=FakeTransport(parameters=MINUTE), **options) as client:
            assert client.default_timeout_s("read") == expected


def test_what_a_model_states_is_a_whole_number_within_bounds() -> None:
    def limits(**stated: str) -> Limits:
        parameters = {name: {"string_value": value} for name, value in stated.items()}
        return limits_of({"parameters": parameters}, max_answer_bytes=1)

    for said, expected in (("60", 60), ("soon", 10), ("1.5", 10), ("", 10), ("0", 1), ("999999999999", 3600)):
        assert limits(timeout_s=said).timeout_s == expected
    for stated in ({}, {"max_body_bytes": ""}, {"max_body_bytes": "many"}, {"max_body_bytes": "-1"}):
        assert limits(**stated).body_bytes == DEFAULT_MAX_BODY_BYTES == 32 * 1024 * 1024


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("localhost:9001", "grpc://localhost:9001"),
        ("localhost", "grpc://localhost:8001"),
        ("grpc://10.0.0.1", "grpc://10.0.0.1:8001"),
        ("grpcs://host:443", "grpcs://host:443"),
        ("http://host", "http://host:8000"),
        ("http://host:80/behind/proxy/", "http://host:80/behind/proxy"),
        ("https://host:443", "https://host:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("[::1]:8001", "grpc://[::1]:8001"),
    ],
)
def test_addresses(url: str, full: str, connect: Connect) -> None:
    with connect(url) as client:
        assert client.url == full
        assert full in repr(client)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("url", ["", "ftp://host", "grpc://", "host:port", "host:99999", "grpc://host/path"]),
        ("url", ["http://me:secret@host", "http://h?x=1"]),
        *((name, [0, -1, float("nan")]) for name in ("timeout_s", "connect_timeout_s", "max_body_bytes")),
        ("retries", [-1]),
    ],
)
def test_other_addresses_and_limits_are_refused(name: str, values: list[Any], connect: Connect) -> None:
    for value in values:
        with pytest.raises(ValueError, match="url '" if name == "url" else f"{name}={value}"):
            connect(**{name: value})


def test_a_closed_client_says_so(connect: Connect) -> None:
    transport = FakeTransport()
    client = connect(transport=transport)
    client.classify(b"image")
    client.close()
    client.close()
    assert transport.is_closed
    for call in (lambda: client.classify(b"image"), client.is_ready, client.server_info, client.statistics):
        with pytest.raises(ClientClosed):
            call()


def test_a_forgotten_client_is_closed() -> None:
    transport = FakeTransport()
    Client(transport=transport)
    gc.collect()
    assert transport.is_closed


def ready_as(*answers: bool | None) -> FakeTransport:
    """Says these one after the other, and the last one again and again; None is a server that is not there."""
    left = list(answers)

    def ready() -> bool:
        said = left.pop(0) if len(left) > 1 else left[0]
        if said is None:
            raise CannotConnect("nobody there")
        return said

    transport = FakeTransport()
    transport.ready = ready
    return transport


def test_ready_or_not(connect: Connect) -> None:
    with connect(transport=ready_as(True, True, False, None)) as client:
        assert client.is_ready()
        assert client.is_ready("classify")
        assert not client.is_ready()
        assert not client.is_ready()
        info = client.server_info()
    assert (info.name, info.version, info.extensions) == ("fake", "1", ("statistics",))
    assert info.url == "fake://server:1"


def test_waiting_until_ready(connect: Connect) -> None:
    with connect(transport=ready_as(None, False, True)) as client:
        client.wait_until_ready("classify", timeout_s=10)
    in_vain = pytest.raises(TimedOut, match=r"model 'classify' at fake://server:1 was not ready within 0\.3 s")
    with connect(transport=ready_as(False)) as client, in_vain:
        client.wait_until_ready("classify", timeout_s=0.3)
    with connect(transport=ready_as(None)) as client, pytest.raises(CannotConnect, match="nobody there"):
        client.wait_until_ready(timeout_s=0.3)


def test_the_difference_of_two_snapshots_tells_about_the_time_between(connect: Connect) -> None:
    transport = FakeTransport(echo_size, steps=["classify_preprocess", "classify_model"])
    with connect(transport=transport) as client:
        client.classify(b"image")
        before = client.statistics("classify")
        for _ in range(5):
            client.classify(b"image")
        after, other = client.statistics("classify"), client.statistics("classify_fused")
        idle = client.statistics("classify") - after
    spent = after - before
    assert [step.model for step in spent.steps] == ["classify_preprocess", "classify_model"]
    for part in (spent, *spent.steps):
        assert (part.inference_count, part.execution_count, part.mean_batch_size, part.fail.count) == (5, 2, 2.5, 0)
        assert part.queue_ms == part.compute_infer_ms == part.request_ms == 2.0
        assert part.compute_input_ms == part.compute_output_ms == 0.0
    assert idle.queue_ms == idle.mean_batch_size == 0.0
    with pytest.raises(ValueError, match="loaded anew"):
        _ = before - after
    with pytest.raises(ValueError, match="different models"):
        _ = other - before
