"""One run: images, a first server, the search, and what it found; and writing it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from onestream.client import BadImage, Client
from onestream.measure.image_files import ImageNames
from onestream.measure.tune import images as images_of
from onestream.measure.tune import pipeline_file as editing
from onestream.measure.tune.bench import Bench, Servers, Workshop
from onestream.measure.tune.decide import ROUNDS, keeps_limit
from onestream.measure.tune.knobs import Device, knobs_for, settings
from onestream.measure.tune.loads import Load, open_load
from onestream.measure.tune.report import ImagesUsed, Report, again_of, rows_of
from onestream.measure.tune.search import Trial, search
from onestream.serving.building.build import Built, build
from onestream.serving.building.dali_backend.repository import check_folder
from onestream.serving.cascade import Cascade, read_file
from onestream.serving.engine.table import CPU_ENGINES
from onestream.serving.errors import BadPipeline
from onestream.serving.server.fit import usable_cores
from onestream.serving.server.triton.installation import Device as AskedDevice
from onestream.serving.server.triton.installation import find_triton, resolve_device

_REQUESTS_PER_CORE = 4
_REQUESTS_ON_A_GPU = 256
_CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to tune, and how.

    ``repository`` is where ``onestream build`` put the pipeline, or will. ``onnx_file`` is the network of a pipeline
    that names none, ``onnx_files`` are those of a cascade's stages. ``images`` is a folder; ``names`` tells which of
    its files are images, and afterwards how many were passed over. ``ensemble`` tunes ``NAME`` in place of
    ``NAME_fused``. ``concurrency`` is the number of requests in flight, None for ``default_concurrency``. ``p99_ms``
    limits the p99 of what may be chosen. ``minutes`` is for everything but writing.
    """

    pipeline_file: Path
    images: Path
    repository: Path
    names: ImageNames = field(default_factory=ImageNames)
    onnx_file: Path | None = None
    onnx_files: Mapping[str, Path] = field(default_factory=dict)
    device: AskedDevice = "auto"
    ensemble: bool = False
    concurrency: int | None = None
    p99_ms: float | None = None
    minutes: float = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """Is told about a run: ``say`` what happens now, ``image_left_out`` which and why, ``trial`` what was tried."""

    say: Callable[[str], None] = lambda _: None
    left_out: Callable[[str, str], None] = lambda _path, _reason: None
    trial: Callable[[Trial], None] = lambda _: None


def default_concurrency(device: Device, cores: int) -> int:
    """Requests in flight: on a CPU 4 for each core, so that some wait; on a GPU the largest batch."""
    return _REQUESTS_ON_A_GPU if device == "gpu" else _REQUESTS_PER_CORE * cores


def tune(options: Options, listener: Listener | None = None) -> Report:
    """Measure, and report the best setting found; nothing is written.

    Whatever was started has ended on return, also after an error or an interrupt. Raises ``ServingError``,
    ``PreprocessError``, ``images.NoImages``, ``search.SettingFailed`` where the file's own setting cannot be measured,
    ``onestream.measure.load.perf_analyzer.PerfAnalyzerError`` or ``client.OnestreamError``.
    """
    told = listener or Listener()
    began = monotonic()
    pipeline = read_file(options.pipeline_file)
    found = images_of.find(options.images, options.names)
    check_folder(options.repository, "python")
    device = resolve_device(options.device, find_triton())
    if isinstance(pipeline, Cascade) and device == "gpu":
        raise BadPipeline(f"{pipeline.name} is a cascade, whose options for a CPU are tuned: --device cpu")
    cores = usable_cores()
    concurrency = options.concurrency or default_concurrency(device, cores)
    model = pipeline.name if options.ensemble else f"{pipeline.name}_fused"
    start = pipeline.serving
    with tempfile.TemporaryDirectory(prefix="onestream-tune-") as name:
        folder = Path(name)
        workshop = Workshop(
            options.pipeline_file,
            onnx_file=options.onnx_file,
            onnx_files=options.onnx_files,
            folder=folder,
            built=options.repository,
        )
        told.say("building")
        workshop.repository(start, progress=told.say)
        precision, agreements = workshop.agreements(start) if device == "cpu" else ("float32", {})
        knobs = knobs_for(
            device,
            cores=cores,
            concurrency=concurrency,
            ensemble=options.ensemble,
            one_more=not (options.ensemble or isinstance(pipeline, Cascade)) and start.max_queue_size != 0,
            less_precision=precision,
            engines=[name for name, row in CPU_ENGINES.items() if find_spec(row.module)],
        )
        with Servers(workshop, model=model, device=device) as servers:
            told.say("starting a server")
            before = monotonic()
            server = servers.get(start)
            start_s = monotonic() - before
            told.say("checking the images")
            images = _images(found, server.grpc_address, model)
            for path, reason in images.left_out.items():
                told.left_out(path, reason)
            load: Load = open_load(list(images.contents.values()), concurrency=concurrency, folder=folder)
            bench = Bench(
                servers,
                load,
                model=model,
                budget_s=options.minutes * 60,
                deadline=began + options.minutes * 60,
                p99_ms=options.p99_ms,
                say=told.say,
            )
            told.say("measuring the file's setting")
            first = bench.warm_up(start, start_s=start_s)
            outcome = search(
                start,
                knobs,
                device=device,
                cores=cores,
                compare=bench,
                p99_ms=options.p99_ms,
                on_trial=told.trial,
            )
    if options.p99_ms is not None and not outcome.trials:
        outcome.keeps_limit = keeps_limit([first], options.p99_ms)
    return Report(
        pipeline_file=str(options.pipeline_file),
        model=model,
        device=device,
        cores=cores,
        images=ImagesUsed.of(images),
        tool=load.tool,
        concurrency=concurrency,
        p99_limit_ms=options.p99_ms,
        rounds=ROUNDS,
        measurement_s=bench.duration_s,
        minutes=options.minutes,
        least_minutes=bench.least_minutes,
        start=settings(outcome.start, knobs),
        defaults=settings(outcome.defaults, knobs),
        chosen=settings(outcome.best, knobs),
        rows=rows_of(outcome, knobs, first),
        again=again_of(outcome, knobs),
        out_of_time=outcome.out_of_time,
        keeps_limit=outcome.keeps_limit,
        agreements=agreements,
    )


def write(report: Report, options: Options) -> Built:
    """Set what was chosen in the pipeline file, and build the repository from it.

    Where that fails or is interrupted, the file is as it was. Raises ``pipeline_file.CannotEdit``, ``ServingError``,
    ``PreprocessError`` or ``OSError``.
    """
    text = editing.read_text(options.pipeline_file)
    editing.replace_text(options.pipeline_file, editing.edited(text, report.changes))
    try:
        return build(
            options.pipeline_file,
            folder=options.repository,
            onnx_file=options.onnx_file,
            onnx_files=options.onnx_files,
        )
    except BaseException:
        editing.replace_text(options.pipeline_file, text)
        raise


def _images(found: Mapping[Path, int], grpc_address: str, model: str) -> images_of.Images:
    with Client(grpc_address, timeout_s=_CHECK_TIMEOUT_S) as client:

        def check(data: bytes) -> str | None:
            try:
                client.infer(model, data)
            except BadImage as error:
                return str(error)
            return None

        return images_of.read(found, check)
