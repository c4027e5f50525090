"""A folder of images is represented by a sample, and load is put on by what there is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shared_server import SharedServer

from onestream.measure.image_files import ImageNames
from onestream.measure.load.in_flight import keep_in_flight
from onestream.measure.tune.decide import Measurement
from onestream.measure.tune.images import MOST_BYTES, MOST_IMAGES, NoImages, find, read, sample
from onestream.measure.tune.loads import LoadFailed, OwnClient, PerfAnalyzer, open_load
from onestream.serving.building.warmup import warmup_photo

EXPORT = (Path(__file__).parents[1] / "load" / "exports" / "concurrency.csv").read_text()


def paths(count: int) -> list[Path]:
    return [Path(f"{index:05d}.jpg") for index in range(count)]


def test_few_images_are_all_taken_and_large_ones_are_fewer() -> None:
    assert set(sample(paths(7), [1000] * 7)) == set(paths(7))
    assert 1 <= len(sample(paths(100), [9_000_000] * 100)) <= MOST_BYTES // 9_000_000
    assert len(sample(paths(2), [MOST_BYTES * 2] * 2)) == 1


def test_a_sample_of_many_has_their_sizes() -> None:
    """One in ten is large, as in the folder; the choice is the same every time."""
    sizes = [900_000 if index % 10 == 0 else 10_000 for index in range(2000)]
    chosen = sample(paths(2000), sizes)
    assert len(chosen) == len(set(chosen)) == MOST_IMAGES
    assert sum(int(path.stem) % 10 == 0 for path in chosen) == MOST_IMAGES // 10
    assert chosen == sample(paths(2000), sizes)


def test_images_that_cannot_be_served_are_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "good.jpg").write_bytes(b"good")
    (tmp_path / "below" / "bad.PNG").write_bytes(b"bad")
    (tmp_path / "notes.txt").write_bytes(b"no image")
    names = ImageNames()
    found = read(find(tmp_path, names), lambda data: "corrupt: cut short" if data == b"bad" else None)
    assert found.contents == {str(tmp_path / "good.jpg"): b"good"}
    assert found.left_out == {str(tmp_path / "below" / "bad.PNG"): "corrupt: cut short"}
    assert found.found == 2
    said = f"passed over 1 file that is not named like an image: '{tmp_path}/notes.txt'; a file"
    assert names.passed_over.startswith(said)


def test_a_folder_without_images_says_what_is_expected(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NoImages, match=r"expected names that end in .bmp"):
            find(folder)
    (tmp_path / "a.jpg").write_bytes(b"x")
    with pytest.raises(NoImages, match=r"none of the 1 images .*a\.jpg: corrupt"):
        read(find(tmp_path), lambda _: "corrupt")


def test_perf_analyzer_is_preferred_and_its_failures_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "analyzer"

    def measured(export: str) -> Measurement:
        script.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, sys\n"
            "if '--version' in sys.argv: sys.exit(print('Perf Analyzer Version 9'))\n"
            f"pathlib.Path(sys.argv[sys.argv.index('-f') + 1]).write_text({export!r})\n"
        )
        script.chmod(0o755)
        load = open_load([b"image"], concurrency=8, folder=tmp_path)
        assert isinstance(load, PerfAnalyzer)
        assert load.tool == "perf_analyzer 9"
        return load.measure("127.0.0.1:1", "model", duration_s=0.3)

    monkeypatch.setenv("PERF_ANALYZER", str(script))
    found = measured(EXPORT)
    assert (found.images_per_s, found.p50_ms, found.p99_ms) == (208.963, 37.652, 86.749)
    with pytest.raises(LoadFailed, match="expected one measurement"):
        measured("nothing\n")


def test_without_perf_analyzer_our_client_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    load = open_load([b"image"], concurrency=2, folder=tmp_path)
    assert isinstance(load, OwnClient)
    with pytest.raises(LoadFailed, match=r"127\.0\.0\.1:1"):
        load.measure("127.0.0.1:1", "model", duration_s=0.3)


@pytest.mark.needs_triton
def test_our_client_keeps_requests_in_flight_and_counts_them(server: SharedServer) -> None:
    asked = (server.grpc_address, "classify_fused", [warmup_photo()])
    seen = keep_in_flight(*asked, concurrency=4, duration_s=0.5)
    assert seen.images_per_s > 0
    assert 0 < seen.p50_ms <= seen.p99_ms
    late = keep_in_flight(*asked, concurrency=2, duration_s=0.0001)
    assert 0 < late.images_per_s < 2 / 0.0001, "two answers, but not within the time"
