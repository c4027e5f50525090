"""Finding and driving perf_analyzer, and reading what it exports. ``exports/`` holds files that version 2.60 wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from onestream.measure.load import perf_analyzer

EXPORTS = Path(__file__).parent / "exports"
CONCURRENCY = (EXPORTS / "concurrency.csv").read_text()


def test_an_export_is_read_in_milliseconds() -> None:
    export = perf_analyzer.read_export(CONCURRENCY)
    assert export.inferences_per_s == 208.963
    assert (export.p50_ms, export.p90_ms, export.p95_ms, export.p99_ms) == (37.652, 62.988, 67.85, 86.749)
    assert export.mean_ms == 37.903
    spent = {"queue": 5.622, "compute input": 0.097, "compute infer": 30.309, "compute output": 0.767}
    assert export.server_ms == spent
    by_rate = perf_analyzer.read_export((EXPORTS / "request_rate.csv").read_text())
    assert by_rate.inferences_per_s == pytest.approx(57, abs=5)
    assert perf_analyzer.read_export((EXPORTS / "ensemble.csv").read_text()).p99_ms > 0


HEAD, ROW = CONCURRENCY.splitlines()[:2]


@pytest.mark.parametrize(
    ("export", "said"),
    [
        (CONCURRENCY.replace("p99 latency", "p98 latency"), "no column 'p99 latency'"),
        (HEAD, "got 0"),
        ("\n".join([HEAD, ROW, ROW]), "got 2"),
    ],
)
def test_an_export_of_not_one_whole_measurement_is_refused(export: str, said: str) -> None:
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match=said):
        perf_analyzer.read_export(export)


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


CLOSED, OPEN = perf_analyzer.Load(kind="concurrency", value=8), perf_analyzer.Load(kind="rate", value=90)


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
def test_loads_and_transports(
    fake: Path, load: perf_analyzer.Load, transport: perf_analyzer.Transport, has: list[str], lacks: str
) -> None:
    asked = {"address": "127.0.0.1:8001", "photos": Path("photos.json"), "duration_s": 3.6}
    export = perf_analyzer.measure([str(fake)], model="classify", transport=transport, load=load, **asked)  # type: ignore[arg-type]
    assert export == perf_analyzer.read_export(CONCURRENCY)
    given = f" {' '.join(json.loads((fake.parent / 'arguments.json').read_text()))} "
    assert all(f" {options} " in given for options in has)
    assert lacks not in given
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match=f"missing, {load}: .* failed to get model metadata"):
        perf_analyzer.measure([str(fake)], model="missing", transport=transport, load=load, **asked)  # type: ignore[arg-type]


def test_it_is_found_on_path_and_by_its_variable(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is missing, the message says how to get it."""
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    monkeypatch.setenv("PATH", str(fake.parent))
    assert perf_analyzer.find_perf_analyzer() == [str(fake)]
    monkeypatch.setenv("PERF_ANALYZER", f"{fake} --verbose")
    assert perf_analyzer.find_perf_analyzer() == [str(fake), "--verbose"]
    monkeypatch.setenv("PERF_ANALYZER", "/nowhere")
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match=r"\$PERF_ANALYZER names .*nowhere"):
        perf_analyzer.find_perf_analyzer()
    monkeypatch.delenv("PERF_ANALYZER")
    fake.unlink()
    with pytest.raises(perf_analyzer.PerfAnalyzerError, match="pip install perf-analyzer"):
        perf_analyzer.find_perf_analyzer()
