"""The whole harness, with a real server and a stand-in for perf_analyzer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from builds import build
from PIL import Image

from benchmarks import __main__ as command
from benchmarks import competitors as contests
from benchmarks import photos, run
from benchmarks.competitors import CLASSIFY, CONTESTS, READ, Contest
from benchmarks.plan import FULL, QUICK, ServedPlan, competitors
from benchmarks.reading import pictures
from benchmarks.report.served import full
from onestream.measure.load.perf_analyzer import PerfAnalyzerError

EXPORT = (Path(__file__).parents[1] / "measure" / "load" / "exports" / "concurrency.csv").read_text()
ROOT = Path(__file__).parents[2]
PHOTOS = {
    "classify": ROOT / "serving" / "data" / "warmup.jpg",
    "detect": ROOT / "examples" / "photos" / "cat.jpg",
}
"""With something to be found in it."""
TINY = ServedPlan(
    quick=True,
    rounds=1,
    duration_s=0.2,
    trial_rounds=1,
    concurrencies=(8,),
    cpu_time_passes=1,
    sizes=("500x375",),
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Asks once for the model's readiness instead of loading it; returns the file in which it notes every model.

    Its first measurement fails.
    """
    script, notes, failed = tmp_path / "perf_analyzer", tmp_path / "asked.jsonl", tmp_path / "failed"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "import tritonclient.grpc, tritonclient.http\n"
        "if '--version' in sys.argv: sys.exit(print('Perf Analyzer Version 9'))\n"
        f"failed = pathlib.Path({str(failed)!r})\n"
        "if not failed.exists(): sys.exit(failed.touch() or 'not stable')\n"
        "of = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
        "kind = tritonclient.http if of('-i') == 'http' else tritonclient.grpc\n"
        "assert kind.InferenceServerClient(of('-u')).is_model_ready(of('-m'))\n"
        "assert json.loads(pathlib.Path(of('--input-data')).read_text())['data']\n"
        f"with open({str(notes)!r}, 'a') as file: print(json.dumps(sys.argv[1:]), file=file)\n"
        f"pathlib.Path(of('-f')).write_text({EXPORT!r})\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PERF_ANALYZER", str(script))
    return notes


@pytest.fixture
def of_few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Contest], Contest]:
    """The contest with two pictures, or with as few as calibrate a network, one change, and one process a model."""

    def few(contest: Contest) -> Contest:
        if contest is READ:
            monkeypatch.setattr(pictures, "TEN_LINES_PICTURES", 2)
            return contest
        fields = yaml.safe_load(contest.pipeline_file.read_text())
        fields["serving"] = fields.get("serving", {}) | {"cpu_instances": 1}
        (tmp_path / "pipelines").mkdir()
        (tmp_path / "pipelines" / contest.pipeline_file.name).write_text(yaml.safe_dump(fields))
        monkeypatch.setattr(contests, "ROOT", tmp_path)
        sources = [tmp_path / f"{degrees}.png" for degrees in range(0, 360, 90)]
        for number, source in enumerate(sources):
            Image.open(PHOTOS[contest.name]).rotate(90 * number, expand=True).save(source)
        return replace(
            contest,
            pictures=lambda size, folder: photos.photo_set(size, folder=folder, sources=sources),
            changes=tuple(change for change in contest.changes if change.precision == "int8")[-1:],
        )

    return few


@pytest.mark.needs_triton
@pytest.mark.parametrize(
    "contest",
    [
        pytest.param(one, id=name, marks=pytest.mark.slow if one is CLASSIFY else pytest.mark.night)
        for name, one in CONTESTS.items()
    ],
)
def test_every_competitor_is_served_compared_and_measured(
    contest: Contest,
    of_few_pictures: Callable[[Contest], Contest],
    stand_in: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = contest.name
    monkeypatch.setattr(run, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(contests, "build", build)
    monkeypatch.setattr(run, "usable_cores", lambda: 1)  # two ways to deploy the plain models, not four
    said: list[str] = []
    contest = of_few_pictures(contest)
    results = run.run(replace(TINY, sizes=contest.sizes[:1]), contest, progress=said.append)
    assert sum("once more" in line for line in said) == 1
    (agreed,) = results.agreement
    assert agreed.photos == (2 if contest.cascade else 8)
    compared = [(change.fused(pipeline), change.baseline(pipeline)) for change in contest.changes]
    assert len(compared) == (pipeline != "read")
    expected = {"plain_default", *competitors(pipeline), *(changed for changed, _ in compared)}
    assert {one.competitor for one in results.served} == expected
    asked = [json.loads(line) for line in stand_in.read_text().splitlines()]
    assert len(asked) == len(results.plain_trials) + len(results.served)
    assert all(one.images_per_s > 0 for one in results.in_process)
    assert bool(results.cpu_time) == (pipeline != "read")
    assert all(used > 0 for one in results.cpu_time for used in one.milliseconds.values())
    assert results.versions["perf_analyzer"] == "9"
    report = full(results)
    assert f"images/s: {pipeline}_fused by gRPC ÷ in process" in report
    assert ("each alone" in report) == (pipeline != "read")
    assert all(f"| images/s: {changed} ÷ {baseline} |" in report for changed, baseline in compared)
    # A plain setting beside the first, our two forms, and in process.
    assert len(agreed.least_overlap) == {"classify": 0, "detect": 4, "read": 4}[pipeline]
    assert all(overlap >= (0.5 if contest.cascade else 0.9) for overlap in agreed.least_overlap.values())
    if contest.cascade:
        assert all(share >= 0.9 for share in agreed.equal_texts.values())
    else:
        assert agreed.best_classes_equal == agreed.photos


def test_without_perf_analyzer_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    said: list[str] = []
    with pytest.raises(PerfAnalyzerError, match="not on PATH"):
        run.run(QUICK, progress=said.append)
    assert said == []


def test_a_pipeline_is_measured_at_its_own_sizes_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--pipeline", "read", "--size", "500x375"])
    with pytest.raises(SystemExit):
        command.main()
    assert "read is measured at 640x480, not at 500x375" in capsys.readouterr().err
    plans: list[tuple[ServedPlan, Contest]] = []

    def asked(plan: ServedPlan, contest: Contest, **_options: object) -> None:
        plans.append((plan, contest))
        raise PerfAnalyzerError("none here")

    monkeypatch.setattr(command, "run", asked)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--pipeline", "read"])
    assert command.main() == 1
    assert plans == [(replace(FULL, sizes=("640x480",)), READ)]
