"""The table of ``quantization`` in docs/results.md."""

from __future__ import annotations

from benchmarks.result_files import Raw, short_commit
from onestream.measure.tables import markdown
from onestream.serving.building.quantization.price import Quantization

FILE_NAME = "quantization.json"
_HEAD = (
    *("network", "agreement on pictures that were held out", "largest change", "ms in float32", "ms in int8", "ratio"),
    *("door", "setting", "s of the pipeline's build", "`onestream build`"),
)


def table(results: Raw) -> str:
    """A row for each network: its price, how it was quantized, and whether a build takes it."""
    about = (
        f"Int8, network by network: {results['machine']['cpu']}, one run with one picture in one thread; "
        f"{results['started_utc'][:10]}, commit {short_commit(results['commit'])}, "
        f"onnxruntime {results['versions']['onnxruntime']}. What the columns mean is in "
        "[quantization.md](quantization.md#what-the-certificate-says)."
    )
    return f"{about}\n\n{markdown(_HEAD, map(_row, results['networks']))}"


def _row(one: Raw) -> list[str]:
    price = Quantization.model_validate(one["quantization"])
    speed = price.speed
    return [
        one["network"],
        str(price.agreement),
        f"{price.agreement.largest_change:.2g}",
        f"{speed.float32_ms:.2f}",
        f"{speed.int8_ms:.2f}",
        f"{speed.float32_ms / speed.int8_ms:.2f}",
        price.door,
        str(price.settings),
        f"{one['build_s']:.0f}",
        "refuses it" if one["refused"] else "takes it",
    ]
