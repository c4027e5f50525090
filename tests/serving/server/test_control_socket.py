"""The socket of a server's commands: where it is, and what runs one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onestream.serving.errors import ServingError
from onestream.serving.server import control_socket
from onestream.serving.server.control_socket import ControlSession, ControlSocket


class SlowLoading:
    """A load takes until ``go_on`` is set."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.happened: list[str] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def load(self, name: str) -> list[str]:
        self.began.set()
        self.go_on.wait()
        self.happened.append("loaded")
        return [name]

    def again(self) -> None:
        self.happened.append("repeated")


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> SlowLoading:
    one = SlowLoading()
    monkeypatch.setattr(control_socket, "Loading", lambda *_, **__: one)
    return one


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def listening(repository: Path) -> Iterator[ControlSocket]:
    commands = ControlSocket(repository, lambda: None, announce=print)  # type: ignore[arg-type, return-value]
    commands.start()
    yield commands
    commands.close()


def test_changes_are_repeated_after_a_command(loading: SlowLoading, listening: ControlSocket, repository: Path) -> None:
    with ControlSession(repository) as session:
        command = threading.Thread(target=session.ask, args=("load", "late"))
        command.start()
        loading.began.wait()
        repeating = threading.Thread(target=listening.again)
        repeating.start()
        repeating.join(0.1)
        loading.go_on.set()
        command.join()
        repeating.join()
    assert loading.happened == ["loaded", "repeated"]


def test_a_command_of_another_version_of_onestream_ends_its_session_alone(
    loading: SlowLoading, listening: ControlSocket, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ControlSession(repository) as session, pytest.raises(ServingError, match="ended meanwhile"):
        session.ask("explain", "cells")
    loading.go_on.set()
    with ControlSession(repository) as session:
        assert session.ask("load", "late") == ["late"]
    listening.again()
    assert loading.happened == ["loaded", "repeated"]
    assert "a command failed: " in capsys.readouterr().out


def test_the_run_folder_holds_the_socket_of_a_read_only_repository(
    loading: SlowLoading, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONESTREAM_RUN_DIR", str(tmp_path / "run"))
    commands = ControlSocket(repository, lambda: None, announce=print)  # type: ignore[arg-type, return-value]
    commands.start()
    try:
        loading.go_on.set()
        with ControlSession(repository) as session:
            assert session.ask("load", "late") == ["late"]
        assert list(repository.iterdir()) == []
        monkeypatch.delenv("ONESTREAM_RUN_DIR")
        with pytest.raises(ServingError, match="with the same ONESTREAM_RUN_DIR"):
            ControlSession(repository)
    finally:
        commands.close()


def test_a_folder_that_takes_no_socket_is_announced(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ONESTREAM_RUN_DIR", str(tmp_path / "file"))
    said: list[str] = []
    commands = ControlSocket(repository, lambda: None, announce=said.append)  # type: ignore[arg-type, return-value]
    commands.start()
    commands.close()
    (line,) = said
    assert "set ONESTREAM_RUN_DIR to a writable folder" in line
