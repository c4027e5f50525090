"""Pages of metrics as Triton writes them, and a server that shows one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from onestream.cli.top.reading import parse
from onestream.cli.top.report import Report, report

GAUGES = ("nv_inference_pending_request_count", "nv_cpu", "nv_gpu", "onestream_video_streams")


def page(series: Mapping[str, float]) -> str:
    """The text of these series, each ``name{label="value"}``."""
    families: dict[str, list[str]] = {}
    for named, value in series.items():
        families.setdefault(named.partition("{")[0], []).append(f"{named} {value}")
    lines = []
    for name, samples in families.items():
        kind = "gauge" if name.startswith(GAUGES) else "counter"
        lines += [f"# HELP {name} What it is", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def of_model(name: str, **values: float) -> dict[str, float]:
    """What Triton tells of one model. A value that is not given is 0."""
    metrics = {
        "requests": "request_success",
        "inferences": "count",
        "executions": "exec_count",
        "duration_us": "request_duration_us",
        "queue_us": "queue_duration_us",
        "pending": "pending_request_count",
    }
    assert values.keys() <= metrics.keys()
    return {
        f'nv_inference_{metric}{{model="{name}",version="1"}}': values.get(key, 0) for key, metric in metrics.items()
    }


def between(before: Mapping[str, float], after: Mapping[str, float], seconds: float = 1.0) -> Report:
    """The report of two pages, the second of them so many seconds later."""
    return report(parse(page(before), at_s=10.0), parse(page(after), at_s=10.0 + seconds))


class Shown:
    """A server of metrics: ``text`` is what it answers, ``status`` how, ``asked`` how often.

    Who asks more often than ``at_once`` waits for ``go_on``.
    """

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.asked = 0
        self.at_once = sys.maxsize
        self.go_on = threading.Event()
        shown = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown.asked += 1
                held = shown.asked > shown.at_once
                self.send_response(shown.status)
                while held and not shown.go_on.wait(1.0):
                    # A client would give up on silence.
                    self.send_header("X-Wait", "more")
                    self.flush_headers()
                body = shown.text.encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Begin to answer, where it answered before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Nothing listens any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def showing(text: str) -> Iterator[Shown]:
    """A server that shows this page."""
    shown = Shown()
    shown.text = text
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()
