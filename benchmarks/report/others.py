"""The tables of docs/results.md that are not of served pipelines: loaders, video, boxes, text, int8, Ray."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.photos import Size, title
from benchmarks.report.pages import markdown
from benchmarks.result_files import Raw, dated, short_commit
from benchmarks.results import (
    BULK,
    IN_PROCESS,
    ON_RAY,
    CaseResult,
    LineRead,
    LoaderResults,
    ReadingResults,
    TrainingResults,
)
from onestream.measure.capacity.streams import OPENCV, OURS, Summary
from onestream.measure.parity.report import BoxFigures, Report, SubjectReport
from onestream.measure.spread import Spread, ratio
from onestream.measure.tables import NOT_MEASURED
from onestream.postprocess.same_lines import edit_distance
from onestream.serving.engine.quantization import Quantization

_STREAMS_HEAD = (
    *("pipeline", "onestream", "OpenCV in the client", "ours ÷ it"),
    *("CPU a frame alone: decode, network, encode, ms", "held ÷ bare decode and network", "… and encode"),
)
_BOXES_HEAD = (
    "pipeline",
    "compared with the reference",
    "equal boxes",
    "lost",
    "added",
    "moved by more than 1 px",
    "AP",
)
_LOW_PX = 30
FONTS = ("DejaVu Sans", "STIX General", "Aileron")
HEIGHTS_PX = (20, 60)
_INT8_HEAD = (
    *("network", "agreement on pictures that were held out", "largest change", "ms in float32", "ms in int8", "ratio"),
    *("door", "setting", "s of the pipeline's build", "`onestream build`"),
)


def augmentation(results: LoaderResults) -> str:
    """The table of random chains in docs/results.md."""
    sizes = list(dict.fromkeys(case.size for case in results.cases))
    about = _of_loaders("Augmentation in the training loader", results)
    return f"{about}\n\n{_by_size(_rates(results.cases), sizes)}"


def training(results: TrainingResults) -> str:
    """The table of one run in docs/results.md."""
    sizes = list(results.equal_to_serving)
    about = _of_loaders("Training loader", results)
    rows = _rates(results.cases)
    rows["images equal to serving in every bit"] = {
        size: f"{share:.0%}" for size, share in results.equal_to_serving.items()
    }
    rows["DALI against the reference after the crop: largest difference, levels"] = {
        size: f"{one.largest_level}" for size, one in results.parity.items()
    }
    rows["values equal / within one level"] = {
        size: f"{one.share_equal:.2%} / {one.share_within_one:.2%}" for size, one in results.parity.items()
    }
    rows["images with another best class"] = {
        size: f"{one.flipped} of {one.images}" for size, one in results.parity.items()
    }
    if not results.resident_mib:
        return f"{about}\n\n{_by_size(rows, sizes)}"
    memory = (
        f"Memory over {len(results.resident_mib)} epochs, growth after the third: {results.growth:+.2%} "
        f"(at the end {results.resident_mib[-1]:.0f} MiB)."
    )
    return f"{about}\n\n{_by_size(rows, sizes)}\n{memory}\n"


def _of_loaders(what: str, results: LoaderResults) -> str:
    return (
        f"{what}, {results.workers} threads against {results.workers} worker processes; "
        f"{results.dated}. Median (quartiles) of {results.rounds} rounds."
    )


def _rates(cases: Sequence[CaseResult]) -> dict[str, dict[Size, str]]:
    """Images/s of each loader and ours divided by each other one's, by quantity and size."""
    rows: dict[str, dict[Size, str]] = {}
    for case in cases:
        for name, rates in case.images_per_s.items():
            row = rows.setdefault(f"images/s: {name} ({case.name})", {})
            row[case.size] = Spread.of(rates).text(0)
            if name != "ours" and not name.startswith("ours,"):
                spread = case.ours_over(name)
                rows.setdefault(f"**ours ÷ {name}** ({case.name})", {})[case.size] = (
                    spread.text(2) if spread else NOT_MEASURED
                )
    return rows


