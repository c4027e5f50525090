"""Our way: packets to the server, results back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from client import Client
from client.video import PacketSource
from onestream.bench.clip import FPS, Clip, due_times
from onestream.bench.playing import Played, Player, Times


@dataclass(frozen=True)
class Ours(Player):
    """One client and one thread a stream; the stream drops rather than waits, as a camera's does."""

    url: str
    pipeline: str
    clip: Path
    stride: int

    def play(self, rate: float, times: Times, played: Played) -> None:
        """See ``Player.play``."""
        clip = Clip.read(self.clip)
        frames = sum(1 for _ in due_times(rate, times.beginning_s, times.end_s))
        counted = [number / (FPS * rate) for number in range(0, frames, self.stride)]
        played.due = sum(times.counts(times.beginning_s + due_s) for due_s in counted)
        packets = clip.played(rate=rate, beginning_s=times.beginning_s, until_s=times.end_s)
        with (
            Client(self.url) as client,
            client.stream(PacketSource(clip.format, packets, live=True), pipeline=self.pipeline) as results,
        ):
            for result in results:
                due_s = times.beginning_s + result.frame_index / (FPS * rate)
                # A frame can be shown when so many packets after its own number came as the codec reorders.
                reordered_s = (clip.format.reorder_depth or 0) / (FPS * rate)
                if times.counts(due_s):
                    played.latencies_ms.append(1000 * (time.monotonic() - due_s - reordered_s))
            played.dropped = results.dropped + results.concealed
