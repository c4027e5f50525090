"""Shows a run's progress on standard error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """Images a second, of late."""

    def render(self, task: Task) -> Text:
        """The rate as text."""
        return Text(f"{task.speed or 0:.0f} images/s")


@contextmanager
def progress_bar(*, done: int, failed: int, count: Callable[[], int] | None) -> Iterator[Callable[[int, int], None]]:
    """A bar that begins at ``done`` images; call what it yields with both numbers, as often as they change.

    ``count`` says, in a thread of its own, how many there are altogether; without it no end is foreseen.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
    )
    # Rich would otherwise take over stdout, which belongs to the results.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("", total=None, completed=done, failed=failed)
        if count is not None:
            threading.Thread(target=lambda: progress.update(task, total=count()), daemon=True).start()
        yield lambda done, failed: progress.update(task, completed=done, failed=failed)