def _by_size(rows: dict[str, dict[Size, str]], sizes: Sequence[Size]) -> str:
    cells = [[name, *(row.get(size, NOT_MEASURED) for size in sizes)] for name, row in rows.items()]
    return markdown(["quantity", *map(title, sizes)], cells)


def video(results: Raw) -> str:
    """Clips per second of each competitor, and ours divided by theirs."""
    clip, measured = results["clip"], results["rounds"]
    rates = {name: {n: one["clips_per_s"] for n, one in enumerate(rounds)} for name, rounds in measured.items()}
    others = max(one["others"] for rounds in measured.values() for one in rounds)
    about = (
        f"Video loader, 1080p H.264, clips of {clip['frames']} frames, every {clip['stride']}th, resized to "
        f"{clip['size']}×{clip['size']}, {results['workers']} cores; {dated(results)}. "
        f"Median (quartiles) of {len(rates['ours'])} rounds; "
        f"other programs used up to {others:.0%} of the machine."
    )
    rows = []
    for name, of_loader in rates.items():
        against = ratio(rates["ours"], of_loader) if name != "ours" else None
        rows.append([name, Spread.of(list(of_loader.values())).text(2), against.text(2) if against else ""])
    return f"{about}\n\n{markdown(['loader', 'clips/s', 'ours ÷ it'], rows)}"


def streams(results: Raw) -> str:
    """Streams held of each case, beside OpenCV's way and the bounds; then the soak."""
    cases: dict[str, Raw] = results["cases"]
    parts = []
    if cases:
        first = next(iter(cases.values()))
        dates = sorted({one["started_utc"][:10] for one in cases.values()})
        commits = sorted({short_commit(one["commit"]) for one in cases.values()})
        counts = sorted({len(one["rounds"]) for one in cases.values()})
        rounds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        about = (
            f"Video streams held in real time, {first['clip']['width']}×{first['clip']['height']} "
            f"{first['clip']['codec'].upper()} at {first['fps']} frames/s, {first['cores']} cores, client and server "
            f"on the same machine; {', '.join(dates)}, commit {', '.join(commits)}. "
            + (f"Median (quartiles) of {rounds} rounds." if counts[-1] > 1 else "One round.")
        )
        parts.append(f"{about}\n\n{markdown(_STREAMS_HEAD, [_streams_row(name, one) for name, one in cases.items()])}")
    if "soak" in results:
        parts.append(f"{_soak(results['soak'])}\n")
    return "\n".join(parts)


def _streams_row(name: str, case: Raw) -> list[str]:
    summary = Summary.of(case)
    against, costs = summary.against_opencv, summary.costs
    parts = [f"{costs.decode_ms:.1f}", f"{costs.network_ms:.1f}"]
    encoded = NOT_MEASURED
    if costs.encode_ms:
        parts.append(f"{costs.encode_ms:.1f}")
        encoded = summary.of_bound_encoded.text(2)
    return [
        name.replace("every 1", "every frame") if case["stride"] == 1 else f"{name}{_ordinal(case['stride'])} frame",
        summary.held[OURS].text(2),
        summary.held[OPENCV].text(2),
        against.text(2) if against else NOT_MEASURED,
        " + ".join(parts),
        summary.of_bound.text(2),
        encoded,
    ]


def _ordinal(number: int) -> str:
    return {2: "nd", 3: "rd"}.get(number, "th")


def _soak(soak: Raw) -> str:
    return (
        f"{soak['clients']} clients for {soak['minutes']:g} minutes in mode `block`, while others were killed "
        f"({dated(soak)}): {soak['frames']:,} frames, "
        f"{soak['lost']} lost, {soak['out_of_order']} out of order, {soak['wrong_times']} with a wrong time; "
        f"{soak['mib_per_stream']:.0f} MiB of the server's memory for each open stream, "
        f"growth {soak['memory_growth']:+.1%}."
    )


