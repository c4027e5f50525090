"""Runs of ``onestream bulk`` that were broken off: how the same command goes on, and what is refused."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import (
    BAD,
    NAMES,
    Answer,
    Bulk,
    beside,
    csv_rows,
    failing_after,
    json_rows,
    labels,
    objects,
    outputs,
    photos,
    rows,
    sorted_objects,
    text,
    vector,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onestream.cli.bulk import outputs as outputs_module
from onestream.client import CannotConnect, ServerUnavailable, Tensors, TimedOut


@pytest.mark.parametrize(
    ("answer", "suffix"),
    [(objects, one) for one in ("csv", "jsonl", "parquet", "json")]
    + [(text, one) for one in ("csv", "jsonl", "parquet")]
    + [(one, "parquet") for one in (sorted_objects, vector, outputs)]
    + [(outputs, "jsonl")],
)
def test_what_was_done_before_is_as_if_done_at_once(bulk: Bulk, tmp_path: Path, answer: Answer, suffix: str) -> None:
    files = {"a.jpg": b"foo", "b.jpg": b"empty", "c.jpg": b"bad", "d.jpg": b"o" * 30, "é.jpg": b"one, for\nyou"}
    folder, out, whole = photos(tmp_path / "photos", files), tmp_path / f"out.{suffix}", tmp_path / f"whole.{suffix}"
    bulk.transport.answer = failing_after(3, CannotConnect("gone"), answer)
    stopped = bulk.run(folder, "--to", out, "--in-flight", 1)
    assert "stopped after 3 images" in stopped.stderr
    assert not out.exists()
    bulk.transport.answer = answer
    assert "going on after 3 images" in bulk.run(folder, "--to", out).stderr
    assert sorted(bulk.transport.sent) == sorted(list(files.values())[3:])
    bulk.run(folder, "--to", whole)
    assert rows(out) == rows(whole)


@pytest.mark.parametrize(
    "error", [CannotConnect("cannot reach it"), ServerUnavailable("starting", status="UNAVAILABLE")]
)
def test_a_run_goes_on_after_a_lost_server(bulk: Bulk, folder: Path, tmp_path: Path, error: Exception) -> None:
    """What is added behind meanwhile is done too, and what is passed over is counted once."""
    out = tmp_path / "out.jsonl"
    photos(folder, {"05.txt": b"no image", "zz.txt": b"no image"})
    bulk.transport.answer = failing_after(10, error)
    stopped = bulk.run(folder, "--to", out, "--in-flight", 1)
    assert stopped.exit_code == 1
    # Ten answers, and of the images before the eleventh one is too large to be sent.
    assert "stopped after 10 images" in stopped.stderr
    assert "the same command goes on" in stopped.stderr
    assert beside(out) == ["out.jsonl.errors.csv", "out.jsonl.journal"]
    bulk.transport.answer = labels
    photos(folder, {"zz.jpg": b"later"})
    resumed = bulk.run(folder, "--to", out)
    assert resumed.exit_code == 1
    assert "going on after 10 images" in resumed.stderr
    assert f"passed over 2 files that are not named like an image: '{folder}/05.txt', '{folder}/zz" in resumed.stderr
    assert [row["path"] for row in json_rows(out)] == [str(folder / name) for name in (*NAMES, "zz.jpg")]
    assert b"image 09.jpg" not in bulk.transport.sent
    assert len(bulk.transport.sent) == 19
    assert len(csv_rows(tmp_path / "out.jsonl.errors.csv")) == 3
    assert beside(out) == ["out.jsonl", "out.jsonl.errors.csv"]


def test_errors_of_single_images_do_not_stop_the_run(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    bulk.transport.answer = failing_after(10, TimedOut("no answer"))
    out = tmp_path / "out.jsonl"
    assert bulk.run(folder, "--to", out, "--in-flight", 1).exit_code == 1
    kinds = [row.get("error") for row in json_rows(out)]
    assert kinds.count("timed_out") == 18
    assert len(kinds) == 30


def test_a_full_disk_loses_nothing(bulk: Bulk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_temporary: Path, _final: Path) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out.csv"
    with monkeypatch.context() as patch:
        patch.setattr(outputs_module, "replace_durably", full)
        result = bulk.run(folder, "--to", out)
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert not out.exists()
    assert bulk.run(folder, "--to", out).exit_code == 1
    assert bulk.transport.sent == []
    assert len(csv_rows(out)) == 30
    assert beside(out) == ["out.csv", "out.csv.errors.csv"]


def unfinished(bulk: Bulk, folder: Path, out: Path) -> bytes:
    """The journal of a run that did everything but write its output."""
    bulk.transport.answer = failing_after(28, CannotConnect("gone"))
    extra = photos(folder, {"99.jpg": b"one more"}) / "99.jpg"
    bulk.run(folder, "--to", out, "--in-flight", 1)
    bulk.transport.answer = labels
    extra.unlink()
    return out.with_name(out.name + ".journal").read_bytes()


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_run_killed_at_any_byte_goes_on_without_loss_or_repetition(
    bulk: Bulk, folder: Path, tmp_path: Path, data: st.DataObject
) -> None:
    out, journal, whole = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal", tmp_path / "whole.jsonl"
    if not whole.exists():
        bulk.transport.answer = labels
        bulk.run(folder, "--to", whole)
        (tmp_path / "journal").write_bytes(unfinished(bulk, folder, out))
    content = (tmp_path / "journal").read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    # A power cut may leave anything behind what was written.
    rests = [b"", b"\0" * 100, b'{"path', b"{}\n[]\n\xff\n"]
    garbage = data.draw(st.sampled_from(rests)) if b"\n" in content[:cut] else b""
    journal.write_bytes(content[:cut] + garbage)
    done = max(content[:cut].count(b"\n") - 1, 0)
    out.unlink(missing_ok=True)
    bulk.run(folder, "--to", out)
    assert rows(out) == rows(whole)
    unsent = {str(folder / name) for name in BAD} - {str(folder / "07.jpg")}
    assert len(bulk.transport.sent) == sum(row["path"] not in unsent for row in json_rows(out)[done:])
    assert len(csv_rows(tmp_path / "out.jsonl.errors.csv")) == 3


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda folder: (folder / "00.jpg").unlink(), [], "image 1 was"),
        (lambda folder: photos(folder, {"05b.jpg": b"new"}), [], "image 7 was"),
        (lambda folder: [path.unlink() for path in folder.glob("*.jpg")], [], "the sources now have nothing"),
        (lambda _: None, ["--top", "3"], "{'top': 1}, now {'top': 3}"),
        (lambda _: None, ["--pipeline", "classify_fused"], "{'pipeline': 'classify'}"),
        (lambda _: None, ["other"], "'sources'"),
    ],
)
def test_another_run_is_not_mixed_with_an_unfinished_one(
    bulk: Bulk, folder: Path, tmp_path: Path, change: Any, options: list[str], words: str
) -> None:
    out = tmp_path / "out.jsonl"
    journal = unfinished(bulk, folder, out)
    change(folder)
    assert words in bulk.refused(folder, *options, "--to", out)
    assert (tmp_path / "out.jsonl.journal").read_bytes() == journal
    result = bulk.run(folder, *options, "--to", out, "--overwrite")
    assert "going on" not in result.stderr
    assert result.exit_code in (1, 2)


def test_a_journal_of_something_else_or_a_run_at_work_is_left_alone(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    journal.write_text("my diary\nSunday\n")
    assert "is no journal" in bulk.refused(folder, "--to", out)
    with journal.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process writes" in bulk.refused(folder, "--to", out, "--overwrite")
    assert journal.read_text() == "my diary\nSunday\n"


def test_a_journal_damaged_while_a_run_works_loses_nothing_unseen(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    journal = tmp_path / "out.jsonl.journal"

    def damage(data: bytes) -> Tensors:
        if data == b"image 29.jpg":
            content = journal.read_bytes()
            with journal.open("r+b") as file:
                file.seek(content.index(b"03.jpg"))
                file.write(b'"broken')
        return labels(data)

    bulk.transport.answer = damage
    result = bulk.run(folder, "--to", tmp_path / "out.jsonl", "--in-flight", 1)
    assert result.exit_code == 1
    assert "damaged at row 4" in result.stderr
    assert not (tmp_path / "out.jsonl").exists()
    bulk.transport.answer = labels
    bulk.run(folder, "--to", tmp_path / "out.jsonl")
    assert [row["path"] for row in json_rows(tmp_path / "out.jsonl")] == [str(folder / name) for name in NAMES]
