"""``onestream bench tune`` with a real server, a small network and a small budget."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml
from cascades import write_things
from int8_networks import in_int8
from networks import mean_color
from proxies import refused
from test_tune_report import report
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.tune import run as run_module
from onestream.measure.tune.knobs import knobs_for
from onestream.measure.tune.report import Report, decision
from onestream.measure.tune.run import Options, tune, write
from onestream.serving.built.triton_config import from_text
from onestream.serving.errors import BadPipeline

PHOTOS = Path(__file__).parents[3] / "examples" / "photos"
PIPELINE = """\
# A small pipeline.
preprocess:
  operations:
    - {op: decode}
    - {op: letterbox, size: [32, 32]}
    - {op: normalize, mean: [0, 0, 0], std: [1, 1, 1]}
postprocess: {kind: raw}
serving:  # how it runs
  cpu_instances: 1  # one process
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A pipeline, its network, and a folder with two photos and a file that is none."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("cat.jpg", "coffee.jpg"):
        (images / name).write_bytes((PHOTOS / name).read_bytes())
    (images / "text.png").write_text("no image")
    (tmp_path / "mine.yaml").write_text(PIPELINE)
    (tmp_path / "mine.onnx").write_bytes(mean_color((1, 3, 32, 32)).SerializeToString())
    return Options(
        pipeline_file=tmp_path / "mine.yaml",
        images=images,
        repository=tmp_path / "repository",
        onnx_file=tmp_path / "mine.onnx",
        device="cpu",
        concurrency=4,
    )


def command(options: Options, *more: str) -> list[str]:
    network = ["--onnx", str(options.onnx_file)] if options.onnx_file else []
    return [
        *(sys.executable, "-m", "onestream", "bench", "tune"),
        *(str(options.pipeline_file), "--images", str(options.images), "--repository", str(options.repository)),
        *("--device", "cpu", "--concurrency", "4", *network, *more),
    ]


def environment() -> dict[str, str]:
    """Without perf_analyzer, which not every machine has, so that the test is the same on all."""
    kept = {name: value for name, value in os.environ.items() if name != "PERF_ANALYZER"}
    return kept | {"COLUMNS": "80"}


def report_of(options: Options, **chosen: int | str) -> Report:
    now = {"max_batch_size": 8, "cpu_instances": 1}
    return report(pipeline_file=str(options.pipeline_file), model="mine_fused", start=now, chosen=now | chosen, rows=[])


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("more", [[], pytest.param(["--ensemble"], marks=pytest.mark.night)])
def test_a_short_real_run_on_a_cascade(options: Options, tmp_path: Path, more: list[str]) -> None:
    """Both forms, of which one asks networks inside the server."""
    networks = write_things(tmp_path, serving={"cpu_instances": 1, "cpu_threads": 2})
    given = [word for stage, file in networks.items() for word in ("--onnx", f"{stage}={file}")]
    line = command(replace(options, pipeline_file=tmp_path / "things.yaml", onnx_file=None), *given, *more)
    line += ["--minutes", "0.2", "--dry-run", "--json", "-"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate(json.loads(done.stdout))
    assert report.model == ("things" if more else "things_fused")
    assert report.start == {"cpu.engine": "onnxruntime", "max_batch_size": 1, "cpu_instances": 1, "cpu_threads": 2}
    assert report.rows[0].samples[0].images_per_s > 0


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_short_real_run(options: Options, tmp_path: Path) -> None:
    plot, numbers = tmp_path / "tune.png", tmp_path / "tune.json"
    more = ["--minutes", "0.4", "--plot", str(plot), "--json", str(numbers)]
    done = subprocess.run(command(options, *more), capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert "left out" in done.stderr
    assert "text.png: bad image (unsupported_format)" in done.stderr
    assert "mine_fused on" in done.stdout
    assert "2 of 3 images" in done.stdout
    assert plot.stat().st_size > 0

    report = Report.model_validate(json.loads(numbers.read_text()))
    assert report.start["cpu_instances"] == 1
    assert all(sample.images_per_s > 0 and sample.p99_ms >= sample.p50_ms for sample in report.rows[0].samples)
    assert all(row.samples or row.reason for row in report.rows)
    # Whatever the machine made of it: the file says what the report chose, and the repository what the file says.
    after = options.pipeline_file.read_text()
    serving = {"cpu_instances": 1} | report.changes
    assert yaml.safe_load(after) == yaml.safe_load(PIPELINE) | {"serving": serving}
    assert "# A small pipeline." in after
    assert options.repository.exists() == bool(report.changes)


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_real_run_tries_int8_and_tells_so(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = in_int8(tmp_path)
    monkeypatch.delenv("PERF_ANALYZER", raising=False)
    # The other knobs are left out, so that it ends when both were tried.
    monkeypatch.setattr(run_module, "knobs_for", lambda *given, **more: knobs_for(*given, **more)[:1])
    known = replace(
        options,
        pipeline_file=tmp_path / "colors.yaml",
        onnx_file=tmp_path / "colors.onnx",
        repository=built.folder,
        images=tmp_path / "pictures",
        minutes=2.0,
    )
    report = tune(known)
    assert report.start == {"precision": "float32"}
    assert [one.settings["precision"] for one in report.rows] == ["float32", "int8"]
    assert all(one.samples for one in report.rows)
    assert report.agreements == {"colors": built.quantizations["colors"].agreement}
    assert ("by its certificate: colors: best classes" in decision(report)) == (report.chosen["precision"] == "int8")
    if report.changes:
        written = write(report, known)
        assert written.quantizations == built.quantizations
        assert yaml.safe_load(known.pipeline_file.read_text())["serving"]["precision"] == "int8"


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.night)])
def test_an_interrupt_leaves_the_file_and_no_process(options: Options, number: signal.Signals) -> None:
    with subprocess.Popen(command(options), stderr=subprocess.PIPE, text=True, env=environment()) as running:
        process = psutil.Process(running.pid)
        while not any("tritonserver" in child.name() for child in process.children(recursive=True)):
            assert running.poll() is None, running.stderr and running.stderr.read()
            time.sleep(0.1)
        started = process.children(recursive=True)
        running.send_signal(number)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert said.splitlines()[-1] == f"interrupted; {options.pipeline_file} is unchanged"
    assert options.pipeline_file.read_text() == PIPELINE
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


