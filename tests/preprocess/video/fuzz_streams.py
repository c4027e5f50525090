"""Decodes damaged copies of a stream, in a process of its own; prints what came of it as JSON.

``python fuzz_streams.py COUNT`` reads a pickled (StreamFormat, [Packet]) from standard input.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
from dataclasses import replace
from fractions import Fraction
from random import Random

from onestream.preprocess import BadSample, Limits
from onestream.preprocess.definition import Definition
from onestream.preprocess.moves import CenterCrop, Resize
from onestream.preprocess.operations import Decode
from onestream.preprocess.video.streams.sampling import Sampling
from onestream.preprocess.video.streams.stream import StreamDecoder, StreamFormat
from onestream.wire.video import Packet

DEFINITION = Definition(operations=(Decode(), Resize(mode="shorter", size=72), CenterCrop(size=(64, 56))))
SAMPLINGS = (Sampling(), Sampling(stride=3), Sampling(fps=7), Sampling(fps=Fraction(100, 3)), Sampling(num_frames=9))
LIMITS = Limits(max_pixels=400 * 400)
SEED = 11


def damaged(packets: list[Packet], random: Random) -> list[Packet]:
    """Bits flipped, cut, dropped, duplicated, reordered, and times changed."""
    changed = list(packets)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(changed))
        packet, kind = changed[at], random.randrange(8)
        data = bytearray(packet.data)
        if kind == 0 and data:
            for _ in range(random.choice((1, 1, 8, 100))):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            changed[at] = replace(packet, data=bytes(data))
        elif kind == 1:
            changed[at] = replace(packet, data=bytes(data[: random.randrange(len(data) + 1)]))
        elif kind == 2:
            del changed[at : at + random.randint(1, 3)]
        elif kind == 3:
            changed[at:at] = [packet] * random.randint(1, 3)
        elif kind == 4:
            other = random.randrange(len(changed))
            changed[at], changed[other] = changed[other], packet
        elif kind == 5:
            times = (None, 0, packet.pts, -(10**15), 1 << 70, random.randrange(10**6))
            changed[at] = replace(packet, pts=random.choice(times), dts=random.choice(times))
        elif kind == 6:
            changed[at] = replace(packet, is_key=not packet.is_key, duration=random.choice((0, 1, 1 << 70)))
        else:
            data[:0] = random.randbytes(random.randint(1, 40))
            changed[at] = replace(packet, data=bytes(data))
        if not changed:
            return [packet]
    return changed


def resident_mib() -> float:
    """Highest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(format: StreamFormat, packets: list[Packet], sampling: Sampling) -> tuple[int, int]:
    """Frames and concealed ones of one stream."""
    decoder = StreamDecoder(DEFINITION, format, sampling=sampling, limits=LIMITS)
    frames = 0
    try:
        for packet in [*packets, None]:
            for frame in decoder.feed(packet):
                assert frame.pixels.shape == (64, 56, 3)
                frames += 1
    except BadSample:
        pass
    return frames, decoder.concealed


def main() -> None:
    """Warm up, then measure."""
    format, packets = pickle.load(sys.stdin.buffer)
    random = Random(SEED)
    for _ in range(5):
        run(format, packets, Sampling())
    before, frames, concealed = resident_mib(), 0, 0
    for number in range(int(sys.argv[1])):
        changed = format
        if number % 10 == 9 and format.extradata:
            extradata = bytearray(format.extradata)
            extradata[random.randrange(len(extradata))] ^= 1 << random.randrange(8)
            changed = replace(format, extradata=bytes(extradata))
        try:
            one = run(changed, damaged(packets, random), random.choice(SAMPLINGS))
        except BadSample:
            continue
        frames, concealed = frames + one[0], concealed + one[1]
    print(json.dumps({"grown_mib": resident_mib() - before, "frames": frames, "concealed": concealed}))


if __name__ == "__main__":
    main()
