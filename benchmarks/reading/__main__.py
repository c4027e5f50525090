"""``python -m benchmarks.reading``: how well ``read`` reads, beside rapidocr with the same networks and thresholds.

Nothing is timed. 200 rendered lines tell how many characters are wrong, 40 pictures with turned text how many lines
are read as rapidocr reads them; README.md is the method.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.competitors import READ
from benchmarks.photos import PhotosMissing
from benchmarks.reading import measure
from benchmarks.reading.pictures import LINES, SEED, TURNED, rendered_lines, turned_pictures
from benchmarks.reading.readers import SETTINGS, on_a_pixel_less, rapid_ocr, served
from benchmarks.report.others import reading
from benchmarks.result_files import ROOT, add_out, begin, path_in, write
from benchmarks.results import PACKAGES, READING, ReadingResults
from onestream.serving.building.build import build
from onestream.serving.networks.package_files import WeightsError
from onestream.serving.server.errors import ServerError
from onestream.serving.server.server import Server

RAPID, ONE_BY_ONE = "rapidocr", "rapidocr, line by line"
"""As it comes, with up to six lines in a batch; and with one, whose neighbours cannot change it."""
A_PIXEL_LESS = ", a pixel less"
"""Ends the name of a reader that gets the pictures without their first row and column."""
CACHE = ROOT / ".cache" / "benchmarks" / "results"


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
                read = measure.lines_read(readers, lines)
                readers |= {name + A_PIXEL_LESS: on_a_pixel_less(readers[name]) for name in (ONE_BY_ONE, READ.fused)}
                compared = measure.compared(readers, pictures, pairs)
        results = ReadingResults(
            **about.model_dump(),
            seed=SEED,
            settings=dict(SETTINGS),
            lines=read,
            compared=compared,
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


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES, metavar="N", help=f"fewer rendered lines than {LINES}")
    parser.add_argument("--pictures", type=int, default=TURNED, metavar="N", help=f"fewer pictures than {TURNED}")
    add_out(parser, else_where="benchmarks/results, or .cache/benchmarks/results where there are fewer")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
