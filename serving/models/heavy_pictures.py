"""Decodes heavy pictures out of the way of the others: one after the other, in a thread of low priority."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from onestream.serving.models.deadline import HEAVY_DEADLINE_S, RequestCaller, batch_deadline
from onestream.wire.refusals import WAITED_TOO_LONG

WAITING = 16
"""Heavy pictures of a process that wait; as many seconds or less by default, which is longer than most callers wait."""
NICER = 5
"""Added to the thread's niceness: under load it gets a third of the time that the others get."""

Work = Callable[[Sequence[RequestCaller]], list[Any]]
"""Takes callers, returns a response to the request of each."""


class HeavyLine:
    """Answers requests one by one in a thread of its own, as they come.

    The line is bounded, by requests and by bytes, so that the memory of one process holds one decoded heavy picture and
    little else of heavy ones.

    Args:
        open_work: makes the function that answers; called in the thread, before the constructor returns.
        failed: makes the response to a request whose work raised.
        max_waiting_bytes: of the encoded pictures that wait.
    """

    def __init__(
        self, open_work: Callable[[], Work], *, failed: Callable[[Exception], Any], max_waiting_bytes: int
    ) -> None:
        self._open_work, self._failed, self._max_waiting_bytes = open_work, failed, max_waiting_bytes
        self._line: queue.Queue[_Taken | None] = queue.Queue()
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0
        self._opened: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="heavy-pictures", daemon=True)
        self._thread.start()
        failure = self._opened.get()
        if failure is not None:
            raise failure

    def take(self, request: Any, size: int) -> bool:
        """Answer a request of ``size`` bytes later, by its sender. False where the line is full."""
        with self._lock:
            bytes_then = self._waiting_bytes + size
            if self._waiting and (self._waiting == WAITING or bytes_then > self._max_waiting_bytes):
                return False
            self._waiting, self._waiting_bytes = self._waiting + 1, bytes_then
        self._line.put(_Taken(RequestCaller(request, is_held=False), request.get_response_sender(), size))
        return True

    def close(self) -> None:
        """Answer what was taken and end the thread."""
        self._line.put(None)
        self._thread.join()

    def _run(self) -> None:
        # Threads that the decoder starts inherit it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + NICER)
        try:
            work = self._open_work()
        except BaseException as failure:  # handed to the thread that constructs
            self._opened.put(failure)
            return
        self._opened.put(None)
        while (taken := self._line.get()) is not None:
            with self._lock:
                self._waiting, self._waiting_bytes = self._waiting - 1, self._waiting_bytes - taken.size
            try:
                with batch_deadline(HEAVY_DEADLINE_S):
                    response = unavailable(WAITED_TOO_LONG) if taken.caller.is_late() else work([taken.caller])[0]
            except Exception as error:  # one that fails must not leave its caller, or the next one, without an answer
                response = self._failed(error)
            try:
                taken.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except Exception as error:  # an answer that does not arrive must not end the line
                pb_utils.Logger.log_error(f"an answer could not be sent: {error}")
            # What waits for the next one must not keep this one's memory.
            del taken, response


@dataclass(frozen=True, slots=True)
class _Taken:
    """A request in the line."""

    caller: RequestCaller
    sender: Any
    size: int


def unavailable(reason: str) -> Any:
    """The response to a request that is refused for no fault of its own; clients may send it again."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(reason, pb_utils.TritonError.UNAVAILABLE))
