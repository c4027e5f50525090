"""``python -m benchmarks.reading``: how well ``read`` reads, beside rapidocr with the same networks and thresholds.

Nothing is timed. 200 rendered lines tell how many characters are wrong, 40 pictures with turned text how many lines
are read as rapidocr reads them; README.md is the method.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.competitors import READ
from benchmarks.photos import PhotosMissing
from benchmarks.reading.pictures import (
    LINES,
    SEED,
    TURNED,
    RenderedLine,
    TextPicture,
    rendered_lines,
    turned_pictures,
)
from benchmarks.reading.readers import SETTINGS, Reader, on_a_pixel_less, rapid_ocr, served
from benchmarks.report.others import reading
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import PACKAGES, READING, Compared, Difference, LineRead, ReadingResults
from onestream.pipelines.networks.errors import WeightsError
from onestream.postprocess.same_lines import Line, same_lines
from onestream.serving.building.build import build
from onestream.serving.server.errors import ServerError
from onestream.serving.server.server import Server

RAPID, ONE_BY_ONE = "rapidocr", "rapidocr, line by line"
"""As it comes, with up to six lines in a batch; and with one, whose neighbours cannot change it."""
A_PIXEL_LESS = ", a pixel less"
"""Ends the name of a reader that gets the pictures without their first row and column."""
CACHE = ROOT / ".cache" / "benchmarks" / "results"
_EVERY = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write reading.json; returns the exit status."""
    options = _options(arguments)
    about = begin((*PACKAGES, *READ.packages))
    forms = (READ.name, READ.fused)
    pairs = [(one, other) for one in (*forms, ONE_BY_ONE) for other in (RAPID, ONE_BY_ONE) if one != other]
    # How far a reader differs from itself bounds how near another can come to it.
    pairs += [(one + A_PIXEL_LESS, one) for one in (ONE_BY_ONE, READ.fused)]
    try:
        lines, pictures = rendered_lines(options.lines), turned_pictures(options.pictures)
        readers = {RAPID: rapid_ocr(), ONE_BY_ONE: rapid_ocr(lines_in_a_batch=1)}
        with tempfile.TemporaryDirectory(prefix="onestream-reading-") as folder:
            build(READ.pipeline_file, folder=Path(folder), progress=print)
            with Server(Path(folder), http_port=0, grpc_port=0, metrics_port=0, device="cpu") as server:
                readers |= {model: served(model, grpc_address=server.grpc_address) for model in forms}
                read = lines_read(readers, lines)
                readers |= {name + A_PIXEL_LESS: on_a_pixel_less(readers[name]) for name in (ONE_BY_ONE, READ.fused)}
                found = compared(readers, pictures, pairs)
        results = ReadingResults(
            **about.model_dump(),
            seed=SEED,
            settings=dict(SETTINGS),
            lines=read,
            compared=found,
        )
    except (PhotosMissing, WeightsError, ServerError) as error:
        print(f"benchmarks.reading: {error}", file=sys.stderr)
        return 1
    # A partial run does not replace published results.
    complete = (options.lines, options.pictures) == (LINES, TURNED)
    path = path_in(options.out or (None if complete else CACHE), about.machine.slug, READING)
    write(path, results)
    print(reading(results))
    print(f"written to {path}")
    return 0


def lines_read(
    readers: Mapping[str, Reader], lines: Sequence[RenderedLine], *, progress: Callable[[str], None] = print
) -> list[LineRead]:
    """What each reader says of each rendered line: all that it finds on its picture, in its order, with a space
    between.
    """
    found = []
    for index, line in enumerate(lines):
        if index % _EVERY == 0:
            progress(f"rendered lines: {index} of {len(lines)}")
        read = {name: " ".join(one.text for one in reader(line.picture.content)) for name, reader in readers.items()}
        found.append(LineRead(text=line.text, font=line.font, height_px=line.height_px, read=read))
    return found


def compared(
    readers: Mapping[str, Reader],
    pictures: Sequence[TextPicture],
    pairs: Sequence[tuple[str, str]],
    *,
    progress: Callable[[str], None] = print,
) -> list[Compared]:
    """How many lines of the second reader of each pair the first one reads equally, over all pictures."""
    read: dict[str, list[list[Line]]] = {name: [] for name in readers}
    for index, picture in enumerate(pictures):
        if index % _EVERY == 0:
            progress(f"turned pictures: {index} of {len(pictures)}")
        for name, reader in readers.items():
            read[name].append(reader(picture.content))
    return [_compared(one, read[one], other, read[other], pictures) for one, other in pairs]


def _compared(
    one: str,
    ours: Sequence[Sequence[Line]],
    other: str,
    theirs: Sequence[Sequence[Line]],
    pictures: Sequence[TextPicture],
) -> Compared:
    differences, lines, equal, rendered, rendered_equal, only_one, only_other = [], 0, 0, 0, 0, 0, 0
    for picture, our_lines, their_lines in zip(pictures, ours, theirs, strict=True):
        pairs = same_lines(our_lines, their_lines)
        alike = [(i, j) for i, j in pairs if our_lines[i].text == their_lines[j].text]
        lines += len(their_lines)
        equal += len(alike)
        if picture.written:
            rendered += len(their_lines)
            rendered_equal += len(alike)
        only_one += len(our_lines) - len(pairs)
        only_other += len(their_lines) - len(pairs)
        differences += [
            Difference(picture=picture.name, one=our_lines[i].text, other=their_lines[j].text)
            for i, j in pairs
            if (i, j) not in alike
        ]
    return Compared(
        one=one,
        other=other,
        pictures=len(pictures),
        lines=lines,
        equal=equal,
        rendered=rendered,
        rendered_equal=rendered_equal,
        only_one=only_one,
        only_other=only_other,
        differences=differences,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES, metavar="N", help=f"fewer rendered lines than {LINES}")
    parser.add_argument("--pictures", type=int, default=TURNED, metavar="N", help=f"fewer pictures than {TURNED}")
    add_out(parser, else_where="benchmarks/results, or .cache/benchmarks/results where there are fewer")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
