"""``onestream bulk``: what it writes, and how it ends."""

from __future__ import annotations

import re
import socket
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from bulk_fakes import NAMES, Bulk, app, beside, csv_rows, failing_after, json_rows, photos, shard
from client_fakes import classification
from PIL import Image
from typer.testing import CliRunner

from onestream.client import CannotConnect, ModelNotFound, Tensors

# ---- what is written ------------------------------------------------------------------------------------------------


def test_every_format_says_the_same(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    for suffix in ("csv", "jsonl", "parquet"):
        result = bulk.run(folder, "--to", tmp_path / f"out.{suffix}", "--top", 2)
        assert result.exit_code == 1
        assert re.search(r"30 images, 3 failed, \d+ images/s → .*errors\.csv", result.stderr)
        assert result.stdout == ""
    lines = json_rows(tmp_path / "out.jsonl")
    table = parquet.read_table(tmp_path / "out.parquet")
    cells = csv_rows(tmp_path / "out.csv")
    assert [row["path"] for row in lines] == [str(folder / name) for name in NAMES]
    for line, row, cell in zip(lines, table.to_pylist(), cells, strict=True):
        assert list(row) == list(cell)
        assert line["path"] == row["path"] == cell["path"]
        assert (row["key"], cell["key"]) == (None, "")
        assert line.get("error") == row["error"] == (cell["error"] or None)
        assert line.get("reason") == row["reason"] == (cell["reason"] or None)
        for rank in range(1, 1 + len(line.get("labels", ()))):
            ending = "" if rank == 1 else f"_{rank}"
            for name, names in (("label", "labels"), ("class_id", "class_ids"), ("score", "scores")):
                assert line[names][rank - 1] == row[name + ending]
                assert str(line[names][rank - 1]) == cell[name + ending]
        if "labels" in line:
            assert min(line["latency_ms"], row["latency_ms"], float(cell["latency_ms"])) >= 0
    assert [lines[0][name] for name in ("labels", "class_ids", "scores")] == [
        ["image 00.jpg", "café, au lait\n"],
        [12, 7],
        [0.75, 0.25],
    ]
    assert {row["path"][-6:]: row["error"] for row in lines if "error" in row} == {
        "07.jpg": "corrupt",
        "11.jpg": "too_large",
        "20.jpg": "empty",
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


def test_when_all_goes_well_there_is_only_the_output(bulk: Bulk, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    (tmp_path / "out.csv.errors.csv").write_text("of an earlier run")
    result = bulk.run(photos(tmp_path / "p", {"a.jpg": b"1"}), "--to", out)
    assert result.exit_code == 0
    assert beside(out) == ["out.csv"]


def test_shards_have_keys(bulk: Bulk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        with tarfile.open(f"s-{number}.tar", "w") as tar:
            tar.add(folder / f"0{number}.jpg", f"x/000{number}.jpg")
    result = bulk.run("s-{0..2}.tar", "--to", "out.csv")
    assert result.exit_code == 1
    rows = [(row["path"], row["key"], row["label"], row["error"]) for row in csv_rows(Path("out.csv"))]
    assert rows == [
        ("s-0.tar", "x/0000", "image 00.jpg", ""),
        ("s-1.tar", "x/0001", "image 01.jpg", ""),
        ("s-2.tar", "", "", "unreadable_input"),
    ]


def test_lines_on_the_terminal(bulk: Bulk, tmp_path: Path) -> None:
    result = bulk.run(photos(tmp_path, {"a.jpg": b"\x1b[31mred", "b.jpg": b"bad"}), "--top", 2)
    assert result.exit_code == 1
    first, second, third = result.stdout.splitlines()[1:]
    assert re.fullmatch(rf"0\.750 +\d+\.\d  \?\[31mred +{tmp_path}/a\.jpg", first)
    assert re.fullmatch(r"0\.250 +café, au lait\?", second)
    assert re.fullmatch(rf" +– +–  corrupt +{tmp_path}/b\.jpg: the file ends, early", third)
    assert "2 images, 1 failed" in result.stderr


def test_files_that_are_not_named_like_images_are_counted_and_named(bulk: Bulk, tmp_path: Path) -> None:
    files = {"a.jpg": b"1", "b.gif": b"22", "c.heic": b"333", "d": b"4444", "e/f.avif": b"bad"}
    folder, out = photos(tmp_path / "p", files), tmp_path / "out.jsonl"
    result = bulk.run(folder, "--to", out)
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-2] == (
        f"passed over 4 files that are not named like an image: '{folder}/b.gif', '{folder}/c.heic', '{folder}/d' "
        "and 1 more; --all tries every file"
    )
    assert result.stderr.splitlines()[-1].startswith("1 images, 0 failed")
    result = bulk.run(folder, "--all", "--to", out, "--overwrite")
    assert result.exit_code == 1
    assert "passed over" not in result.stderr
    assert [Path(row["path"]).name for row in json_rows(out)] == ["a.jpg", "b.gif", "c.heic", "d", "f.avif"]
    (folder / "a.jpg").unlink()
    nothing = bulk.run(folder)
    assert nothing.exit_code == 2
    assert f"no images in {folder}; expected names that end in .bmp, " in nothing.stderr
    assert "; passed over 4 files that are not named like an image: " in nothing.stderr


# ---- how it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["{folder}/empty"], "no images in"),
        (["{folder}/empty", "--to", "{folder}/out.csv"], "no images in"),
        (["{folder}", "--to", "out.xlsx"], "ends in '.xlsx', expected .csv, .jsonl, .ndjson, .parquet"),
        (["{folder}", "--to", "/no/such/folder/out.csv"], "No such file or directory"),
        (["{folder}", "--url", "ftp://host"], "scheme 'ftp'"),
        (["{folder}", "--url", "127.0.0.1:{port}"], "cannot reach grpc://127.0.0.1"),
        (["{folder}", "--url", "http://127.0.0.1:{port}"], "cannot reach http://127.0.0.1"),
        (["{folder}", "--in-flight", "0"], "in-flight"),
    ],
)
def test_what_cannot_start_exits_with_two(folder: Path, arguments: list[str], words: str, request: Any) -> None:
    (folder / "empty").mkdir()
    if "--url" not in arguments:
        request.getfixturevalue("bulk")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = CliRunner().invoke(app, [argument.format(folder=folder, port=port) for argument in arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert beside(folder / "out.csv") == []


def test_parquet_without_pyarrow_names_what_to_install(
    bulk: Bulk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = bulk.run(folder, "--to", "out.parquet")
    assert result.exit_code == 2
    assert "pip install -e '.[bulk]'" in result.stderr


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


def test_an_unknown_pipeline_exits_with_two(bulk: Bulk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(model: str, *, timeout_s: float) -> dict[str, object]:  # noqa: ARG001
        raise ModelNotFound(f"model {model!r} is not found", status="NOT_FOUND")

    monkeypatch.setattr(bulk.transport, "model_config", unknown)
    result = bulk.run(folder, "--pipeline", "clasify", "--to", folder / "out.csv")
    assert result.exit_code == 2
    assert "'clasify'" in result.stderr
    assert beside(folder / "out.csv") == []


def test_an_output_of_others_is_not_overwritten_unless_asked(bulk: Bulk, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    result = bulk.run(folder, "--to", out)
    assert result.exit_code == 2
    assert "--overwrite begins anew" in result.stderr
    assert out.read_text() == "precious"
    assert bulk.run(folder, "--to", out, "--overwrite").exit_code == 1
    assert len(csv_rows(out)) == 30


# ---- pages ----------------------------------------------------------------------------------------------------------


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
    assert bulk.run(*sources, "--to", out).exit_code == 2
    result = bulk.run(*sources, "--to", out, "--pages", "all")
    assert result.exit_code == 0
    assert "going on after 2 images" in result.stderr
    rows = json_rows(out)
    numbered = [f"page {number}" for number in (1, 2, 3)]
    assert [row.get("key", "") for row in rows] == [*numbered, "", *(f"a {page}" for page in numbered), "b"]
    said = [row["labels"][0] for row in rows]
    assert said[:3] == said[4:7]
    assert len(set(said)) == 5
    with_ray = bulk.run(*sources, "--to", tmp_path / "parts", "--ray", "--pages", "all")
    assert (with_ray.exit_code, with_ray.stderr) == (2, "--pages all is for runs without --ray\n")
