"""Our way: packets to the server, results back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from onestream.client import Client
from onestream.client.video import PacketSource
from onestream.measure.capacity.clip import FPS, Clip, due_times
from onestream.measure.capacity.playing import Played, Player, Playing, Times


@dataclass(frozen=True)
class Ours(Player):
    """One client and one thread a stream; the stream drops rather than waits, as a camera's does."""

    url: str
    pipeline: str
    clip: Path
    stride: int

    def open(self, rate: float) -> Playing:
        """See ``Player.open``."""
        clip, client = Clip.read(self.clip), Client(self.url)

        def playing(times: Times, played: Played) -> None:
            frames = sum(1 for _ in due_times(rate, times.beginning_s, times.end_s))
            sampled = [number / (FPS * rate) for number in range(0, frames, self.stride)]
            played.due = sum(times.counts(times.beginning_s + due_s) for due_s in sampled)
            packets = clip.played(rate=rate, beginning_s=times.beginning_s, until_s=times.end_s)
            # A frame can be shown when so many packets after its own number came as the codec reorders.
            reordered_s = (clip.format.reorder_depth or 0) / (FPS * rate)
            source = PacketSource(clip.format, packets, live=True)
            with client, client.stream(source, pipeline=self.pipeline) as results:
                for result in results:
                    due_s = times.beginning_s + result.frame_index / (FPS * rate)
                    if times.counts(due_s):
                        played.latencies_ms.append(1000 * (time.monotonic() - due_s - reordered_s))
                played.dropped = results.dropped + results.concealed

        return playing
