"""``python -m benchmarks.hostile``: what hostile callers, kills and long nights do to a server; writes hostile.json."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.hostile import broken_servers, headers, kills, pictures, requests, soak, streams
from benchmarks.report.hostile import table
from benchmarks.result_files import ROOT, Machine, Raw, add_out, commit, path_in, this_machine, write
from benchmarks.results import HOSTILE
from onestream.measure.panning import write_panning
from onestream.serving.building.build import build
from onestream.serving.proxy.nginx import RunningProxy
from onestream.serving.proxy.settings import Proxy, public_models
from onestream.serving.server.server import Server
from onestream.serving.server.triton.ports import free_port

_HOST = "127.0.0.1"
_SEED = 1
_CLIP_FRAMES, _CLIP_SIZE_HW = 20, (240, 320)

Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write hostile.json. Parts that are left out keep what the file has of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--part", action="append", choices=_PARTS, help="only this one; may be repeated")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual amount of each part, above 0")
    add_out(parser)
    options = parser.parse_args(arguments)
    machine = this_machine()
    path = path_in(options.out, machine.slug, HOSTILE)
    results: dict[str, Any] = {}
    for part in options.part or _PARTS:
        _say(f"{part}:")
        began_s = time.monotonic()
        about = {"commit": commit(), "started_utc": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        found = _PARTS[part](options.share)
        about["took_s"] = str(round(time.monotonic() - began_s))
        results = keep(path, part, about | found, machine=machine)
    print(table(results))
    print(f"written to {path}")


def keep(path: Path, part: str, found: Raw, *, machine: Machine) -> Raw:
    """Write what a part found into a file, and return all that the file then has; other parts stay as they are."""
    results: Raw = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    results["machine"] = machine.model_dump()
    results["parts"][part] = found
    write(path, results)
    return results


def _streams(share: float) -> dict[str, Any]:
    """Hostile streams, direct and through the proxy, each with and without the metadata that kills Triton 2.51."""
    with _served() as server, _clip() as clip, _proxy(server) as proxied:
        ways = {"direct": server.grpc_url, "proxy": f"grpc://{proxied.grpc_listen}"}
        pid = server.pid
        found: dict[str, Any] = {
            way: streams.measure(url=url, clip=clip, streams=round(1000 * share), seed=_SEED, progress=_say)
            for way, url in ways.items()
        }
        return {"ways": found, "same_server": server.pid == pid, "restarts": dict(server.restarts)}


def _headers(share: float) -> dict[str, Any]:
    return dict(headers.measure(mutations=round(1_000_000 * share), seed=_SEED, progress=_say))


def _requests(share: float) -> dict[str, Any]:
    """Hostile requests at a proxy."""
    with _served() as server, _proxy(server) as proxied:
        return dict(
            requests.measure(
                http=proxied.listen,
                grpc_address=proxied.grpc_listen,
                rounds=max(1, round(3 * share)),
                seed=_SEED,
                progress=_say,
            )
        )


def _pictures(share: float) -> dict[str, Any]:
    """Bad pictures among good ones, to both forms of a classifier and of a detector."""
    with _served("classify", "detect") as server:
        found = pictures.measure(
            urls=(server.grpc_url, server.http_url),
            forms=("classify", "classify_fused", "detect", "detect_fused"),
            requests=round(2400 * share),
            seed=_SEED,
            progress=_say,
        )
        return {"callers": pictures.CALLERS, "forms": found, "restarts": dict(server.restarts)}


def _kills(share: float) -> dict[str, Any]:
    with _repository() as repository:
        rounds = max(1, round(50 * share))
        return dict(kills.measure(rounds=rounds, seed=_SEED, progress=_say, repository=repository))


def _clients(_share: float) -> dict[str, Any]:
    """Broken servers against the client; of the single runs the file keeps those that failed."""
    found = broken_servers.measure(timeout_s=3.0, seed=_SEED, progress=_say)
    return {name: value for name, value in found.items() if name != "rows"}


def _soak(share: float) -> dict[str, Any]:
    return soak.measure(minutes=30 * share, seed=_SEED, progress=_say)


_PARTS: dict[str, Callable[[float], dict[str, Any]]] = {
    "streams": _streams,
    "headers": _headers,
    "requests": _requests,
    "pictures": _pictures,
    "kills": _kills,
    "clients": _clients,
    "soak": _soak,
}


@contextmanager
def _repository(*pipelines: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="onestream-hostile-") as name:
        folder = Path(name) / "repository"
        for pipeline in pipelines or ("classify",):
            build(ROOT / "pipelines" / f"{pipeline}.yaml", folder=folder, progress=_say)
        yield folder


@contextmanager
def _served(*pipelines: str) -> Iterator[Server]:
    with (
        _repository(*pipelines) as repository,
        Server(repository, http_port=0, grpc_port=0, metrics_port=0, on_event=_say) as server,
    ):
        yield server


@contextmanager
def _proxy(server: Server) -> Iterator[Proxy]:
    """A proxy without TLS and tokens: these are let through or not before anything else is looked at."""
    http_port = free_port(_HOST)
    proxy = Proxy(
        models=public_models(server.repository),
        listen=f"{_HOST}:{http_port}",
        grpc_listen=f"{_HOST}:{free_port(_HOST, but={http_port})}",
        http=server.http_address,
        grpc=server.grpc_address,
        access_log="off",
    )
    with RunningProxy(proxy):
        yield proxy


@contextmanager
def _clip() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="onestream-hostile-") as name:
        path = Path(name) / "clip.mp4"
        with Image.open(ROOT / "examples" / "photos" / "coffee.jpg") as photo:
            write_panning(path, photo.resize((400, 400)), frames=_CLIP_FRAMES, size_hw=_CLIP_SIZE_HW)
        yield path


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
