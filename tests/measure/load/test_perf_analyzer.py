"""Finding and driving perf_analyzer, and reading what it exports. ``exports/`` holds files that version 2.60 wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from onestream.measure.load.perf_analyzer import (
    Load,
    PerfAnalyzerError,
    Transport,
    find_perf_analyzer,
    measure,
    read_export,
)

EXPORTS = Path(__file__).parent / "exports"
CONCURRENCY = (EXPORTS / "concurrency.csv").read_text()


def test_an_export_is_read_in_milliseconds() -> None:
    export = read_export(CONCURRENCY)
    assert export.inferences_per_s == 208.963
    assert (export.p50_ms, export.p90_ms, export.p95_ms, export.p99_ms) == (37.652, 62.988, 67.85, 86.749)
    assert export.mean_ms == 37.903
    assert export.server_ms == {
        "queue": 5.622,
        "compute input": 0.097,
        "compute infer": 30.309,
        "compute output": 0.767,
    }


def test_exports_of_request_rates_and_of_ensembles_are_read_too() -> None:
    assert read_export((EXPORTS / "request_rate.csv").read_text()).inferences_per_s == pytest.approx(57, abs=5)
    assert read_export((EXPORTS / "ensemble.csv").read_text()).p99_ms > 0


def test_an_export_without_a_column_is_refused_by_its_name() -> None:
    with pytest.raises(PerfAnalyzerError, match="no column 'p99 latency'"):
        read_export(CONCURRENCY.replace("p99 latency", "p98 latency"))


@pytest.mark.parametrize("rows", [0, 2])
def test_an_export_of_not_one_measurement_is_refused(rows: int) -> None:
    head, row = CONCURRENCY.splitlines()[:2]
    with pytest.raises(PerfAnalyzerError, match=f"got {rows}"):
        read_export("\n".join([head, *[row] * rows]))


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """An executable that records its arguments and exports what perf_analyzer did."""
    path = tmp_path / "perf_analyzer"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"pathlib.Path({str(tmp_path / 'arguments.json')!r}).write_text(json.dumps(sys.argv[1:]))\n"
        "if sys.argv[sys.argv.index('-m') + 1] == 'missing':\n"
        "    print('Measurement Settings')\n"
        "    sys.exit('error: failed to get model metadata')\n"
        f"pathlib.Path(sys.argv[sys.argv.index('-f') + 1]).write_text({CONCURRENCY!r})\n"
    )
    path.chmod(0o755)
    return path


def run(fake: Path, *, load: Load, transport: Transport = "grpc", model: str = "classify") -> list[str]:
    export = measure(
        [str(fake)],
        model=model,
        address="127.0.0.1:8001",
        transport=transport,
        load=load,
        photos=Path("photos.json"),
        duration_s=3.6,
    )
    assert export == read_export(CONCURRENCY)
    return json.loads((fake.parent / "arguments.json").read_text())


CLOSED, OPEN = Load(kind="concurrency", value=8), Load(kind="rate", value=90)


@pytest.mark.parametrize(
    ("load", "transport", "has", "lacks"),
    [
        (CLOSED, "grpc", ["--concurrency-range 8", "-m classify", "-u 127.0.0.1:8001"], "--request-rate-range"),
        (CLOSED, "grpc", ["-i grpc", "--input-data photos.json"], "--shared-memory"),
        (CLOSED, "http", ["-i http"], "--shared-memory"),
        (CLOSED, "grpc+shm", ["-i grpc", "--shared-memory"], "--async"),
        (OPEN, "grpc", ["--request-rate-range 90", "--async"], "--concurrency-range"),
    ],
)
def test_loads_and_transports(fake: Path, load: Load, transport: Transport, has: list[str], lacks: str) -> None:
    given = f" {' '.join(run(fake, load=load, transport=transport))} "
    assert all(f" {options} " in given for options in has)
    assert lacks not in given


def test_a_failure_says_what_perf_analyzer_said(fake: Path) -> None:
    with pytest.raises(PerfAnalyzerError, match=r"missing, concurrency 1: .* failed to get model metadata"):
        run(fake, load=Load(kind="concurrency", value=1), model="missing")


def test_it_is_found_on_path_and_by_its_variable(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    monkeypatch.setenv("PATH", str(fake.parent))
    assert find_perf_analyzer() == [str(fake)]
    monkeypatch.setenv("PERF_ANALYZER", f"{fake} --verbose")
    assert find_perf_analyzer() == [str(fake), "--verbose"]


def test_where_it_is_missing_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfAnalyzerError, match="pip install perf-analyzer"):
        find_perf_analyzer()
    monkeypatch.setenv("PERF_ANALYZER", str(tmp_path / "nowhere"))
    with pytest.raises(PerfAnalyzerError, match=r"\$PERF_ANALYZER names .*nowhere"):
        find_perf_analyzer()
