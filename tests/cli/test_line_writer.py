"""Lines to a pipe whose reader is slow, stuck or gone: whoever says them never waits and never fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest
from patience import NEVER_S, ended

from onestream.cli.serve.output import MOST_WAITING, LineWriter, own_record

DROPPED = "5 lines were dropped here: they were not read in time"


class Pipe:
    """A pipe, and what writes to it."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.reader = open(reading, encoding="utf-8")  # noqa: SIM115
        self.stream = open(writing, "w", encoding="utf-8")  # noqa: SIM115
        self.writer = LineWriter(self.stream, logging.Formatter())

    def say(self, line: str) -> None:
        self.writer.handle(own_record("info", line))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.reader.close()  # frees a writer that is stuck
    made.writer.finish()
    made.stream.close()


def get_stuck(pipe: Pipe) -> None:
    """Have a line written that is longer than what a pipe holds, and read nothing but its first byte."""
    pipe.say("x" * 1_000_000)
    pipe.reader.read(1)


def said_at_the_end(pipe: Pipe) -> list[str]:
    """What is read from now on, while the last line is said."""
    lines: list[str] = []
    reading = threading.Thread(target=lambda: lines.extend(pipe.reader.read().splitlines()), daemon=True)
    reading.start()
    pipe.writer.finish(own_record("info", "last"))
    pipe.stream.close()
    reading.join(10)
    return lines


def test_lines_come_whole_and_in_order_and_the_last_one_last(pipe: Pipe) -> None:
    said = ["grün", "x" * 200_000, "\udcff", ""]
    for line in said:
        pipe.say(line)
    assert said_at_the_end(pipe) == [*said[:2], "\\udcff", "", "last"]


@pytest.mark.parametrize("is_read_again", [True, False])
def test_a_reader_that_stops_costs_lines_that_are_counted_and_never_the_last(pipe: Pipe, is_read_again: bool) -> None:
    get_stuck(pipe)

    def say() -> None:
        for number in range(MOST_WAITING + 5):
            pipe.say(str(number))

    ended(say)
    if is_read_again:
        pipe.reader.readline()  # the one that got it stuck
        assert [int(pipe.reader.readline()) for _ in range(MOST_WAITING)] == list(range(MOST_WAITING))
        pipe.say("again")
    lines = said_at_the_end(pipe)
    assert lines == [DROPPED, "again", "last"] if is_read_again else lines[-2:] == [DROPPED, "last"]


def test_a_stuck_reader_delays_the_end_by_seconds_only(pipe: Pipe) -> None:
    get_stuck(pipe)
    ended(lambda: pipe.writer.finish(own_record("info", "last")))


def test_a_reader_that_went_away_stops_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is left that it could wait for.
    monkeypatch.setattr("onestream.cli.serve.output._LAST_LINES_S", NEVER_S)
    pipe.reader.close()
    for number in range(3):
        pipe.say(str(number))
    ended(pipe.writer.finish)
