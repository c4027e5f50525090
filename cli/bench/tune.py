"""``onestream bench tune``: measures the serving options on this machine and writes the best into the pipeline file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail, needs_extras
from onestream.cli.options import ONNX_HELP, DeviceChoice, check_folder, check_plot, onnx_by_stage

if TYPE_CHECKING:
    from onestream.measure.tune.report import Report
    from onestream.measure.tune.run import Options
    from onestream.measure.tune.search import Trial


def tune(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file, such as pipelines/classify.yaml.")],
    *,
    images: Annotated[Path, typer.Option(help="Folder of images like those that will be served.")],
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("model_repository"),
    onnx: Annotated[list[str] | None, typer.Option(metavar="FILE", help=ONNX_HELP)] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight.  \\[default: 4 per core; on a GPU 256]")
    ] = None,
    p99_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Choose only what keeps p99 latency within this.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for everything but the last build.")] = 5.0,
    ensemble: Annotated[bool, typer.Option("--ensemble", help="Tune NAME, not NAME_fused.")] = False,
    device: Annotated[DeviceChoice, typer.Option(help="Which configurations to tune.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, only say what would be.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of what was tried, such as tune.png.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all measurements as JSON; - is stdout.")
    ] = None,
) -> None:
    """Find the serving options that are fastest on this machine, by measuring real servers with your images.

    What is better by more than the noise goes into the serving section of the pipeline file, and the repository is
    built again. Ctrl-C leaves the file unchanged. Exits with 0 when done, also where nothing was better; 1 where a
    measurement failed or nothing keeps --p99-ms; 2 where it cannot start.
    """
    with needs_extras("cpu"):
        from onestream.client import OnestreamError
        from onestream.measure.load.perf_analyzer import PerfAnalyzerError
        from onestream.measure.tune.images import NoImages
        from onestream.measure.tune.pipeline_file import CannotEdit
        from onestream.measure.tune.run import Listener, Options
        from onestream.measure.tune.run import tune as measure
        from onestream.measure.tune.search import SettingFailed
        from onestream.preprocess import PreprocessError
        from onestream.serving.errors import ServingError
    _check_outputs(plot, json_file)
    onnx_file, onnx_files = onnx_by_stage(onnx or [])
    options = Options(
        pipeline_file=pipeline,
        images=images,
        repository=repository,
        onnx_file=onnx_file,
        onnx_files=onnx_files,
        device=device,
        ensemble=ensemble,
        concurrency=concurrency,
        p99_ms=p99_ms,
        minutes=minutes,
    )
    log = Console(stderr=True)
    with _interruptible():
        try:
            with log.status("starting") as status:
                listener = Listener(
                    say=status.update,
                    left_out=lambda path, reason: _line(log, f"left out {path}: {reason}"),
                    trial=lambda trial: _line(log, told(trial)),
                )
                report = measure(options, listener)
            if options.names.passed_over:
                typer.echo(options.names.passed_over, err=True)
            _show(report, json_file, plot)
            if report.changes and report.keeps_limit is not False:
                _finish(report, options, log, dry_run=dry_run)
        except KeyboardInterrupt:
            fail(f"interrupted; {pipeline} is unchanged", EXIT_INTERRUPTED)
        except (NoImages, ServingError, PreprocessError, PerfAnalyzerError) as error:
            fail(f"cannot tune: {error}", EXIT_CANNOT_START)
        except (SettingFailed, OnestreamError) as error:
            fail(f"cannot measure: {error}", EXIT_FAILED)
        except CannotEdit as error:
            fail(f"{pipeline} is unchanged: {error}", EXIT_FAILED)
        except OSError as error:
            fail(f"{error.filename or pipeline}: {error.strerror or error}", EXIT_FAILED)
    if report.keeps_limit is False:
        raise typer.Exit(EXIT_FAILED)


def told(trial: Trial) -> str:
    """One trial in a line."""
    from onestream.measure.tune.knobs import differences, text
    from onestream.measure.tune.search import speeds

    what = text(differences(trial.options, trial.against))
    if trial.judgement is None:
        return f"{what}: failed: {trial.failure}"
    before, after = speeds(trial.against_samples).median, speeds(trial.samples).median
    verdict = "better" if trial.better else "no"
    return f"{what}: {after:.0f} images/s, without {before:.0f}: {verdict} ({trial.judgement.reason})"


def _show(report: Report, json_file: str | None, plot: Path | None) -> None:
    from onestream.measure.tune.report import decision
    from onestream.measure.tune.table import about_images, tabulate

    if plot is not None:
        from onestream.measure.tune.plot import draw

        draw(report, plot)
    if json_file == "-":
        print(report.model_dump_json(indent=2))
        return
    if json_file is not None:
        Path(json_file).write_text(f"{report.model_dump_json(indent=2)}\n", encoding="utf-8")
    out = Console()
    out.print(tabulate(report))
    rounds = f"{report.rounds} rounds of {report.measurement_s:.1f} s each, by {report.tool}"
    out.print(f"\n{about_images(report.images)}; {rounds}", highlight=False, markup=False)
    out.print(f"\n{decision(report)}", highlight=False, markup=False)


def _finish(report: Report, options: Options, log: Console, *, dry_run: bool) -> None:
    from onestream.measure.tune.knobs import text
    from onestream.measure.tune.pipeline_file import edited, read_text
    from onestream.measure.tune.run import write

    what = f"serving of {options.pipeline_file}: {text(report.changes)}"
    if dry_run:
        edited(read_text(options.pipeline_file), report.changes)
        _line(log, f"nothing written (--dry-run). It would set in {what}")
        return
    built = write(report, options)
    _line(log, f"written into {what}; {options.repository}: {len(built.written)} files")


def _line(log: Console, text: str) -> None:
    log.print(text, highlight=False, markup=False, soft_wrap=True)


def _check_outputs(plot: Path | None, json_file: str | None) -> None:
    """Refuse before minutes of measuring what could not be written after them."""
    if plot is not None:
        check_plot(plot)
    if json_file not in (None, "-"):
        check_folder(Path(json_file))


@contextmanager
def _interruptible() -> Iterator[None]:
    """End as by Ctrl-C also when told to terminate, so that no server stays behind."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
