"""What the suite costs: CPU seconds, processes, builds and server starts, printed at its end.

CPU seconds are those of the tests and of the processes that they started, as far as these have ended. A test above
``FAST_CPU_S`` belongs among the slow ones; the report names those that are not.
"""

from __future__ import annotations

import functools
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import pytest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

FAST_CPU_S = 1.0
"""What a test outside ``slow`` may take, without the fixtures that it shares with others."""
SERVER_CPU_S = "CPU s of the shared server"
_MOST_NAMED = 40
_counts: Counter[str] = Counter()
_of_workers: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Count something for the report."""
    _counts[what] += number


def counted(what: str, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, whose calls are counted where they succeed."""

    @functools.wraps(function)
    def counting(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        result = function(*args, **kwargs)
        count(what)
        return result

    return counting


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        _counts["processes"] += 1
        # Who only looks at a tritonserver gives it no models.
        if "--model-repository=" in str(arguments[1]):
            _counts["server starts"] += 1


def cpu_s() -> float:
    """CPU seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class SuiteCost:
    """The plug-in, registered by ``conftest.py``."""

    def __init__(self) -> None:
        sys.addaudithook(_watch)
        self._slowest: list[tuple[float, str]] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = cpu_s()
        yield
        item.user_properties.append(("cpu_s", round(cpu_s() - before, 3)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken = dict(report.user_properties).get("cpu_s")
        if report.when == "call" and taken is not None and "slow" not in report.keywords:
            self._slowest.append((float(str(taken)), report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cost"] = {**_counts, "CPU s": cpu_s()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        _of_workers.update(getattr(node, "workeroutput", {}).get("cost", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = _of_workers or _counts + Counter({"CPU s": int(cpu_s())})
        terminalreporter.write_line(
            f"cost: {total['CPU s'] + _counts[SERVER_CPU_S]:.0f} CPU s, of them {_counts[SERVER_CPU_S]} of the shared "
            f"server, {total['builds']} builds, {total['server starts']} server starts, "
            f"{total['processes']} processes"
        )
        heavy = sorted((row for row in self._slowest if row[0] > FAST_CPU_S), reverse=True)
        if heavy:
            terminalreporter.write_line(f"{len(heavy)} tests that are not slow took more than {FAST_CPU_S:g} CPU s:")
        for taken, name in heavy[:_MOST_NAMED]:
            terminalreporter.write_line(f"  {taken:6.1f}  {name}")
