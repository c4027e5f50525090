"""The memory of the process that decodes: which stream is ended, in which order, and when the process is replaced."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from onestream.serving.video.memory import PATIENCE_S, MemoryWatch, give_back, resident_bytes


@dataclass(eq=False)
class Stream:
    """One that takes memory."""


@dataclass
class Process:
    """Its memory in bytes, of which ``free`` can be given back, and its clock."""

    used: int = 100
    free: int = 0
    now_s: float = 0.0
    watch: MemoryWatch[Stream] = field(init=False)

    def __post_init__(self) -> None:
        self.watch = MemoryWatch(
            1000, resident=lambda: self.used + self.free, give_back=self.give_back, clock=lambda: self.now_s
        )

    def give_back(self) -> None:
        self.free = 0

    def decode(self, stream: Stream, grows: int) -> None:
        with self.watch.charging(stream):
            self.used += grows


def test_the_stream_that_took_the_most_is_ended_and_nobody_else_while_it_is_let_go() -> None:
    process = Process(free=5000)
    modest, greedy = Stream(), Stream()
    process.decode(greedy, 600)
    process.decode(modest, 200)
    assert process.watch.look([modest, greedy]) is None
    assert process.free == 0
    process.decode(greedy, 600)
    assert process.watch.look([modest, greedy]) is greedy
    assert process.watch.look([modest]) is None, "its decoder still works"
    process.used -= 1200
    del greedy
    assert process.watch.look([modest]) is None


def test_one_stream_after_the_other_where_one_is_not_enough() -> None:
    process = Process()
    streams = [Stream() for _ in range(3)]
    for stream, grows in zip(streams, (500, 700, 600), strict=True):
        process.decode(stream, grows)
    del stream
    ended = process.watch.look(streams)
    assert ended is streams.pop(1)
    process.used -= 700
    del ended
    assert process.watch.look(streams) is streams[1]


def test_the_process_is_replaced_where_its_memory_stays() -> None:
    process = Process(used=2000)
    assert process.watch.look([]) is None
    process.now_s = PATIENCE_S
    assert process.watch.look([]) is None
    process.now_s = PATIENCE_S + 0.1
    assert process.watch.look([]) == "replace"
    again = Process(used=2000)
    again.watch.look([])
    again.used, again.now_s = 100, PATIENCE_S + 1
    assert again.watch.look([]) is None
    again.used = 2000
    assert again.watch.look([]) is None, "a time above the limit that is over does not count"


def test_what_is_freed_goes_back_to_the_system() -> None:
    """In pieces as FFmpeg's, beyond which the heap is still in use: by itself glibc keeps all of it."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(4000) for _ in range(50_000)]
    for block in blocks:
        ctypes.memset(block, 1, 4000)
    full = resident_bytes()
    for block in blocks[:-1]:
        libc.free(block)
    give_back()
    # Nine tenths: the interpreter itself allocates meanwhile.
    assert full - resident_bytes() > 0.9 * 4000 * 50_000
    libc.free(blocks[-1])
