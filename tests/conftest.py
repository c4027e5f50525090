"""Shared by all tests: which can run here, which run in one process, and one real server for those that ask it."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_engines
import pytest
import rtsp_server
import shared_server
import suite_cost
from hypothesis import settings
from shared_server import SharedServer

from onestream.preprocess.cuda.device import driver_visible

# Few examples, the same on every run; at night many, which differ. No time limit for one of them.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25, print_blob=True)
settings.register_profile("night", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

pytest_plugins = ["buckets"]  # once for all folders, so that a process has one server of S3

ROOT = Path(__file__).parent.parent
NO_SKIPS = "ONESTREAM_NO_SKIPS"
SERVED = pytest.StashKey[list[shared_server.Served]]()
BY_MODULE = pytest.StashKey[dict[Path, set[str]]]()
TOGETHER = (
    "tests/cli/demo_page/",
    "tests/cli/bulk/on_ray/",
    "tests/client/test_toys",
    "tests/hostile/test_hostile_",
    "tests/preprocess/interop/",
    "tests/real_triton/own_server/",
)
"""Path prefixes. Files with the same prefix run in one worker, since they share what is expensive or exclusive."""


@functools.cache
def _why_not(marker: str) -> str | None:
    if marker == "needs_gpu" and not driver_visible():
        return "no NVIDIA driver on this machine"
    if marker == "needs_triton" and importlib.util.find_spec("pytriton") is None and not shutil.which("tritonserver"):
        return "no Triton on this machine: pip install -e '.[cpu]'"
    if marker == "needs_rtsp":
        return rtsp_server.why_not()
    if marker == "needs_nginx" and not shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return "no nginx on this machine: apt-get install nginx-light"
    if marker == "needs_prometheus" and not (shutil.which("prometheus") and shutil.which("promtool")):
        return "no Prometheus on this machine: apt-get install prometheus"
    if marker == "needs_chromium" and not (shutil.which("chromium") and importlib.util.find_spec("playwright")):
        return "no Chromium on this machine: apt-get install chromium; pip install playwright"
    return None


def _no_skips() -> bool:
    return os.environ.get(NO_SKIPS) == "1"


MARKERS = ("needs_gpu", "needs_triton", "needs_rtsp", "needs_nginx", "needs_prometheus", "needs_chromium")


def pytest_configure(config: pytest.Config) -> None:
    """Count what the suite costs, and let Ctrl-C reach programs under test: a suite in the background ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(suite_cost.SuiteCost(), "suite-cost")
    if not hasattr(config, "workerinput"):
        os.environ[shared_server.SUITE_PID] = str(os.getpid())


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect thousands of tests without looking for garbage among them again and again."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, give the tests of a file to one worker, in whose process they share servers, builds and imports."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((prefix for prefix in TOGETHER if file.startswith(prefix)), file)

    config.option.loadscopereorder = False  # the files with most tests are not those that take longest
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; a hook below turns that into a failure where it is asked for.

    What no installation would help is not chosen at all: without a GPU the tests that need one, with one the cases of
    an engine that it cannot run.
    """
    if driver_visible():
        impossible = [
            item
            for item in items
            if (marker := item.get_closest_marker("needs_engine")) and gpu_engines.why_not(marker.args[0])
        ]
    else:
        impossible = [item for item in items if item.get_closest_marker("needs_gpu") and not _no_skips()]
    if impossible:
        deselected = set(impossible)
        config.hook.pytest_deselected(items=impossible)
        items[:] = [item for item in items if item not in deselected]
    for item in items:
        for marker in MARKERS:
            reason = _why_not(marker) if item.get_closest_marker(marker) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:  # noqa: ARG001
    """With ONESTREAM_NO_SKIPS=1 a skipped test is a failed one."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and _no_skips() and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and {NO_SKIPS}=1 forbids that: {report.longrepr}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which engines ran on the GPU."""
    for line in gpu_engines.summary():
        terminalreporter.write_line(line)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note what the shared server serves, and make builds fast (``builds.hasten``) and counted."""
    session.config.stash[SERVED] = shared_server.pipelines_of(session.items)
    session.config.stash[BY_MODULE] = shared_server.names_by_module(session.items)
    if "onestream.serving.building.build" in sys.modules:
        import builds

        builds.hasten()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the shared server. Free tensors of other processes while PyTorch still can: at exit it only complains."""
    if not hasattr(session.config, "workerinput"):
        shared_server.stop(suite_folder(session.config))
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    if reductions is not None:
        reductions.shared_cache.clear()


@pytest.fixture(scope="session")
def repository(request: pytest.FixtureRequest) -> Path:
    """The committed model repository, with its networks built: by the first worker that asks for it."""
    import builds

    folder, built = ROOT / "model_repository", suite_folder(request.config) / "model_repository.built"
    with builds.locked(builds.CACHE / "model_repository.lock"):
        if not built.exists():
            made = builds.build(ROOT / "pipelines" / "classify.yaml", folder=suite_folder(request.config) / "classify")
            shutil.copytree(made.folder, folder, dirs_exist_ok=True)
            built.touch()
    return folder


def suite_folder(config: pytest.Config) -> Path:
    """The temporary folder of the whole suite, which the workers share."""
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return folder.parent if hasattr(config, "workerinput") else folder


@pytest.fixture(scope="session")
def shared_triton(request: pytest.FixtureRequest) -> SharedServer:
    """One real server with the pipelines that the selected tests are marked with, shared by all that only ask it."""
    return shared_server.connect(suite_folder(request.config), request.config.stash[SERVED])


@pytest.fixture(scope="session")
def server(shared_triton: SharedServer) -> SharedServer:
    """The shared server, where a folder has no other."""
    return shared_triton


@pytest.fixture(scope="module", autouse=True)
def _pipelines_of_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the pipelines that the module names loaded on the shared server."""
    names = request.config.stash[BY_MODULE].get(request.path, set())
    if not names:
        yield
        return
    request.getfixturevalue("shared_triton")
    with shared_server.loaded(suite_folder(request.config), names):
        yield


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said once, as if nothing had been said before."""
    from onestream.preprocess import errors

    lines: list[str] = []
    log = errors.logging.getLogger("onestream")
    monkeypatch.setattr(errors, "_said", set())
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", True)
    errors.send_notices_to(lines.append)
    return lines


@pytest.fixture
def real_build_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds prepare each network in a process of its own and measure each certificate, as for a user."""
    import builds

    builds.restore(monkeypatch)