def test_what_was_chosen_is_written_and_built(options: Options) -> None:
    """Where the build fails, the file is as it was."""
    with pytest.raises(BadPipeline, match="names no built-in network"):
        write(report_of(options, max_batch_size=2), replace(options, onnx_file=None))
    assert options.pipeline_file.read_text() == PIPELINE
    built = write(report_of(options, max_batch_size=2, cpu_instances="cores"), options)
    assert built.written
    changed = PIPELINE.replace("cpu_instances: 1  # one process", "cpu_instances: cores  # one process")
    assert options.pipeline_file.read_text() == changed + "  max_batch_size: 2\n"
    config = from_text((options.repository / "mine_fused" / "configs" / "cpu.pbtxt").read_text())
    assert config.max_batch_size == 2
    assert config.parameters["cpu_instances"].string_value == "cores+1"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--images", "nowhere"], "no images in nowhere"),
        (["--plot", "nowhere/tune.png"], "nowhere/tune.png: its folder does not exist"),
        (["--plot", "tune.txt"], "allowed are names that end in .png, .svg, .pdf"),
        (["--json", "nowhere/tune.json"], "nowhere/tune.json: its folder does not exist"),
        (["--repository", "model_repository"], "names no built-in network"),
    ],
)
def test_what_cannot_start_is_told_in_a_line(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["bench", "tune", str(options.pipeline_file), "--images", str(options.images), "--device", "cpu", *more]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_tuning_could_not_write_is_refused_before_anything_is_measured(options: Options) -> None:
    stamp = {"pipeline": "mine", "form": "dali-backend"}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in stamp.items()]
    (options.repository / "mine").mkdir(parents=True)
    (options.repository / "mine" / "config.pbtxt").write_text("\n".join(lines))
    assert "built with --form dali-backend" in refused(*command(options)[3:])
    options.pipeline_file.write_text("serving: {cpu_instances: none}\n")
    assert "cpu_instances" in refused(*command(options)[3:])


def test_a_cascade_is_not_tuned_for_a_gpu(options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_things(tmp_path)
    monkeypatch.setattr(run_module, "find_triton", lambda: None)
    monkeypatch.setattr(run_module, "resolve_device", lambda *_: "gpu")
    with pytest.raises(BadPipeline, match="things is a cascade, whose options for a CPU are tuned: --device cpu"):
        tune(replace(options, pipeline_file=tmp_path / "things.yaml", device="auto"))