def boxes(results: Raw) -> str:
    """The boxes of each pipeline and subject against the reference's."""
    reports = [Report.model_validate(one) for one in results["reports"].values()]
    counts = sorted({report.compared for report in reports})
    about = (
        f"Boxes against those of the reference pipeline, on {' to '.join(map(str, counts))} photos, 500×375 and "
        f"1920×1080; {dated(results)}. Equal: the same "
        "class, and an IoU of at least 0.99. AP: COCO's, with the reference's boxes as the truth."
    )
    rows = [
        _boxes_row(report, subject, subject.boxes) for report in reports for subject in report.subjects if subject.boxes
    ]
    return f"{about}\n\n{markdown(_BOXES_HEAD, rows)}"


def _boxes_row(report: Report, subject: SubjectReport, found: BoxFigures) -> list[str]:
    share = f" ({found.equal / found.expected:.1%})" if found.expected else ""
    return [
        report.pipeline,
        f"{subject.name}: {' and '.join(subject.forms)}" if subject.forms else subject.name,
        f"{found.equal} of {found.expected}{share}",
        str(found.lost),
        str(found.added),
        f"{found.moved}, at most {found.farthest_px:.1f}" if found.moved else "0",
        "–" if found.agreement_ap is None else f"{found.agreement_ap:.3f}",
    ]


def character_error_rate(lines: Sequence[LineRead], reader: str, *, spaces: bool = True) -> float | None:
    """Edits that make the lines of what was read, divided by their characters; None without lines.

    Without ``spaces`` they are left out of both.
    """

    def counted(text: str) -> str:
        return text if spaces else text.replace(" ", "")

    edits = sum(edit_distance(counted(line.read[reader]), counted(line.text)) for line in lines)
    characters = sum(len(counted(line.text)) for line in lines)
    return edits / characters if characters else None


def reading(results: ReadingResults) -> str:
    """The tables of one run in docs/results.md."""
    lowest, highest = HEIGHTS_PX
    about = (
        f"Text on {results.machine.cpu}; {results.dated}. "
        f"{len(results.lines)} rendered lines, {lowest} to {highest} px high. Character error rate: edits that make "
        "the text of what was read, divided by its characters."
    )
    low = [line for line in results.lines if line.height_px < _LOW_PX]
    head = ["read by", "character error rate", "without spaces", "lines without an error"]
    rows = []
    for reader in results.lines[0].read if results.lines else ():
        whole = sum(line.read[reader] == line.text for line in results.lines)
        of_fonts = [[line for line in results.lines if line.font == font] for font in FONTS]
        rows.append(
            [
                reader,
                _percent(character_error_rate(results.lines, reader)),
                _percent(character_error_rate(results.lines, reader, spaces=False)),
                f"{whole} of {len(results.lines)}",
                *(_percent(character_error_rate(lines, reader)) for lines in (*of_fonts, low)),
            ]
        )
    errors = markdown([*head, *FONTS, f"below {_LOW_PX} px"], rows)
    pairs = [
        [
            one.one,
            one.other,
            _share(one.equal, one.lines),
            _share(one.rendered_equal, one.rendered),
            _share(one.equal - one.rendered_equal, one.lines - one.rendered),
            str(len(one.differences)),
            str(one.only_one),
            str(one.only_other),
        ]
        for one in results.compared
    ]
    head = ["read by", "compared with", "lines equal", "of rendered text", "of real text"]
    head += ["read otherwise", "found by the first only", "by the other only"]
    counts = sorted({one.pictures for one in results.compared})
    pictures = f"The same on {' to '.join(map(str, counts))} pictures of text that is turned by up to 30°:"
    return f"{about}\n\n{errors}\n{pictures}\n\n{markdown(head, pairs)}"


def _share(equal: int, lines: int) -> str:
    return f"{equal} of {lines} ({equal / lines:.1%})" if lines else NOT_MEASURED


def _percent(rate: float | None) -> str:
    return NOT_MEASURED if rate is None else f"{rate:.2%}"


