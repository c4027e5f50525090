"""``onestream trace``: a file of spans becomes requests and their steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from trace_lines import export, request, span
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.trace_file import BadTraceFile, read_traces


def trace(*arguments: str) -> tuple[int, list[str], str]:
    """Exit status, the words of each line of the table without its frame, and stderr."""
    result = CliRunner().invoke(app, ["trace", *arguments], env={"COLUMNS": "100"})
    rows = [" ".join(line.replace("│", " ").split()) for line in result.stdout.splitlines() if "│" in line]
    return result.exit_code, rows, result.stderr


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return path


def test_a_request_is_a_tree_of_what_waited_and_computed(tmp_path: Path) -> None:
    path = written(tmp_path, export(request("cat-1", 1, queue_ms=2, compute_ms=5)))
    (found,) = read_traces(path).requests
    assert (found.request_id, found.start_ns, found.total_ms) == ("cat-1", 1_000_000_000, 10.0)
    (both,) = found.steps
    waited = both.queue_ms, both.compute_ms
    assert (both.model, both.start_ms, *waited, both.total_ms) == ("both", 0.25, None, None, 8.75)
    (one,) = both.steps
    assert (one.model, one.start_ms, one.queue_ms, one.compute_ms, one.total_ms) == ("one", 0.5, 2.0, 5.0, 8.0)
    assert one.steps == ()
    status, rows, _ = trace(str(path), "cat-1")
    assert status == 0
    assert rows == ["cat-1 00:00:01.000000Z 10.00", "└─ both 0.25 8.75", "└─ one 0.50 2.00 5.00 8.00"]


def test_without_an_id_the_slowest_come_first(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(export(request(f"r{ms}", ms, compute_ms=ms)) for ms in (30, 500, 10, 70)))
    status, rows, _ = trace(str(path), "--slowest", "2")
    assert status == 0
    assert [row.split()[0] for row in rows if row.startswith("r")] == ["r500", "r70"]


def test_the_exports_and_their_order_do_not_matter(tmp_path: Path) -> None:
    spans = [one for number in range(20) for one in request(f"r{number}", number, began_ms=1000 + number)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.write_text(export(spans))
    shuffled = random.Random(7).sample(spans, len(spans))
    parts.write_text("".join(export(shuffled[at : at + 3]) for at in range(0, len(shuffled), 3)))
    assert read_traces(whole) == read_traces(parts)
    assert [found.request_id for found in read_traces(parts).requests] == [f"r{number}" for number in range(20)]


def test_requests_under_one_trace_of_a_caller_stay_apart(tmp_path: Path) -> None:
    path = written(tmp_path, export([*request("first", 1), *request("second", 2, began_ms=2000)]))
    assert [row for row in trace(str(path), "first")[1] if "Z" in row] == ["first 00:00:01.000000Z 10.00"]
    # The trace's id finds all that belong to it.
    assert len([row for row in trace(str(path), "a" * 32)[1] if "Z" in row]) == 2


def test_a_model_called_by_another_is_below_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    called = span("called", "f" * 16, f"{1:04x}{3:012x}", ms=(1004, 1006))
    path = written(tmp_path, export([*request("r", 1), called]))
    assert trace(str(path), "r")[1][-1] == "└─ called 4.00 2.00"


def test_requests_of_one_model_to_another_are_one_line(tmp_path: Path) -> None:
    spans = []
    for number, model in enumerate(["find", "name", "name", "name"]):
        began_ms, own, inner = 1003.0 + number, f"f{number:015x}", f"e{number:015x}"
        spans += [
            span(model, own, f"{1:04x}{3:012x}", ms=(began_ms, began_ms + 6), events={"QUEUE_START": began_ms}),
            span("compute", inner, own, ms=(began_ms + number, began_ms + 5)),
        ]
    path = written(tmp_path, export([*request("r", 1), *spans]))
    # Queue and compute are means of 1, 2, 3 and 4, 3, 2; the first begins at 4 and the last ends at 12.
    assert trace(str(path), "r")[1][-2:] == ["├─ find 3.00 0.00 5.00 6.00", "└─ name ×3 4.00 2.00 3.00 8.00"]


def test_a_line_that_is_cut_is_left_out_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path, export(request("cat-1", 1)) + export(request("cat-2", 2))[:-30])
    status, rows, errors = trace(str(path))
    assert status == 0
    assert rows[0].startswith("cat-1")
    assert errors == "lines left out, since they are no traces: 1\n"


def test_a_clients_id_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = written(tmp_path, export(request("\x1b[2J[red]x", 1)))
    result = CliRunner().invoke(app, ["trace", str(path)])
    assert "\x1b[2J" not in result.stdout
    assert "�[2J[red]x" in result.stdout


def test_what_was_not_traced_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, export(request("cat-1", 1)))
    assert trace(str(path), "dog-1") == (1, [], f"no request 'dog-1' among the 1 traced in {path}\n")
    path.write_text("")
    assert trace(str(path)) == (1, [], f"no request among the 0 traced in {path}\n")


@pytest.mark.parametrize(
    "text", ["no json\n", "[]\n", "7\n", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}) + "\n"]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadTraceFile, match="holds no traces; expected lines of OTLP JSON"):
        read_traces(path)
    assert trace(str(path))[0] == 2


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert trace(str(tmp_path / "none"))[::2] == (2, f"cannot read {tmp_path / 'none'}: No such file or directory\n")
