"""``onestream stream``: video in, results while it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live

from onestream.cli.annotate import AnnotatedVideo
from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, EXIT_INTERRUPTED, fail
from onestream.cli.messages import printable, table_console, without_name
from onestream.cli.options import ParameterOption, TokenOption, UrlOption, read_parameters, server_url
from onestream.cli.stream.board import Board
from onestream.client import BadStream, Client, OnestreamError
from onestream.client.video import (
    File,
    FrameResult,
    Rtsp,
    Sound,
    Source,
    Stream,
    StreamItem,
    Tracker,
    VideoWriter,
    interleave,
    source_of,
)
from onestream.wire.video import Mode, Open, Packet


def stream(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCES", help="Files, rtsp://…, http://… (MJPEG, HLS), /dev/video…, or - for standard input."
        ),
    ],
    *,
    url: UrlOption = None,
    token: TokenOption = None,
    pipeline: Annotated[str, typer.Option(help="The served pipeline; its model PIPELINE_video is used.")] = "classify",
    mode: Annotated[
        Mode | None,
        typer.Option(help="block: nothing is lost; drop_oldest: latency is bounded. By default by the source."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per frame, and one at the end.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the pipeline's video, or the source with labels or boxes; of several sources NAME-0.mp4, ….",
        ),
    ] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Number the objects of a detector, the same one with the same number.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many labels to show for each frame.")] = 1,
    parameter: ParameterOption = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="Send files as fast as a camera would.")] = False,
    rtsp_transport: Annotated[Literal["tcp", "udp"], typer.Option(help="How RTSP sends its packets.")] = "tcp",
    timeout_s: Annotated[float, typer.Option(min=0.001, help="The longest wait for the server, in seconds.")] = 10.0,
) -> None:
    """Stream videos to a running server, and show the results as they come.

    Exits with 0 when all streams went well, 1 when one failed or its file is truncated (the others go on), 2 when none
    could be started.
    """
    try:
        parameters = read_parameters(parameter)
        given = [_source(name, realtime=realtime, rtsp_transport=rtsp_transport) for name in sources]
        with Client(server_url(url), token=token, timeout_s=timeout_s) as client, ExitStack() as files:
            videos = [_video(output, number, len(given), top) for number in range(len(given))]
            for video in videos:
                if video is not None:
                    files.callback(video.close)
            trackers = [Tracker() for _ in given] if track else []
            streams = [
                client.stream(
                    source,
                    pipeline=pipeline,
                    mode=mode,
                    tap=None if video is None else video.sent,
                    sound=None if video is None else video.sound,
                    parameters=parameters,
                )
                for source, video in zip(given, videos, strict=True)
            ]
            board, failed, interrupted = Board(streams), 0, False
            try:
                failed = _follow(streams, board, videos, trackers, top, as_json=as_json)
            except KeyboardInterrupt:
                interrupted = True
    except (OnestreamError, ValueError, OSError, ImportError) as error:
        fail(str(error), EXIT_CANNOT_START)
    for line in (line for video in videos if video is not None for line in video.left_out):
        typer.echo(line, err=True)
    if as_json:
        for row in board.rows:
            typer.echo(json.dumps(_summary(row.stream, row.frames)))
    elif any(row.frames for row in board.rows):
        console = table_console()
        console.print(board.table(console, final=True))
    if interrupted:
        fail("interrupted", EXIT_INTERRUPTED)
    if failed:
        code = EXIT_FAILED if any(one.is_open for one in streams) else EXIT_CANNOT_START
        fail(f"{failed} of {len(streams)} streams failed", code)


def _source(name: str, *, realtime: bool, rtsp_transport: str) -> Source:
    source = File(sys.stdin.buffer) if name == "-" else source_of(name)
    if isinstance(source, Rtsp):
        return Rtsp(source.url, transport=rtsp_transport)
    return File(source.file, realtime=realtime) if isinstance(source, File) else source


def _video(output: Path | None, number: int, count: int, top: int) -> Output | None:
    if output is None:
        return None
    path = output if count == 1 else output.with_stem(f"{output.stem}-{number}")
    return Output(path, lambda frame: caption(frame, top))


def caption(frame: FrameResult, top: int) -> str:
    """The result in a few words, such as its best labels, a line each; of a composed picture its size."""
    if frame.result is not None:
        return "\n".join(map(printable, frame.result.best(top).caption()))
    video = frame.video
    return "" if video is None else f"{video.width}x{video.height}, {len(video.data) / 1000:.0f} kB"


def _follow(
    streams: Sequence[Stream],
    board: Board,
    videos: Sequence[Output | None],
    trackers: Sequence[Tracker],
    top: int,
    *,
    as_json: bool,
) -> int:
    """Take all results, tracked where there are trackers; the number of streams that failed."""
    failed = 0
    with ExitStack() as stack:
        if sys.stderr.isatty() and not (as_json and sys.stdout.isatty()):
            # Rich would otherwise take over stdout, which belongs to the results.
            console = Console(stderr=True)
            stack.enter_context(
                Live(
                    get_renderable=lambda: board.table(console),
                    console=console,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
            )
        items = stack.enter_context(closing(interleave(streams)))
        for item in items:
            video = videos[item.index]
            if trackers and item.frame is not None:
                item = replace(item, frame=trackers[item.index].update(item.frame))
            if item.frame is not None:
                board.add(item.index, item.frame, caption(item.frame, 1))
                if video is not None and item.stream.format is not None:
                    video.show(item.frame, item.stream.format)
            else:
                failed += 1
                typer.secho(f"{item.stream.name}: {without_name(item.error)}", fg=typer.colors.RED, err=True)
            if as_json:
                typer.echo(json.dumps(_to_dict(item, top)))
    return failed


def _to_dict(item: StreamItem, top: int) -> dict[str, Any]:
    source: dict[str, Any] = {"source": item.stream.name}
    if item.frame is not None:
        frame = item.frame
        return source | (frame if frame.result is None else replace(frame, result=frame.result.best(top))).to_dict()
    error: dict[str, Any] = {"type": type(item.error).__name__, "message": str(item.error)}
    if isinstance(item.error, BadStream):
        error |= {"code": item.error.code, "reason": item.error.reason}
    return source | {"error": error}


def _summary(stream: Stream, frames: int) -> dict[str, Any]:
    totals = stream.totals
    return {
        "source": stream.name,
        "ended": stream.ended_reason,
        "color": None if stream.color is None else stream.color.to_dict(),
        "truncated": stream.truncated,
        "results": frames,
        "decoded": totals.decoded,
        "dropped": totals.dropped,
        "concealed": totals.concealed,
        "unshown": totals.unshown,
        "gaps": [{"frame_index": gap.frame_index, "seconds": gap.seconds, "reason": gap.reason} for gap in stream.gaps],
    }


class Output:
    """The file of ``-o``: the pipeline's own frames, or the stream with its labels or objects, by the first result.

    ``sent`` may be called by another thread than the rest.

    The stream is to fill ``sound``.
    """

    def __init__(self, path: Path, caption: Callable[[FrameResult], str]) -> None:
        self._path, self.sound = path, Sound()
        self._annotated: AnnotatedVideo | None = AnnotatedVideo(path, caption, sound=self.sound)
        self._composed: VideoWriter | None = None

    @property
    def left_out(self) -> list[str]:
        """A line for each track of sound that is not in the file, because its container does not take it."""
        writer = self._composed or self._annotated
        return [] if writer is None else writer.left_out

    def sent(self, packet: Packet) -> None:
        """A packet went to the server."""
        annotated = self._annotated
        if annotated is not None:
            annotated.sent(packet)

    def show(self, result: FrameResult, format: Open) -> None:
        """A result came. Raises ValueError or ``CannotWrite`` where the file cannot be written."""
        if result.video is not None:
            if self._composed is None:
                # Its packets are needed no more.
                self._annotated, self._composed = None, VideoWriter(self._path, sound=self.sound)
            self._composed.write(result)
        elif self._annotated is not None:
            self._annotated.show(result, format)

    def close(self) -> None:
        """Finish the file."""
        if self._composed is not None:
            self._composed.close()
        elif self._annotated is not None:
            self._annotated.close()