def quantization(results: Raw) -> str:
    """A row for each network: its price, how it was quantized, and whether a build takes it."""
    about = (
        f"Int8, network by network: {results['machine']['cpu']}, one run with one picture in one thread; "
        f"{dated(results)}, "
        f"onnxruntime {results['versions']['onnxruntime']}. What the columns mean is in "
        "[quantization.md](quantization.md#what-the-certificate-says)."
    )
    return f"{about}\n\n{markdown(_INT8_HEAD, map(_int8_row, results['networks']))}"


def _int8_row(one: Raw) -> list[str]:
    price = Quantization.model_validate(one["quantization"])
    speed = price.speed
    return [
        one["network"],
        str(price.agreement),
        f"{price.agreement.largest_change:.2g}",
        f"{speed.float32_ms:.2f}",
        f"{speed.ms:.2f}",
        f"{speed.float32_ms / speed.ms:.2f}",
        price.door,
        str(price.settings),
        f"{one['build_s']:.0f}",
        "refuses it" if one["refused"] else "takes it",
    ]


def engines(results: Raw) -> str:
    """Milliseconds of each network by engine and precision, and how much faster that is than ONNX Runtime's float32."""
    ways = ("onnxruntime float32", "openvino float32", "openvino bf16", "onnxruntime int8", "openvino int8")
    usual = ways[0]
    about = (
        f"Engines of a CPU: {results['machine']['cpu']}, ms of a run with one picture in one thread, by turns in "
        f"one process (ONNX Runtime's float32 divided by it); {dated(results)}, "
        f"onnxruntime {results['versions']['onnxruntime']}, openvino {results['versions']['openvino']}."
    )
    rows = []
    for one in results["networks"]:
        ms = one["ms"]
        cells = [f"{ms[way]:.2f} ({ms[usual] / ms[way]:.2f})" if way in ms else "not computed here" for way in ways]
        rows.append([one["network"], *cells])
    return f"{about}\n\n{markdown(['network', *ways], rows)}"


def scale_out_rates(results: Raw) -> dict[str, dict[int, float]]:
    """Images/s by way and round."""
    return {name: {n: one[name] for n, one in enumerate(results["rounds"])} for name in (IN_PROCESS, ON_RAY, BULK)}


def scale_out(results: Raw) -> str:
    """Images/s of each way, of Ray's divided by the others', the command's memory by its list's length, and kills."""
    of_ways = scale_out_rates(results)
    about = (
        f"Scale out: `classify` over {results['images']} photos of {title(results['size'])}, "
        f"{results['machine']['cores']} cores; "
        f"{dated(results)}, ray {results['versions']['ray']}. "
        f"Median (quartiles) of {len(results['rounds'])} rounds."
    )
    says = {
        IN_PROCESS: "the same operations in one process a core, without any engine",
        ON_RAY: "`onestream bulk --ray`",
        BULK: "`onestream bulk` against a server on the same machine",
    }
    rows = []
    for name, of_way in of_ways.items():
        against = ratio(of_ways[ON_RAY], of_way) if name != ON_RAY else None
        rows.append([says[name], Spread.of(list(of_way.values())).text(1), against.text(2) if against else ""])
    counts = [f"{held / 1e6:.0f} MB with {int(count):,}" for count, held in results["memory_bytes"].items()]
    held = f"The command of `--ray` holds at most {' and '.join(counts)} names in its list."
    return f"{about}\n\n{markdown(['way', 'images/s', '`--ray` ÷ it'], rows)}\n{held}\n{_of_kills(results)}"


def _of_kills(results: Raw) -> str:
    """Rows lost and doubled where something was killed, which earlier runs counted."""
    if "kills" not in results:
        return ""
    kills = results["kills"]
    says = {"worker": "a worker", "node": "a node", "driver": "the command, which is then given again"}
    rows = [[says[kind], *(str(kills[kind][name]) for name in ("runs", "lost", "doubled"))] for kind in says]
    about = f"Killed with SIGKILL in the middle of a run of `bulk --ray` on two nodes of one machine; {dated(kills)}."
    return f"\n{about}\n\n{markdown(['killed', 'runs', 'rows lost', 'rows doubled'], rows)}\n"
