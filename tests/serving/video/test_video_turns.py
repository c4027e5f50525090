"""Threads shared by streams: who gets how much, and that nothing is done twice or never."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque

from patience import wait_until

from onestream.serving.video.thread_pools import BatchingPool, RoundRobinPool


class Stream:
    """Pieces of work that wait."""

    def __init__(self, name: str, pieces: int) -> None:
        self.name = name
        self.pieces = deque(range(pieces))

    def take(self, most: int) -> list[int]:
        return [self.pieces.popleft() for _ in range(min(most, len(self.pieces)))]


class Gate:
    """Work that waits until it is let go on; ``taken`` has the streams of the pieces that were taken together."""

    def __init__(self) -> None:
        self.taken: list[list[str]] = []
        self._open = threading.Event()

    def work(self, pieces: list[tuple[Stream, int]]) -> None:
        self.taken.append([stream.name for stream, _ in pieces])
        self._open.wait(10)

    def finish(self, threads: BatchingPool[Stream, int], *, pieces: int) -> None:
        self._open.set()
        wait_until(lambda: sum(map(len, self.taken)) == pieces)
        threads.close()


def test_free_threads_take_one_piece_each_and_busy_ones_leave_more_together() -> None:
    gate = Gate()
    threads = BatchingPool("test", 2, Stream.take, gate.work, most=4)
    streams = [Stream(name, 1) for name in "abcdefg"]
    for number, stream in enumerate(streams[:2], 1):
        threads.wake(stream)
        wait_until(lambda: len(gate.taken) == number)  # noqa: B023 (called at once)
    assert gate.taken == [["a"], ["b"]]
    for stream in streams[2:]:
        threads.wake(stream)
    time.sleep(0.05)
    assert len(gate.taken) == 2, "both threads are busy"
    gate.finish(threads, pieces=7)
    # Five waited for the first thread that became free; four is the most, unless the other was free as soon.
    assert max(map(len, gate.taken[2:])) >= 2
    assert max(map(len, gate.taken)) <= 4
    assert sorted(name for names in gate.taken for name in names) == list("abcdefg")


def test_every_piece_is_done_once_whatever_the_threads_do() -> None:
    done: Counter[tuple[str, int]] = Counter()
    noting = threading.Lock()
    surprises: list[Exception] = []

    def work(pieces: list[tuple[Stream, int]]) -> None:
        with noting:
            done.update((stream.name, piece) for stream, piece in pieces)
        if pieces[0][1] % 17 == 5:
            raise ArithmeticError("it happens")

    threads = BatchingPool("test", 5, Stream.take, work, most=3, surprised=surprises.append)
    streams = [Stream(str(number), 200) for number in range(6)]
    for stream in streams:
        threads.wake(stream)
    wait_until(lambda: sum(done.values()) == 1200)
    assert set(done.values()) == {1}
    assert surprises
    threads.close()


def test_a_batch_has_pieces_of_every_stream_that_waits() -> None:
    gate = Gate()
    threads = BatchingPool("test", 1, Stream.take, gate.work, most=4)
    for name, pieces in (("first", 1), ("a", 9), ("b", 9), ("c", 9), ("one", 1)):
        threads.wake(Stream(name, pieces))
        wait_until(lambda: gate.taken)
    gate.finish(threads, pieces=29)
    assert gate.taken[1] == ["a", "b", "c", "one"]
    assert max(map(len, gate.taken)) == 4


def test_one_stream_alone_fills_a_batch() -> None:
    gate = Gate()
    threads = BatchingPool("test", 1, Stream.take, gate.work, most=4)
    threads.wake(Stream("alone", 10))
    gate.finish(threads, pieces=10)
    assert list(map(len, gate.taken)) == [4, 4, 2]


def test_pieces_of_one_stream_follow_each_other_and_streams_run_side_by_side() -> None:
    busy: Counter[str] = Counter()
    noting, together = threading.Lock(), []
    finished: list[tuple[str, int]] = []

    class Jobs(Stream):
        def job(self) -> object:
            if not self.pieces:
                return None
            piece = self.pieces.popleft()

            def run() -> None:
                with noting:
                    busy[self.name] += 1
                    assert busy[self.name] == 1
                    together.append(sum(busy.values()))
                time.sleep(0.002)
                with noting:
                    busy[self.name] -= 1
                    finished.append((self.name, piece))

            return run

    surprises: list[Exception] = []
    threads: RoundRobinPool[Jobs] = RoundRobinPool("test", 3, Jobs.job, surprised=surprises.append)  # type: ignore[arg-type]
    streams = [Jobs(name, 40) for name in "abcd"]
    for stream in streams:
        threads.wake(stream)
    wait_until(lambda: len(finished) == 160 or surprises)
    assert not surprises
    for name in "abcd":
        assert [piece for stream, piece in finished if stream == name] == list(range(40))
    assert max(together) > 1
    threads.close()
