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
    Tensors,
    TimedOut,
    UnexpectedResponse,
)
from onestream.client.calls import limits_of

ESPRESSO = classification(("espresso", 967, 0.95), ("café au lait", 1, 0.03))


def test_a_classification_is_typed(connect: Connect) -> None:
    with connect(transport=FakeTransport(lambda *_: ESPRESSO)) as client:
        result = client.classify(b"image", pipeline="classify_fused")
    assert result.top == Label(label="espresso", class_id=967, score=pytest.approx(0.95))
    assert [label.label for label in result.labels] == ["espresso", "café au lait"]
    assert result.model == "classify_fused"
    assert result.latency_ms >= 0
    assert type(result.top.class_id) is int
    assert type(result.top.score) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.model = "other"  # type: ignore[misc]


def test_an_item_holds_a_result_or_an_error() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Item(0, "cat.jpg")


def test_infer_hands_out_raw_tensors(connect: Connect) -> None:
    boxes = np.zeros((1, 7, 4), np.float32)
    with connect(transport=FakeTransport(lambda *_: {"boxes": boxes})) as client:
        assert client.infer("detect", b"image")["boxes"] is boxes


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"boxes": np.zeros((1, 7, 4), np.float32)},
        {name: array for name, array in ESPRESSO.items() if name != "scores"},
        {name: array for name, array in ESPRESSO.items() if name == "scores"},
        {name: array[0] for name, array in ESPRESSO.items()},
        {name: array[:, :0] for name, array in ESPRESSO.items()},
        {**ESPRESSO, "scores": ESPRESSO["scores"][:, :1]},
        {name: np.repeat(array, 2, axis=0) for name, array in ESPRESSO.items()},
    ],
)
def test_an_answer_of_another_kind_is_refused(tensors: Tensors, connect: Connect) -> None:
    with (
        connect(transport=FakeTransport(lambda *_: tensors)) as client,
        pytest.raises(
            UnexpectedResponse, match=r"expected scores of \[1, k\], class_ids of \[1, k\], perhaps labels of"
        ),
    ):
        client.classify(b"image")


def test_classes_without_names_are_named_by_their_ids(connect: Connect) -> None:
    tensors = {name: array for name, array in ESPRESSO.items() if name != "labels"}
    with connect(transport=FakeTransport(lambda *_: tensors)) as client:
        result = client.classify(b"image")
    assert [label.class_id for label in result.labels] == ESPRESSO["class_ids"][0].tolist()
    assert [label.label for label in result.labels] == [str(label.class_id) for label in result.labels]


def test_the_size_limit_is_asked_once_for_each_model(connect: Connect) -> None:
    transport = FakeTransport(parameters={"max_body_bytes": "100"})
    with connect(transport=transport) as client:
        assert client.max_body_bytes() == 100
        client.classify(bytes(100))
        with pytest.raises(BadImage, match="at most 100"):
            client.classify(bytes(101))
        assert transport.config_calls == 1
        client.classify(b"image", pipeline="classify_fused")
        assert transport.config_calls == 2
    assert len(transport.inferences) == 2


def test_a_picture_of_too_many_pixels_is_neither_encoded_nor_sent(connect: Connect) -> None:
    transport = FakeTransport(parameters={"max_pixels": str(25_000_000)})
    with connect(transport=transport) as client, pytest.raises(BadImage, match=r"too_many_pixels.*8000x6000"):
        client.classify(Image.new("RGB", (8000, 6000)))
    assert not transport.inferences


@pytest.mark.parametrize("stated", [None, "", "many", "-1"])
def test_without_a_stated_limit_a_default_holds(stated: str | None, connect: Connect) -> None:
    parameters = {} if stated is None else {"max_body_bytes": stated}
    with connect(transport=FakeTransport(parameters=parameters)) as client:
        assert client.max_body_bytes("classify") == DEFAULT_MAX_BODY_BYTES == 32 * 1024 * 1024


def test_the_callers_limit_needs_no_question(connect: Connect) -> None:
    transport = FakeTransport(parameters={"max_body_bytes": "100"})
    with connect(transport=transport, max_body_bytes=200) as client:
        client.classify(bytes(200))
        with pytest.raises(BadImage, match="at most 200"):
            client.classify(bytes(201))
    assert transport.config_calls == 0


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


@pytest.mark.parametrize(("options", "expected"), [({}, 60), ({"timeout_s": 3}, 3)])
def test_a_client_tells_how_long_it_waits_for_a_model(
    options: dict[str, Any], expected: float, connect: Connect
) -> None:
    with connect(transport=FakeTransport(parameters=MINUTE), **options) as client:
        assert client.default_timeout_s("read") == expected


