"""``onestream bulk``: what it writes, how it ends, and the rate that it shows meanwhile."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from bulk_fakes import NAMES, Bulk, beside, csv_rows, failing_after, json_rows, photos, shard
from client_fakes import classification
from PIL import Image
from rich.progress import Progress

from onestream.cli.bulk import run
from onestream.cli.bulk.progress import Rate, RateAndTimeLeft
from onestream.client import CannotConnect, Client, Tensors


def test_every_format_says_the_same(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    """Of photos, and of shards, whose images have keys."""
    for name in ("s-0", "s-1"):
        (tmp_path / f"{name}.tar").write_bytes(shard({f"x/{name}.jpg": name.encode()}))
    for suffix in ("csv", "jsonl", "parquet"):
        result = bulk.run(folder, tmp_path / "s-{0..2}.tar", "--to", tmp_path / f"out.{suffix}", "--top", 2)
        assert result.exit_code == 1
        assert re.search(r"33 images, 4 failed, \d+ images/s → .*errors\.csv", result.stderr)
        assert result.stdout == ""
    lines = json_rows(tmp_path / "out.jsonl")
    table = parquet.read_table(tmp_path / "out.parquet")
    cells = csv_rows(tmp_path / "out.csv")
    sources = [*(folder / name for name in NAMES), *(tmp_path / f"s-{number}.tar" for number in range(3))]
    assert [row["path"] for row in lines] == list(map(str, sources))
    assert [row.get("key") for row in lines[30:]] == ["x/s-0", "x/s-1", None]
    for line, row, cell in zip(lines, table.to_pylist(), cells, strict=True):
        assert list(row) == list(cell)
        for name in ("path", "key", "error", "reason"):
            assert line.get(name) == row[name] == (cell[name] or None)
        for rank in range(1, 1 + len(line.get("labels", ()))):
            ending = "" if rank == 1 else f"_{rank}"
            for name, names in (("label", "labels"), ("class_id", "class_ids"), ("score", "scores")):
                assert line[names][rank - 1] == row[name + ending]
                assert str(line[names][rank - 1]) == cell[name + ending]
        if "labels" in line:
            assert min(line["latency_ms"], row["latency_ms"], float(cell["latency_ms"])) >= 0
    first = {"labels": ["image 00.jpg", "café, au lait\n"], "class_ids": [12, 7], "scores": [0.75, 0.25]}
    assert first.items() <= lines[0].items()
    assert {row["path"][-7:]: row["error"] for row in lines if "error" in row} == {
        "/07.jpg": "corrupt",
        "/11.jpg": "too_large",
        "/20.jpg": "empty",
        "s-2.tar": "unreadable_input",
    }


def test_no_cell_of_csv_begins_a_formula(bulk: Bulk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("@a.jpg").write_bytes(b"=1+1")
    Path("+b.jpg").write_bytes(b"bad")
    bulk.run("@a.jpg", "+b.jpg", "--to", "out.csv")
    assert [(row["path"], row["label"]) for row in csv_rows(Path("out.csv"))] == [("'@a.jpg", "'=1+1"), ("'+b.jpg", "")]
    assert [row["path"] for row in csv_rows(Path("out.csv.errors.csv"))] == ["'+b.jpg"]
    bulk.run("@a.jpg", "--to", "out.jsonl")
    assert json_rows(Path("out.jsonl"))[0]["labels"] == ["=1+1"]


def test_errors_have_a_file_beside_the_output_and_go_round(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    bulk.run(folder, folder / "none.jpg", "--to", out)
    errors = csv_rows(tmp_path / "out.csv.errors.csv")
    assert [(row["path"][-8:], row["error"]) for row in errors] == [
        ("s/07.jpg", "corrupt"),
        ("s/11.jpg", "too_large"),
        ("s/20.jpg", "empty"),
        ("none.jpg", "unreadable_input"),
    ]
    assert errors[0]["reason"] == "the file ends, early"
    again = bulk.run("-", "--to", tmp_path / "again.jsonl", stdin="\n".join(row["path"] for row in errors))
    assert again.exit_code == 1
    assert [row["error"] for row in json_rows(tmp_path / "again.jsonl")] == [row["error"] for row in errors]
    # Where all goes well there is only the output.
    assert bulk.run(folder / "00.jpg", "--to", out, "--overwrite").exit_code == 0
    assert beside(out) == ["out.csv"]


def test_lines_on_the_terminal(bulk: Bulk, tmp_path: Path) -> None:
    result = bulk.run(photos(tmp_path, {"a.jpg": b"\x1b[31mred", "b.jpg": b"bad"}), "--top", 2)
    assert result.exit_code == 1
    first, second, third = result.stdout.splitlines()[1:]
    assert re.fullmatch(rf"0\.750 +\d+\.\d  \?\[31mred +{tmp_path}/a\.jpg", first)
    assert re.fullmatch(r"0\.250 +café, au lait\?", second)
    assert re.fullmatch(rf" +– +–  corrupt +{tmp_path}/b\.jpg: the file ends, early", third)
    assert "2 images, 1 failed" in result.stderr


def test_files_that_are_not_named_like_images_are_counted_and_named(bulk: Bulk, tmp_path: Path) -> None:
    files = {"a.jpg": b"1", "b.gif": b"22", "c\x1b[2J": b"333", "d.heic": b"4444", "e/f.avif": b"bad"}
    folder, tar, out = photos(tmp_path / "p", files), tmp_path / "s.tar", tmp_path / "out.jsonl"
    tar.write_bytes(shard({"0.jpg": b"0", "0.cls": b"1", "1.json": b"2"}))
    result = bulk.run(folder, tar, "--to", out)
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-2] == (
        f"passed over 6 files that are not named like an image: '{folder}/b.gif', '{folder}/c\\x1b[2J', "
        f"'{folder}/d.heic' and 3 more; --all tries every file"
    )
    assert result.stderr.splitlines()[-1].startswith("2 images, 0 failed")
    every = bulk.run(folder, tar, "--all", "--to", out, "--overwrite")
    assert every.exit_code == 1
    names = [*(Path(name).name for name in files), *["s.tar"] * 3]
    assert [Path(row["path"]).name for row in json_rows(out)] == names
    # What is named is tried, whatever it is called.
    named = bulk.run(folder / "b.gif", folder / "d*", "--to", out, "--overwrite")
    assert named.stderr.splitlines()[-1].startswith("2 images, 0 failed")
    assert "passed over" not in every.stderr + named.stderr
    (folder / "a.jpg").unlink()
    nothing = bulk.refused(folder)
    assert f"no images in {folder}; expected names that end in .bmp, " in nothing
    assert "; passed over 4 files that are not named like an image: " in nothing


def test_what_cannot_start_exits_with_two(bulk: Bulk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "empty").mkdir()
    out = folder / "out.csv"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for arguments, words in (
        ((folder / "empty", "--to", out), "no images in"),
        ((folder, "--to", "out.xlsx"), "ends in '.xlsx', expected .csv, .jsonl, .ndjson, .parquet"),
        ((folder, "--to", "/no/such/folder/out.csv"), "No such file or directory"),
        ((folder, "--to", out, "--in-flight", "0"), "in-flight"),
    ):
        assert words in bulk.refused(*arguments)
    out.write_text("precious")
    assert "--overwrite begins anew" in bulk.refused(folder, "--to", out)
    assert out.read_text() == "precious"
    assert bulk.run(folder, "--to", out, "--overwrite").exit_code == 1
    assert len(csv_rows(out)) == 30
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install -e '.[bulk]'" in bulk.refused(folder, "--to", "out.parquet")
    monkeypatch.setattr(run, "Client", Client)
    assert "scheme 'ftp'" in bulk.refused(folder, "--url", "ftp://host")
    assert "cannot reach grpc://127.0.0.1" in bulk.refused(folder, "--url", f"127.0.0.1:{port}")
    assert list(folder.glob("*.journal")) == []


@pytest.mark.parametrize(
    ("stated", "options", "least", "most"),
    [("10", [], 10, 30), ("60", [], 30, 60), ("60", ["--timeout-s", "5"], 0, 5)],
)
def test_an_image_may_take_half_a_minute_or_what_the_pipeline_states(
    bulk: Bulk, tmp_path: Path, stated: str, options: list[str], least: float, most: float
) -> None:
    bulk.transport.parameters["timeout_s"] = stated
    assert bulk.run(photos(tmp_path, {"a.jpg": b"a", "b.jpg": b"b"}), *options).exit_code == 0
    given = [timeout_s for _, timeout_s in bulk.transport.inferences]
    assert len(given) == 2
    assert all(least < timeout_s <= most for timeout_s in given)


def test_every_page_is_a_row_and_a_run_goes_on_between_pages(bulk: Bulk, tmp_path: Path) -> None:
    images = [Image.new("L", (2, 2), level) for level in (10, 20, 30)]
    images[0].save(tmp_path / "scan.tif", save_all=True, append_images=images[1:])
    (tmp_path / "notes.jpg").write_bytes(b"notes")
    tar = tmp_path / "shard.tar"
    tar.write_bytes(shard({"a.tif": (tmp_path / "scan.tif").read_bytes(), "b.tif": b"II*\0 and no more"}))
    sources, out = (tmp_path / "scan.tif", tmp_path / "notes.jpg", tar), tmp_path / "out.jsonl"

    # Every page has all the bytes of its file: they differ in where they begin.
    def begins(data: bytes) -> Tensors:
        return classification((data[4:8].hex(), 1, 0.5))

    bulk.transport.answer = failing_after(2, CannotConnect("gone"), begins)
    assert bulk.run(*sources, "--to", out, "--pages", "all", "--in-flight", 1).exit_code == 1
    bulk.transport.answer = begins
    bulk.refused(*sources, "--to", out)
    result = bulk.run(*sources, "--to", out, "--pages", "all")
    assert result.exit_code == 0
    assert "going on after 2 images" in result.stderr
    rows = json_rows(out)
    numbered = [f"page {number}" for number in (1, 2, 3)]
    assert [row.get("key", "") for row in rows] == [*numbered, "", *(f"a {page}" for page in numbered), "b"]
    said = [row["labels"][0] for row in rows]
    assert said[:3] == said[4:7]
    assert len(set(said)) == 5
    with_ray = bulk.refused(*sources, "--to", tmp_path / "parts", "--ray", "--pages", "all")
    assert with_ray == "--pages all is for runs without --ray\n"


def rate_of(changes: list[tuple[float, int]], *, at_s: float, earlier: int = 0) -> Rate:
    """The rate of a run that begins after 100 s, at a time after some changes."""
    times = iter([100.0, *(now_s for now_s, _ in changes)])
    rate = Rate(earlier, lambda: next(times, at_s))
    for _, done in changes:
        rate.reached(done)
    return rate


def test_the_rate_is_that_of_late_from_the_first_part_on_and_falls_while_nothing_is_done() -> None:
    assert rate_of([], earlier=500, at_s=130).per_s == 0
    assert rate_of([(220, 1500)], earlier=500, at_s=220).per_s == 1000 / 120
    assert rate_of([(200, 1000)], at_s=300).per_s == 5
    # Four workers end their parts together.
    together = [(220.0 + worker, 500 + 1000 * worker) for worker in range(1, 5)]
    assert rate_of(together, earlier=500, at_s=224).per_s == 4000 / 124
    slow = [(100.0 + number, number) for number in range(1, 2001)]
    fast = [(2100 + number / 10, 2000 + number) for number in range(1, 2001)]
    assert round(rate_of(slow + fast, at_s=2300).per_s, 6) == 10


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1000, "5.0 images/s, 0:01:40 left"),
        (501, "5.0 images/s, 0:00:01 left"),
        (500, "5.0 images/s, 0:00:00 left"),
        # Files that came while the run was at work were not counted.
        (400, "5.0 images/s, 0:00:00 left"),
        (None, "5.0 images/s, -:--:-- left"),
    ],
)
def test_the_time_left_is_never_negative(total: int | None, expected: str) -> None:
    column = RateAndTimeLeft(rate_of([(200, 500)], at_s=200))
    progress = Progress(column)
    progress.add_task("", total=total, completed=500)
    assert column.render(progress.tasks[0]).plain == expected
