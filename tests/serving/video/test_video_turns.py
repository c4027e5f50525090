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


def test_free_threads_take_one_piece_each_and_busy_ones_leave_more_together() -> None:
    taken: list[list[str]] = []
    gate = threading.Event()
    noting = threading.Lock()

    def work(pieces: list[tuple[Stream, int]]) -> None:
        with noting:
            taken.append([stream.name for stream, _ in pieces])
        gate.wait(10)

    threads = BatchingPool("test", 2, Stream.take, work, most=4)
    streams = [Stream(name, 1) for name in "abcdefg"]
    for number, stream in enumerate(streams[:2], 1):
        threads.wake(stream)
        wait_until(lambda: len(taken) == number)  # noqa: B023 (called at once)
    assert taken == [["a"], ["b"]]
    for stream in streams[2:]:
        threads.wake(stream)
    time.sleep(0.05)
    assert len(taken) == 2, "both threads are busy"
    gate.set()
    wait_until(lambda: sum(map(len, taken)) == 7)
    # Five waited for the first thread that became free; four is the most, unless the other was free as soon.
    assert max(map(len, taken[2:])) >= 2
    assert max(map(len, taken)) <= 4
    assert sorted(name for names in taken for name in names) == list("abcdefg")
    threads.close()


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


def test_a_stream_with_much_work_leaves_the_others_their_turn() -> None:
    order: list[str] = []
    gate = threading.Event()

    def work(pieces: list[tuple[Stream, int]]) -> None:
        gate.wait(10)
        order.extend(stream.name for stream, _ in pieces)

    threads = BatchingPool("test", 1, Stream.take, work, most=2)
    threads.wake(Stream("many", 100))
    time.sleep(0.05)
    for name in ("one", "two"):
        threads.wake(Stream(name, 1))
    gate.set()
    wait_until(lambda: len(order) == 102)
    assert max(order.index("one"), order.index("two")) < 8
    threads.close()


def test_a_batch_has_pieces_of_every_stream_that_waits() -> None:
    taken: list[list[str]] = []
    gate = threading.Event()

    def work(pieces: list[tuple[Stream, int]]) -> None:
        taken.append([stream.name for stream, _ in pieces])
        gate.wait(10)

    threads = BatchingPool("test", 1, Stream.take, work, most=4)
    threads.wake(Stream("first", 1))
    wait_until(lambda: len(taken) == 1)
    for name, pieces in (("a", 9), ("b", 9), ("c", 9), ("one", 1)):
        threads.wake(Stream(name, pieces))
    gate.set()
    wait_until(lambda: sum(map(len, taken)) == 29)
    threads.close()
    assert taken[1] == ["a", "b", "c", "one"]
    assert max(map(len, taken)) == 4


def test_one_stream_alone_fills_a_batch() -> None:
    taken: list[int] = []
    threads = BatchingPool("test", 1, Stream.take, lambda pieces: taken.append(len(pieces)), most=4)
    threads.wake(Stream("alone", 10))
    wait_until(lambda: sum(taken) == 10)
    threads.close()
    assert taken == [4, 4, 2]


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
