"""Triton's log: a file that is bounded and may fail, behind a pipe that is always read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until

from onestream.serving.server import log_file
from onestream.serving.server.errors import ServerError
from onestream.serving.server.log_file import KEPT_FILES, LogFile, TritonLog

LINE = b"a line of a log, of fifty bytes with its line end.\n"


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def file(tmp_path: Path, events: list[str]) -> Iterator[LogFile]:
    opened = LogFile(tmp_path / "new" / "triton.log", announce=events.append)
    yield opened
    opened.close()


def test_the_files_of_a_log_are_bounded_and_hold_what_was_said_last(
    file: LogFile, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "maxBytes", 1000)
    said = b""
    for number in range(300):
        line = f"{number:09}\n".encode()
        file.write(line)
        said += line
    files = [file.path.with_name(f"triton.log.{number}") for number in range(KEPT_FILES, 0, -1)] + [file.path]
    assert sorted(file.path.parent.iterdir()) == sorted(files)
    assert all(path.stat().st_size <= 1000 for path in files)
    kept = b"".join(path.read_bytes() for path in files)
    assert said.endswith(kept)
    assert len(kept) > 1000 * KEPT_FILES
    assert events == []


def test_a_log_of_an_earlier_server_is_overwritten(tmp_path: Path) -> None:
    """One that cannot be opened is refused."""
    path = tmp_path / "triton.log"
    path.write_text("earlier\n")
    file = LogFile(path, announce=pytest.fail)
    file.write(b"now\n")
    file.close()
    assert path.read_text() == "now\n"
    with pytest.raises(ServerError, match="cannot write the log to"):
        LogFile(tmp_path, announce=pytest.fail)


def test_a_pipe_gets_all_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    file = LogFile(path, announce=pytest.fail)
    for _ in range(3):
        file.write(LINE)
    file.close()
    reader.join(PATIENCE_S)
    assert read == [3 * LINE]


def test_a_folder_that_lets_nobody_rename_does_not_stop_a_log(file: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "maxBytes", 1000)
    for number in range(1, KEPT_FILES + 1):
        (file.path.parent / f"triton.log.{number}" / "in the way").mkdir(parents=True)
    for _ in range(100):
        file.write(LINE)
    assert 0 < file.path.stat().st_size <= 1000


def test_a_full_disk_is_announced_and_so_is_its_end(tmp_path: Path, events: list[str]) -> None:
    path, disk = tmp_path / "triton.log", tmp_path / "disk"
    path.symlink_to("/dev/full")
    file = LogFile(path, announce=events.append)
    for _ in range(1000):
        file.write(LINE)
    assert events == [f"the log {path} cannot be written, its lines are lost: No space left on device"]
    path.unlink()
    path.symlink_to(disk)
    lost = 1000

    def is_written() -> bool:
        nonlocal lost
        file.write(LINE)
        lost += 1
        return len(events) > 1

    wait_until(is_written)
    file.close()
    assert events[1:] == [f"the log {path} can be written again; {(lost - 1) * len(LINE)} bytes are missing"]
    assert disk.read_bytes() == LINE


def writer_of(log: TritonLog) -> int:
    """A descriptor as the one that Triton gets; from here on the log is read."""
    writer = os.dup(log.input)
    log.started()
    return writer


def printed(log: TritonLog, *parts: bytes) -> None:
    """What a program does that prints this and ends."""
    writer = writer_of(log)
    for part in parts:
        os.write(writer, part)
    os.close(writer)


def test_lines_come_whole_and_in_their_order(file: LogFile) -> None:
    lines: list[str] = []
    log = TritonLog(file, on_line=lines.append)
    printed(log, b"on", b"e\n\ntw", b"\xff\xc3", b"\xa9o\nthr", b"ee")
    log.follow()
    assert lines == ["one", "", "tw\ufffdéo"]
    assert log.text() == "one\n\ntw\ufffdéo\nthree"
    log.close()
    assert lines[3:] == ["three"]
    assert file.path.read_bytes() == b"one\n\ntw\xff\xc3\xa9o\nthree"


def test_a_flood_that_nobody_takes_holds_nobody_up_and_is_counted(file: LogFile) -> None:
    lines: list[str] = []
    log = TritonLog(file, on_line=lines.append)
    # Without a reader the program would wait for ever.
    printed(log, *[LINE * 1000] * 1000, b"last\n")
    log.follow()
    log.close()
    left_out, *rest = lines
    assert rest[-1] == "last"
    assert set(rest[:-1]) == {LINE.decode().rstrip("\n")}
    total = 1_000_000 * len(LINE) + len(b"last\n")
    taken = sum(len(line) + 1 for line in rest)
    assert left_out == f"{total - taken} bytes of Triton's log were left out here: they were not read in time"
    assert file.path.stat().st_size <= log_file.MAX_FILE_BYTES


def test_a_log_ends_though_a_process_holds_its_other_end(file: LogFile) -> None:
    log = TritonLog(file, on_line=lambda _: None)
    writer = writer_of(log)
    os.write(writer, b"here\n")
    wait_until(lambda: "here" in log.text())
    log.close()
    assert log.closed
    os.close(writer)


def test_what_ended_the_program_is_known_as_soon_as_it_has_ended(file: LogFile) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        log = TritonLog(file, on_line=lambda _: None)
        printed(log, LINE * 1000 + b"the reason\n")
        assert log.text().endswith("the reason\n")
        log.close()
    # Of each log one descriptor would be 20 more; other tests' threads may open a few meanwhile.
    assert len(os.listdir("/proc/self/fd")) < before + 20
