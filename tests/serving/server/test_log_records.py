"""Triton's log, read as records: nothing is lost, and what belongs together comes together."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.serving.server.log_records import LogReader, LogRecord

NOW = datetime(2026, 11, 21, 23, 50, tzinfo=timezone.utc)

MESSAGES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
"""What a model may log: Triton escapes it, line ends included."""
# Without line ends of any kind, which end a line of the log; and not like a line of Triton's own.
PRINTED = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40).map(lambda text: f"- {text}")


def read(lines: list[str], *, now: datetime = NOW, models: tuple[str, ...] = ("classify_fused",)) -> list[LogRecord]:
    reader = LogReader(is_model=models.__contains__, now=lambda: now)
    return [*(record for line in lines for record in reader.read(line)), *reader.rest()]


def logged(message: str, *, level: str = "I", place: str = "server.cc:345") -> str:
    return f"{level}1121 23:42:49.493989 16950 {place}] {json.dumps(message, ensure_ascii=False)}"


@given(st.lists(st.tuples(st.sampled_from("IWEF"), MESSAGES.filter(lambda text: "request" not in text)), max_size=8))
def test_messages_come_back_as_they_were_logged_even_with_several_lines(messages: list[tuple[str, str]]) -> None:
    levels = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
    at = {"time": datetime(2026, 11, 21, 23, 42, 49, 493989, tzinfo=timezone.utc), "place": "server.cc:345"}
    assert read([logged(message, level=level) for level, message in messages], models=()) == [
        LogRecord(level=levels[level], source="triton", message=message, **at) for level, message in messages
    ]


@given(st.lists(st.one_of(PRINTED, MESSAGES.map(logged), st.just(""), st.just(logged("")[:-2])), max_size=30))
def test_no_line_is_lost_whatever_comes_between(lines: list[str]) -> None:
    records = read(lines, models=())
    texts = "\n".join(record.message for record in records)
    for line in lines:
        if line.startswith("- "):
            assert line in texts
    places = [record for record in records if record.place is not None]
    assert len(places) == sum(line.startswith("I1121") for line in lines)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    lines = [part for line in lines for part in line.split("\n")]
    records = read(lines)
    assert "".join(record.message for record in records) or not any(line.strip() for line in lines)


def test_a_table_is_one_record_and_ends_with_an_empty_line() -> None:
    table = ["+---+", "| a |", "+---+"]
    records = read([logged("")[:-2], *table, "", "Error: Failed to initialize NVML", logged("next")])
    assert [record.message for record in records] == ["\n".join(table), "Error: Failed to initialize NVML", "next"]
    assert [record.place for record in records] == ["server.cc:345", None, "server.cc:345"]
    cut_off = read([logged("")[:-2], "| a |"])
    assert [record.message for record in cut_off] == ["| a |"]


def test_a_models_line_names_the_model_and_the_request() -> None:
    lines = [
        logged("classify_preprocess: request a:b/7: bad image (empty): no bytes", level="W", place="refusal_log.py:46"),
        logged("classify_fused: engine: built\nin 2 s", place="adapters_gpu.py:70"),
        logged("nobody: no model of this name"),
        # Triton's own words for a request.
        logged("[request id: 7] failed"),
        logged("[request id: <id_unknown>] failed"),
    ]
    assert [(record.source, record.request_id, record.message) for record in read(lines)] == [
        ("classify_preprocess", "a:b/7", "bad image (empty): no bytes"),
        ("classify_fused", None, "engine: built\nin 2 s"),
        ("triton", None, "nobody: no model of this name"),
        ("triton", "7", "[request id: 7] failed"),
        ("triton", None, "[request id: <id_unknown>] failed"),
    ]


def test_the_tracers_errors_are_errors() -> None:
    line = "[Error] File: /tmp/build/exporters/otlp_http_client.cc:225 [OTLP HTTP Client] Session state: failed"
    (record,) = read([line])
    assert (record.level, record.place) == ("error", "otlp_http_client.cc:225")
    assert record.message == "[OTLP HTTP Client] Session state: failed"


@pytest.mark.parametrize(
    ("now", "line", "expected"),
    [
        (datetime(2027, 1, 1, 0, 1), "I1231 23:59:59", datetime(2026, 12, 31, 23, 59, 59)),
        (datetime(2026, 12, 31, 23, 59), "I0101 00:00:01", datetime(2027, 1, 1, 0, 0, 1)),
        (datetime(2028, 3, 1), "I0229 12:00:00", datetime(2028, 2, 29, 12)),
        # A date that is none becomes the present.
        (datetime(2026, 11, 21, 23, 50), "I1399 25:61:61", datetime(2026, 11, 21, 23, 50)),
    ],
)
def test_the_year_is_the_one_that_fits_the_present(now: datetime, line: str, expected: datetime) -> None:
    (record,) = read([f'{line}.000000 1 a.cc:1] "x"'], now=now.replace(tzinfo=timezone.utc))
    assert (record.time, record.message) == (expected.replace(tzinfo=timezone.utc), "x")


@given(st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2040, 1, 1)), st.integers(0, 300))
def test_times_of_the_last_months_are_read_exactly(moment: datetime, days: int) -> None:
    line = f'I{moment:%m%d %H:%M:%S.%f} 1 a.cc:1] "x"'
    now = (moment + timedelta(days=days)).replace(tzinfo=timezone.utc)
    (record,) = read([line], now=now)
    assert record.time == moment.replace(tzinfo=timezone.utc)
