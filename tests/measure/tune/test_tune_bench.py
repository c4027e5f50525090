"""Settings are measured side by side, in repositories that differ in their serving options only."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from cascades import write_things
from int8_networks import color_network, in_int8

from onestream.measure.tune import bench as bench_module
from onestream.measure.tune.bench import Bench, Workshop, measurement_s
from onestream.measure.tune.decide import ROUNDS, Measurement
from onestream.measure.tune.knobs import differences, knobs_for, with_value
from onestream.measure.tune.loads import LoadFailed
from onestream.measure.tune.pipeline_file import edited
from onestream.measure.tune.search import OutOfTime, SettingFailed, search
from onestream.postprocess.network import NetworkOutput
from onestream.serving.building import pipeline_repository
from onestream.serving.cascade import CascadeServingOptions, read_file
from onestream.serving.errors import ServingError
from onestream.serving.pipeline import Pipeline, ServingOptions

ROOT = Path(__file__).parents[3]
A, B, C = (ServingOptions(max_batch_size=size) for size in (1, 2, 3))
SPEEDS = {A: 100.0, B: 120.0, C: 110.0}


class Servers(dict[ServingOptions, SimpleNamespace]):
    """Servers that are started and stopped by name only; those of ``broken`` settings do not start."""

    def __init__(self, broken: set[ServingOptions] | None = None) -> None:
        super().__init__()
        self.broken = broken or set()

    def get(self, options: ServingOptions) -> SimpleNamespace:  # type: ignore[override]
        if options in self.broken:
            raise ServingError("the port is in use")
        return self.setdefault(options, SimpleNamespace(grpc_address=options))

    def keep(self, settings: list[ServingOptions]) -> None:
        for options in set(self) - set(settings):
            del self[options]


class Load:
    def __init__(self, speeds: dict[ServingOptions, float] = SPEEDS, failing: ServingOptions | None = None) -> None:
        self.speeds, self.failing = speeds, failing
        self.measured: list[ServingOptions] = []

    def measure(self, address: ServingOptions, _model: str, *, duration_s: float) -> Measurement:
        assert duration_s > 0
        if address == self.failing:
            raise LoadFailed("connection reset")
        self.measured.append(address)
        return Measurement(images_per_s=self.speeds[address], p50_ms=1.0, p99_ms=2.0)


def bench(load: Load, servers: Servers | None = None, *, left_s: float = 1000.0) -> Bench:
    deadline = monotonic() + left_s
    return Bench(Servers() if servers is None else servers, load, model="m", budget_s=300.0, deadline=deadline)  # type: ignore[arg-type]


def test_every_round_has_every_setting_and_none_is_always_first() -> None:
    """A lost comparison ends after three rounds, but never the final one."""
    load, servers = Load(), Servers()
    compare = bench(load, servers)
    found = compare([B, A])
    assert load.measured[2:10] == [B, A, A, B, B, A, A, B], "after a first measurement of each, which does not count"
    assert [[sample.images_per_s for sample in samples] for samples in found] == [[120.0] * ROUNDS, [100.0] * ROUNDS]
    compare([C, A])
    assert set(servers) == {A, C}, "only the servers that are compared run"
    assert [len(samples) for samples in bench(Load())([A, B])] == [3, 3]
    assert [len(samples) for samples in bench(Load())([A, B, C], final=True)] == [ROUNDS] * 3


def test_a_comparison_that_would_end_too_late_is_not_begun_but_the_final_one_is() -> None:
    load = Load()
    compare = bench(load, left_s=0.0)
    with pytest.raises(OutOfTime):
        compare([B, A])
    assert load.measured == []
    assert len(compare([B, A], final=True)) == 2


def test_a_setting_that_does_not_start_or_breaks_down_is_named() -> None:
    with pytest.raises(SettingFailed, match="the port is in use") as failed:
        bench(Load(), Servers({B}))([B, A])
    assert failed.value.options == B
    with pytest.raises(SettingFailed, match="connection reset") as failed:
        bench(Load(failing=A))([B, A])
    assert failed.value.options == A


def test_measurements_get_longer_with_the_budget_and_for_what_answers_slowly() -> None:
    assert [measurement_s(budget_s) for budget_s in (1, 300, 1e6)] == [0.3, pytest.approx(2.5), 10]
    for speed, duration_s in ((100.0, 2.5), (8.0, 2.5), (4.0, 5.0), (0.5, 10.0)):
        compare = bench(Load({A: speed}))
        compare.warm_up(A, start_s=1.0)
        assert compare.duration_s == pytest.approx(duration_s)


def test_the_least_minutes_are_those_with_which_one_setting_is_tried() -> None:
    for start_s, minutes in ((1.0, 1), (60.0, 5)):
        compare = bench(Load({A: 100.0}), left_s=300.0)
        compare.warm_up(A, start_s=start_s)
        assert compare.least_minutes == minutes


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a repository, but for their first lines: a configuration's names what it was generated from."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes().partition(b"\n")[2] for path in files}


def test_a_setting_of_a_cascade_is_built_as_its_file_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was built before."""
    networks = write_things(tmp_path, serving={"cpu_instances": 1})
    file, built = tmp_path / "things.yaml", tmp_path / "built"
    start = read_file(file).serving
    assert start.max_batch_size == 1, "a cascade's default"
    options = with_value(start, "cpu_threads", 2)
    asked: list[Any] = []

    def build(tried: Path, *, folder: Path, **given: Any) -> SimpleNamespace:
        asked.append((read_file(tried), given["onnx_files"], given["beside"]))
        return SimpleNamespace(folder=folder)

    monkeypatch.setattr(bench_module, "build", build)
    Workshop(file, onnx_file=None, onnx_files=networks, folder=tmp_path / "work", built=built).repository(options)
    assert not built.exists()
    file.write_text(edited(file.read_text(), {"cpu_threads": 2}))
    assert asked == [(read_file(file), networks, tmp_path)]


