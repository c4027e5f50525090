"""``python -m benchmarks.patches``: patches of Qwen2-VL against transformers' slow and fast image processors.

Encoded pictures to ``pixel_values``, one picture a call, as many calling threads as cores. Each core count has a
process of its own, bound to so many cores; within it all take turns, picture size by picture size, in every round.

Where they are installed, libraries in compiled code take part: ``pip install --no-deps hf-processors-rs sglang
onnxruntime-extensions`` (Rust, Rust, C++). How far each is from transformers is measured with it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.photos import SIZES, photo_set
from benchmarks.report.patches import patches
from benchmarks.result_files import ROOT, Raw, add_out, begin, path_in, write
from benchmarks.results import PATCHES
from benchmarks.rounds import rotated
from onestream.preprocess.interop import from_huggingface
from onestream.preprocess.interop.libraries import is_installed, load
from onestream.preprocess.patches import Processor

CACHE = ROOT / ".cache" / "benchmarks"
PIXELS = {"min_pixels": 3136, "max_pixels": 12_845_056}
"""Of Qwen2-VL and Qwen2.5-VL, as the hub has them."""
A4 = (1654, 2339)
"""Width and height of a page at 200 dpi."""
_PACKAGES = ("transformers", "torch", "torchvision", "nvidia-dali-cuda120", "pillow", "numpy")
PEERS = {
    "hf-processors-rs": "hf_processors_rs", "sglang": "sglang", "onnxruntime-extensions": "onnxruntime_extensions",
}  # fmt: skip
"""Wheels that bring compiled code for these patches, and the modules in them."""
_PHOTOS, _LONGEST_S = 8, 1500.0
Run = Callable[[bytes], Any]


def page(seed: int) -> bytes:
    """A scanned page of text, JPEG of quality 90."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", A4, (250, 249, 245))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(30)
    for y in range(150, A4[1] - 150, 44):
        words = ("".join(map(chr, random.integers(97, 123, random.integers(2, 11)))) for _ in range(13))
        draw.text((140, y), " ".join(words)[:85], fill=(30, 30, 35), font=font)
    noisy = np.asarray(image) + random.normal(0, 2.5, (A4[1], A4[0], 1))
    file = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def pictures() -> dict[str, tuple[bytes, ...]]:
    """The files of each size."""
    found: dict[str, tuple[bytes, ...]] = {
        size: photo_set(size, folder=CACHE / "photos").contents[:_PHOTOS] for size in SIZES
    }
    return {**found, f"{A4[0]}x{A4[1]}": tuple(map(page, range(4)))}


def competitors() -> dict[str, Run]:
    """What makes the patches of a file; the names say the type of the patches."""
    transformers, torch = load("transformers"), load("torch")
    # Calling threads use the cores; with PyTorch's own threads beside them it was slower.
    torch.set_num_threads(1)
    slow, fast = transformers.Qwen2VLImageProcessorPil(**PIXELS), transformers.Qwen2VLImageProcessor(**PIXELS)

    def theirs(processor: Any) -> Run:
        def run(file: bytes) -> Any:
            return processor(images=[Image.open(io.BytesIO(file)).convert("RGB")], return_tensors="pt")["pixel_values"]

        return run

    def ours(processor: Any, dtype: Any) -> Run:
        own = Processor(from_huggingface(processor), dtype=dtype)

        def run(file: bytes) -> Any:
            made = own([file])
            assert not made.errors
            return made.to_torch()[0]

        return run

    peers: dict[str, Run] = {}
    if is_installed(PEERS["hf-processors-rs"]):
        peers |= {
            f"hf-processors-rs {name}, float32": _rust(slow, backend)
            for name, backend in (("pil", "pil"), ("aten", "torchvision"))
        }
    if is_installed(PEERS["sglang"]):
        peers["sglang, float32"] = _sglang(slow)
    if is_installed(PEERS["onnxruntime-extensions"]):
        peers["onnxruntime-extensions, float32"] = _cpp(slow)
    return {
        "transformers slow, float32": theirs(slow),
        "transformers fast, float32": theirs(fast),
        **peers,
        "onestream pil, float32": ours(slow, "float32"),
        "onestream aten, float32": ours(fast, "float32"),
        "onestream pil, uint8": ours(slow, "uint8"),
        "onestream aten, uint8": ours(fast, "uint8"),
    }


def _rust(processor: Any, backend: str) -> Run:
    """hf-processors-rs, with one thread, as all others have."""
    own = load(PEERS["hf-processors-rs"]).AutoImageProcessor.from_dict(
        {**processor.to_dict(), "image_processor_type": "Qwen2VLImageProcessor"}, backend=backend
    )
    return lambda file: own(file, num_threads=1, return_tensors="pt")["pixel_values"]


def _sglang(processor: Any) -> Run:
    """The Rust of SGLang's own server. Its file alone is loaded, since to import SGLang takes all that it needs."""
    package, torch = importlib.util.find_spec(PEERS["sglang"]), load("torch")
    assert package is not None
    folder = next(iter(package.submodule_search_locations or ()))
    (path,) = Path(folder).glob("srt/rust_extensions/_multimodal*.so")
    spec = importlib.util.spec_from_file_location("_multimodal", path)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    os.environ["SGL_MM_RS_THREADS"] = "1"
    spec.loader.exec_module(library)
    names = ("patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std")
    config = json.dumps({name: getattr(processor, name) for name in names} | PIXELS | {"image_token_id": 0})
    columns = 3 * processor.temporal_patch_size * processor.patch_size**2
    return lambda file: torch.from_numpy(library.qwen_vl.preprocess(file, config)[0]).view(-1, columns)


