"""What hostile runs found, as the table of docs/security.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.hostile import table
from benchmarks.result_files import Machine, Raw, read
from onestream.measure.tables import BEGIN, END

ROOT = Path(__file__).parents[2]
MACHINE = Machine(cpu="Some CPU", cores=2, memory_gib=8.0, kernel="6", system="Linux")
ABOUT = {"commit": "0123456789abcdef", "started_utc": "2030-01-02T03:04:05+00:00"}


def kills(served_again_s: float | None) -> dict[str, Any]:
    one = {"victim": "serve", "signal": "SIGKILL", "served_again_s": served_again_s}
    return ABOUT | {
        "rounds": [one],
        "slowest_recovery_s": served_again_s or 120.0,
        "requests": 1000,
        "untyped": {},
        "orphans": 1,
        "regions_left": 0,
        "folders_left": 0,
    }


def soak(growth: dict[str, float], hurt: int) -> dict[str, Any]:
    return ABOUT | {
        "minutes": 30.0,
        "good": 300,
        "good_pictures": 290,
        "good_streams": 10,
        "good_frames": 300,
        "good_hurt": hurt,
        "hostile": 100,
        "failure": "",
        "restarts": {},
        "warm_up_s": 600.0,
        "growth_percent": growth,
    }


def pictures(hurt: int) -> dict[str, Any]:
    forms = {name: {"good": 850, "bad": 150, "hurt": hurt, "how": {}} for name in ("classify", "detect_fused")}
    return ABOUT | {"callers": 24, "forms": forms, "restarts": {}}


def rows(parts: dict[str, Any]) -> dict[str, str]:
    """What was measured, by the beginning of the quantity."""
    text = table.table({"machine": MACHINE.model_dump(), "parts": parts})
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {quantity.split(":")[0].split(" in ")[0]: measured for quantity, _, measured in cells[2:]}


def test_what_was_missed_and_what_was_not_measured_is_said() -> None:
    parts = {"kills": kills(20.5), "soak": soak({"tritonserver": 7.25, "serve": 1.0}, hurt=2), "pictures": pictures(3)}
    found = rows(parts)
    among = "good requests hurt by 15% bad pictures among them, 24 callers"
    assert found[among] == "6; restarts: 0"
    killed = found["kill -9 and SIGSTOP of every process of a server,"]
    assert killed.startswith("slowest 20.5 s (SIGKILL of serve), 1 above 15 s; left: 1 orphans")
    assert found["good requests hurt"] == "2; restarts: 0"
    assert found["growth of each process's own memory after 10 minutes"].startswith("tritonserver +7.2 %")
    assert found["headers"] == "not measured"


def test_a_server_that_never_came_back_is_the_slowest() -> None:
    measured = table.table({"machine": MACHINE.model_dump(), "parts": {"kills": kills(None)}})
    assert "slowest 120.0 s (SIGKILL of serve), 1 above 15 s" in measured


def test_a_part_that_is_measured_again_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "machine" / table.FILE_NAME
    table.keep(path, "kills", kills(1.0), machine=MACHINE)
    table.keep(path, "soak", soak({}, hurt=0), machine=MACHINE)
    table.keep(path, "kills", kills(2.0), machine=MACHINE)
    (found,) = read(tmp_path, table.FILE_NAME, Raw)
    assert found["parts"]["kills"]["slowest_recovery_s"] == 2.0
    assert found["parts"]["soak"]["minutes"] == 30.0
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert table.main(["--check", str(page), "--results", str(tmp_path)]) == 1
    assert table.main(["--write", str(page), "--results", str(tmp_path)]) == 0
    assert table.main(["--check", str(page), "--results", str(tmp_path)]) == 0
    assert "30 minutes with 25% hostile ones" in page.read_text()


def test_the_committed_page_shows_the_committed_results() -> None:
    assert table.main(["--check", str(ROOT / "docs" / "security.md")]) == 0