@pytest.mark.parametrize(
    ("stated", "expected"), [("60", 60), ("soon", 10), ("1.5", 10), ("", 10), ("0", 1), ("999999999999", 3600)]
)
def test_what_a_model_states_is_a_whole_number_within_bounds(stated: str, expected: int) -> None:
    config = {"parameters": {"timeout_s": {"string_value": stated}}}
    assert limits_of(config, max_answer_bytes=1).timeout_s == expected


def test_more_digits_than_a_number_has_are_no_configuration() -> None:
    with pytest.raises(UnexpectedResponse):
        limits_of({"parameters": {"timeout_s": {"string_value": "9" * 100}}}, max_answer_bytes=1)


@pytest.mark.parametrize("name", ["timeout_s", "connect_timeout_s", "max_body_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_must_be_positive(name: str, value: float, connect: Connect) -> None:
    with pytest.raises(ValueError, match=name):
        connect(**{name: value})


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
    "url",
    [
        "",
        "ftp://host",
        "grpc://",
        "host:port",
        "host:99999",
        "grpc://host/path",
        "http://me:secret@host",
        "http://h?x=1",
    ],
)
def test_other_addresses_are_refused(url: str, connect: Connect) -> None:
    with pytest.raises(ValueError, match=r"url '"):
        connect(url)


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


def test_ready_or_not(connect: Connect) -> None:
    transport = FakeTransport()
    with connect(transport=transport) as client:
        assert client.is_ready()
        assert client.is_ready("classify")
        transport.ready = lambda: False
        assert not client.is_ready()

        def unreachable() -> bool:
            raise CannotConnect("nobody there")

        transport.ready = unreachable
        assert not client.is_ready()


def test_waiting_until_ready(connect: Connect) -> None:
    transport = FakeTransport()
    asked = []

    def third_time() -> bool:
        asked.append(True)
        if len(asked) == 1:
            raise CannotConnect("not yet")
        return len(asked) == 3

    transport.ready = third_time
    with connect(transport=transport) as client:
        client.wait_until_ready("classify", timeout_s=10)
    assert len(asked) == 3


def test_waiting_in_vain_tells_an_absent_server_from_an_unready_one(connect: Connect) -> None:
    transport = FakeTransport()
    with connect(transport=transport) as client:
        transport.ready = lambda: False
        with pytest.raises(TimedOut, match=r"model 'classify' at fake://server:1 was not ready within 0\.3 s"):
            client.wait_until_ready("classify", timeout_s=0.3)

        def unreachable() -> bool:
            raise CannotConnect("nobody there")

        transport.ready = unreachable
        with pytest.raises(CannotConnect, match="nobody there"):
            client.wait_until_ready(timeout_s=0.3)


def test_server_info(connect: Connect) -> None:
    with connect(transport=FakeTransport()) as client:
        info = client.server_info()
    assert (info.name, info.version, info.extensions) == ("fake", "1", ("statistics",))
    assert info.url == "fake://server:1"


def test_the_difference_of_two_snapshots_tells_about_the_time_between(connect: Connect) -> None:
    transport = FakeTransport(echo_size, steps=["classify_preprocess", "classify_model"])
    with connect(transport=transport) as client:
        client.classify(b"image")
        before = client.statistics("classify")
        for _ in range(5):
            client.classify(b"image")
        spent = client.statistics("classify") - before
        idle = client.statistics("classify") - client.statistics("classify")
    assert [step.model for step in spent.steps] == ["classify_preprocess", "classify_model"]
    for part in (spent, *spent.steps):
        assert part.inference_count == 5
        assert part.execution_count == 2
        assert part.mean_batch_size == 2.5
        assert part.queue_ms == part.compute_infer_ms == part.request_ms == 2.0
        assert part.compute_input_ms == part.compute_output_ms == 0.0
        assert part.fail.count == 0
    assert idle.queue_ms == idle.mean_batch_size == 0.0


def test_snapshots_that_do_not_belong_together_are_refused(connect: Connect) -> None:
    with connect(transport=FakeTransport()) as client:
        before = client.statistics("classify")
        client.classify(b"image")
        after = client.statistics("classify")
        with pytest.raises(ValueError, match="loaded anew"):
            _ = before - after
        with pytest.raises(ValueError, match="different models"):
            _ = client.statistics("classify_fused") - before