def _cpp(processor: Any) -> Run:
    """onnxruntime-extensions, as onnxruntime-genai calls it: it reads files, and its config states a picture's size."""
    library, torch = load("onnxruntime_extensions.pp_api"), load("torch")
    folder = Path(tempfile.mkdtemp())

    def processor_of(width: int, height: int) -> Any:
        sides = {"patch_size": processor.patch_size, "merge_size": processor.merge_size}
        operations: tuple[tuple[str, Raw], ...] = (
            ("DecodeImage", {"color_space": "RGB"}),
            ("ConvertRGB", {}),
            ("Resize", {"width": width, "height": height, "smart_resize": 1} | sides | PIXELS),
            ("Rescale", {"rescale_factor": processor.rescale_factor}),
            ("Normalize", {"mean": processor.image_mean, "std": processor.image_std, "qwen2_5_vl": 1}),
            ("PatchImage", {"temporal_patch_size": processor.temporal_patch_size} | sides),
        )
        transforms = [{"operation": {"name": kind, "type": kind, "attrs": attrs}} for kind, attrs in operations]
        return library.create_processor(json.dumps({"processor": {"name": "patches", "transforms": transforms}}))

    @lru_cache(64)
    def opened(file: bytes) -> tuple[Any, list[str]]:
        path = folder / hashlib.sha256(file).hexdigest()
        path.write_bytes(file)
        return processor_of(*Image.open(io.BytesIO(file)).size), [str(path)]

    def run(file: bytes) -> Any:
        own, paths = opened(file)
        images = library.load_images(paths)
        made = library.image_pre_process(own, images)
        values = torch.from_numpy(library.tensor_result_get_at(made, 0)[0])
        for one in (images, made):
            library.delete_object(one)
        return values

    return run


def differences(runs: dict[str, Run], files: Sequence[bytes]) -> Raw:
    """The largest difference of normalized values from transformers, slow and fast, of each in float32.

    Raises ``AssertionError`` where a value of ours is not transformers'.
    """
    found: dict[str, dict[str, float]] = {}
    for file in files:
        made = {name: run(file) for name, run in runs.items() if name.endswith("float32")}
        for name, values in made.items():
            for theirs in ("slow", "fast"):
                expected = made[f"transformers {theirs}, float32"]
                most = found.setdefault(name, {}).get(theirs, 0.0)
                found[name][theirs] = max(most, float((values - expected).abs().max()))
    for theirs, ours in (("slow", "pil"), ("fast", "aten")):
        assert found[f"onestream {ours}, float32"][theirs] == 0, f"{ours} differs from transformers {theirs}"
    return found


def rate(run: Run, files: Sequence[bytes], pool: ThreadPoolExecutor, cores: int, duration_s: float) -> Raw:
    """Pictures per second of ``cores`` threads that call all the time, and milliseconds of CPU time a picture."""

    def call(first: int) -> int:
        count, endless = 0, islice(cycle(files), first, None)
        while time.perf_counter() < end or not count:
            run(next(endless))
            count += 1
        return count

    began, worked = time.perf_counter(), time.process_time()
    end = began + duration_s
    count = sum(pool.map(call, range(cores)))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - worked
    return {"pictures_per_s": count / seconds, "cpu_ms": 1000 * cpu_s / count}


def measure(cores: int, rounds: int, duration_s: float) -> tuple[Raw, Raw]:
    """By picture size what ``rate`` gives of each competitor in each round, on ``cores`` cores; and ``differences``."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    runs = competitors()
    found: Raw = {}
    differing: Raw = {}
    with ThreadPoolExecutor(cores) as pool:
        for size, files in pictures().items():
            differing[size] = differences(runs, files)
            rates: dict[str, list[Raw]] = {name: [] for name in runs}
            for number in range(rounds):
                for name in rotated(list(runs), number):
                    rates[name].append(rate(runs[name], files, pool, cores, duration_s))
            found[size] = rates
            print(f"{cores} cores, {size}: measured", flush=True)
    return found, differing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patches", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="each measures everything once")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    add_out(parser)
    options = parser.parse_args(arguments)
    about, measured = begin((*_PACKAGES, *PEERS)), {}
    differing: Raw = {}
    for cores in (1, 2):
        # A process that has bound itself, and PyTorch's threads, cannot be had back.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            given = (cores, options.rounds, options.seconds)
            measured[str(cores)], differing = pool.apply_async(measure, given).get(_LONGEST_S)
    load_average = round(os.getloadavg()[0], 1)
    results: Raw = {
        **about.model_dump(), "rounds": options.rounds, "load_average": load_average, "cores": measured,
        "differences": differing,
    }  # fmt: skip
    path: Path = path_in(options.out, about.machine.slug, PATCHES)
    write(path, results)
    print(patches(results))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