def test_the_defaults_of_a_cascade_are_its_own() -> None:
    start = CascadeServingOptions(max_batch_size=4, cpu_threads=2)
    knobs = knobs_for("cpu", cores=2, concurrency=8, ensemble=False)
    tried: list[ServingOptions] = []

    def compare(settings: list[ServingOptions], *, final: bool = False) -> list[list[Measurement]]:
        assert not final
        tried.extend(settings)
        raise OutOfTime

    search(start, knobs, device="cpu", cores=2, compare=compare)
    assert tried == [CascadeServingOptions(), start]


def test_a_setting_has_the_repository_that_a_build_would_make(tmp_path: Path) -> None:
    built = in_int8(tmp_path)
    pipeline, onnx_file = tmp_path / "colors.yaml", tmp_path / "colors.onnx"
    before = {path: path.read_bytes() for path in built.folder.rglob("*") if path.is_file()}
    workshop = Workshop(pipeline, onnx_file=onnx_file, folder=tmp_path / "tries", built=built.folder)
    options = ServingOptions(max_batch_size=2, cpu_instances=3, cpu_threads=2, precision="int8")
    tried = workshop.repository(options)
    assert workshop.repository(options) == tried

    assert {path: path.read_bytes() for path in before} == before, "what the user built is only read"
    assert (tried / "colors_fused" / "labels.txt").read_text() == "red\ngreen\nblue\n"
    networks = [folder / "colors_fused" / "1" / "model.onnx" for folder in (tried, built.folder)]
    assert networks[0].samefile(networks[1]), "the network is linked, not prepared again"
    assert not (tried / "colors" / "certificate.json").samefile(built.folder / "colors" / "certificate.json")

    made, own = contents(tried), contents(built.folder)
    assert {Path(path).suffix for path in own if made[path] != own[path]} == {".pbtxt"}
    (described,) = (tmp_path / "tries").rglob("colors.yaml")
    pipeline.write_text(edited(pipeline.read_text(), differences(options, ServingOptions())))
    assert read_file(described) == read_file(pipeline)

    in_float32 = workshop.repository(ServingOptions())
    for form in ("colors_model", "colors_fused"):
        expected = (built.folder / form / "1" / "model.float32.onnx").read_bytes()
        assert (in_float32 / form / "1" / "model.onnx").read_bytes() == expected
    assert workshop.agreements(options) == ("int8", {"colors": built.quantizations["colors"].agreement})


def test_every_setting_of_a_gpu_changes_what_a_gpu_reads_and_nothing_else() -> None:
    pipeline, logits = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml"), NetworkOutput("y", "float32", (7,))
    start = ServingOptions()

    def files(options: ServingOptions) -> dict[str, bytes]:
        tried = pipeline.model_copy(update={"serving": options})
        return pipeline_repository.plan(tried, [logits], labels=None).files(source="x.yaml")

    usual = files(start)
    for knob in knobs_for("gpu", cores=16, concurrency=256, ensemble=False):
        for value in set(knob.values) - {knob.of(start)}:
            options = with_value(start, knob.field, value)
            changed = {path for path, content in files(options).items() if content != usual[path]}
            assert "classify_fused/config.pbtxt" in changed, (knob.field, value)
            assert {Path(path).name for path in changed} == {"config.pbtxt"}, (knob.field, value)


def test_without_a_network_in_int8_that_fits_there_is_none_to_try(tmp_path: Path) -> None:
    built = in_int8(tmp_path)
    file, onnx_file = tmp_path / "colors.yaml", tmp_path / "colors.onnx"
    nothing = Workshop(file, onnx_file=onnx_file, folder=tmp_path / "nothing", built=tmp_path / "missing")
    assert nothing.agreements(ServingOptions()) == ("float32", {})
    onnx_file.write_bytes(color_network(confidence=20).SerializeToString())
    workshop = Workshop(file, onnx_file=onnx_file, folder=tmp_path / "tries", built=built.folder)
    first = workshop.repository(ServingOptions())
    assert workshop.agreements(ServingOptions()) == ("float32", {})
    second = workshop.repository(ServingOptions(max_batch_size=2))
    assert (second / "colors_model" / "1" / "model.onnx").samefile(first / "colors_model" / "1" / "model.onnx")
