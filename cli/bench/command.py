"""``onestream bench``: how many video streams this machine holds, and machines for very many images."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from onestream.cli.bench.tune import tune
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail, needs_extras
from onestream.cli.messages import table_console
from onestream.cli.options import Family
from onestream.measure.scale_out import Costs, estimate, machines_for

_MOST_SHOWN = 128
# Of the commands that stream videos.
_Clip = Annotated[Path | None, typer.Option(help="Video that every stream plays; one is made where none is given.")]
_Onnx = Annotated[Path | None, typer.Option(help="The network, where the pipeline does not name a built-in one.")]
_Networks = Annotated[
    Path, typer.Option(help="Its networks are taken where they fit; one in int8 must have been built there.")
]
_Raw = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all raw numbers.")]
_Cache = Annotated[Path, typer.Option(help="Folder for the video that is made.")]


def scale(
    images_per_s: Annotated[
        float, typer.Option(min=0.001, help="What one machine does, as `onestream bulk --ray` says at its end.")
    ],
    cores: Annotated[int, typer.Option(min=1, help="Cores of the machine on which that was measured.")],
    *,
    images: Annotated[int, typer.Option(min=1, help="How many there are.")] = 100_000_000,
    image_kb: Annotated[float, typer.Option(min=0.001, help="Thousands of bytes of an image, in the mean.")] = 400,
    machine_cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of each machine of the cluster.  \\[default: --cores]")
    ] = None,
    link_gbit_per_s: Annotated[float, typer.Option(min=0.001, help="The network of each machine.")] = 10,
    store_gbit_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="What the store gives to all machines.  \\[default: no bound]")
    ] = None,
    gpus: Annotated[
        int,
        typer.Option(min=0, help="GPUs of each machine, which run the network; --images-per-s is then of decoding."),
    ] = 0,
    images_per_s_per_gpu: Annotated[
        float | None, typer.Option(min=0.001, help="What the network does on one GPU.")
    ] = None,
    hours: Annotated[
        list[float] | None, typer.Option(min=0.001, help="The machines that take so long; may be repeated.")
    ] = None,
) -> None:
    """Print machines and hours for very many images, and what saturates first, from figures that were measured.

    Nothing is measured here. Rates of cores, GPUs and machines are added up; every image crosses a network once.
    Exits with 2 where a figure is missing, or where the store alone takes longer than all --hours.
    """
    if gpus and images_per_s_per_gpu is None:
        fail("--gpus takes --images-per-s-per-gpu, measured on such a GPU", EXIT_CANNOT_START)
    costs = Costs(
        image_bytes=image_kb * 1000,
        cores=machine_cores or cores,
        images_per_s_per_core=images_per_s / cores,
        link_bits_per_s=link_gbit_per_s * 1e9,
        store_bits_per_s=None if store_gbit_per_s is None else store_gbit_per_s * 1e9,
        gpus=gpus,
        images_per_s_per_gpu=images_per_s_per_gpu,
    )
    counts = _machine_counts(costs, images, hours)
    if not counts:
        fail("the store alone takes longer than that: nothing but a faster one helps", EXIT_CANNOT_START)
    table = Table("machines", "images/s", "hours", "saturates first", "next", box=None)
    for count in counts:
        found = estimate(costs, count)
        first, then = found.bounds[:2]
        table.add_row(
            f"{count:,}",
            f"{found.images_per_s:,.0f}",
            f"{found.hours(images):,.1f}",
            first.name,
            f"{then.name}, at {then.images_per_s:,.0f}",
        )
    table_console().print(table)


def _machine_counts(costs: Costs, images: int, hours: list[float] | None) -> list[int]:
    """The machines that were asked for, or powers of two up to where more of them change nothing."""
    if hours:
        return sorted({count for asked in hours if (count := machines_for(costs, images, asked)) is not None})
    counts = [1]
    while counts[-1] < _MOST_SHOWN and estimate(costs, counts[-1]).bounds[0].name != "store":
        counts.append(2 * counts[-1])
    return counts


bench = typer.Typer(
    cls=Family, no_args_is_help=True, help="Measure what this machine serves, beside the usual way of writing it."
)
bench.command()(scale)
bench.command()(tune)


@bench.callback()
def _root() -> None:
    """Measure what this machine serves, beside the usual way of writing it."""


@bench.command()
def streams(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.")] = Path("pipelines/classify.yaml"),
    *,
    stride: Annotated[int, typer.Option(min=1, help="Infer every `stride`-th frame.")] = 1,
    draw: Annotated[
        bool, typer.Option("--draw", help="Of a detector: draw boxes and send the video back, whatever its file says.")
    ] = False,
    clip: _Clip = None,
    onnx: _Onnx = None,
    repository: _Networks = Path("model_repository"),
    rounds: Annotated[int, typer.Option(min=1, help="Searches, of which the median is taken.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each run that are counted.")] = 8.0,
    json_file: _Raw = None,
    cache: _Cache = Path(".cache/benchmarks/videos"),
) -> None:
    """Find how many 1080p streams of 30 frames/s are held in real time: p99 result latency within 200 ms, no drop.

    The last stream may run at a fraction of its rate, so 2.6 means two streams and one of 18 frames/s. Beside it
    stands the usual way, written well: OpenCV's VideoCapture per stream in a client, OpenCV resize and normalize, one
    request per frame, to the same network on the same server. Takes 7 to 12 minutes a round. Exits with 2 where it
    cannot be measured.
    """
    with needs_extras("cpu", group="bench"):
        from onestream.client import OnestreamError
        from onestream.measure.agreement import Disagreement
        from onestream.measure.capacity.clip import ClipMissing, own_clip
        from onestream.measure.capacity.streams import StreamsPlan, compare, quiet_numbers
        from onestream.preprocess import PreprocessError
        from onestream.serving.errors import ServingError
    quiet_numbers()
    log = Console(stderr=True)
    try:
        path = clip or own_clip(cache, say=log.print)
        plan = StreamsPlan(
            pipeline_file=pipeline,
            clip=path,
            stride=stride,
            draws=draw,
            rounds=rounds,
            duration_s=seconds,
            onnx_file=onnx,
            repository=repository,
        )
        with tempfile.TemporaryDirectory(prefix="onestream-bench-") as folder:
            result = compare(plan, folder=Path(folder), say=lambda line: log.print(line, highlight=False))
    except (OnestreamError, Disagreement, ClipMissing, PreprocessError, ServingError, OSError) as error:
        fail(str(error), EXIT_CANNOT_START)
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)
    Console().print(streams_table(result))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def streams_table(result: dict[str, Any]) -> Table:
    """A result of ``measure.capacity.streams.compare`` for a terminal."""
    from onestream.measure.capacity.streams import OPENCV, OURS, Summary
    from onestream.measure.tables import terminal

    summary, clip = Summary.of(result), result["clip"]
    table = terminal(
        "",
        Column("streams held", justify="right"),
        Column("ours ÷ it", justify="right"),
        title=f"{result['pipeline']} in {result['precision']}, {clip['width']}x{clip['height']} {clip['codec']}, "
        f"{result['fps']} frames/s, every {result['stride']}. frame, {result['cores']} cores",
    )
    table.add_row(OURS, summary.held[OURS].text(2), "")
    against = summary.against_opencv
    other = "" if result["precision"] == "float32" else ", network in float32"
    table.add_row(f"{OPENCV} in the client{other}", summary.held[OPENCV].text(2), against.text(2) if against else "–")
    parts = f"{summary.costs.decode_ms:.1f} + {summary.costs.network_ms:.1f} ms of CPU a frame"
    table.add_row(f"bare decode and network ({parts})", summary.bound.text(2), summary.of_bound.text(2))
    if summary.costs.encode_ms:
        parts = f"{summary.costs.encode_ms:.1f} ms"
        table.add_row(f"… and bare encode ({parts})", summary.bound_encoded.text(2), summary.of_bound_encoded.text(2))
    return table


@bench.command()
def soak(
    pipeline: Annotated[
        Path, typer.Argument(help="Pipeline file, whose video is sampled by stride or not at all.")
    ] = Path("pipelines/classify.yaml"),
    *,
    onnx: _Onnx = None,
    repository: _Networks = Path("model_repository"),
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 30.0,
    clients: Annotated[int, typer.Option(min=1, help="Processes that stream in mode block.")] = 8,
    clip: _Clip = None,
    json_file: _Raw = None,
    cache: _Cache = Path(".cache/benchmarks/videos"),
) -> None:
    """Stream for a long time, while other clients are killed, and count what was lost, out of order or mistimed.

    Prints the server's memory for each open stream, and how it grew. Exits with 1 where anything was lost or failed, 2
    where it cannot start.
    """
    with needs_extras("cpu", group="bench"):
        from onestream.client import OnestreamError
        from onestream.measure.capacity.clip import ClipMissing, own_clip
        from onestream.measure.capacity.soak import SoakPlan
        from onestream.measure.capacity.soak import soak as run
        from onestream.preprocess import PreprocessError
        from onestream.serving.errors import ServingError
    log = Console(stderr=True)
    try:
        plan = SoakPlan(pipeline, clip or own_clip(cache, say=log.print), minutes, clients, onnx, repository)
        with tempfile.TemporaryDirectory(prefix="onestream-soak-") as folder:
            result = run(plan, folder=Path(folder), say=lambda line: log.print(line, highlight=False))
    except (OnestreamError, ClipMissing, PreprocessError, ServingError, OSError) as error:
        fail(str(error), EXIT_CANNOT_START)
    except KeyboardInterrupt:
        fail("interrupted", EXIT_INTERRUPTED)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    Console().print_json(data={name: value for name, value in result.items() if name != "memory"})
    wrong = ("lost", "out_of_order", "wrong_times", "failures", "server_restarts")
    if any(result[name] for name in wrong):
        fail("frames were lost, out of order or mistimed, or a stream or the server failed", EXIT_FAILED)
