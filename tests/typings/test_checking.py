"""mypy reports wrong calls into every GPU library, under the configuration of this project.

A library without types is not an error to mypy: it would stop checking without a word.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Lines that end in a comment are wrong, by mypy's code for it; all others are right. Of the libraries that
# ``test_stubs`` compares, argument by argument, one wrong call of each kind shows that they are checked.
CALLS = """
import ctypes

import cvcuda
import numpy as np
import PyNvVideoCodec as nvc
import tensorrt
import tensorrt_rtx
from cuda.core import Buffer, Device, EventOptions, LaunchConfig, Program, ProgramOptions, StreamOptions, launch
from cupti import cupti
from nvidia import nvimgcodec


def cuda_core(device: Device) -> None:
    stream = device.create_stream(options=StreamOptions(nonblocking=True))
    number: int = int(stream.handle)
    device.allocate(number)  # call-arg
    Buffer.from_handle(number, 16).copy_to(number, stream=stream)  # arg-type
    builder = stream.create_graph_builder().begin_building("thread_local")
    builder.end_building().complete().launch(number)  # arg-type
    device.create_event(options=EventOptions(timing_enabled=True)).elapsed()  # attr-defined
    kernel = Program("", "c++", ProgramOptions(arch="sm_90")).compile("cubin").get_kernel("name")
    launch(stream, LaunchConfig(grid=(1, 1), block=32), kernel, number, np.int32(1))
    launch(stream, LaunchConfig(grid=1, block=32), kernel, "text")  # arg-type


def nvimgcodec_images(decoder: nvimgcodec.Decoder, data: bytes) -> None:
    streams = [nvimgcodec.CodeStream(data)]
    images: list[nvimgcodec.Image | None] = decoder.decode(streams, params=nvimgcodec.DecodeParams(), cuda_stream=7)
    decoder.decode(streams, None, nvimgcodec.DecodeParams())  # call-overload
    images[0].shape  # union-attr


def cv_cuda(images: list[nvimgcodec.Image], handle: int) -> None:
    stream = cvcuda.as_stream(handle)
    batch = cvcuda.as_images(images, cvcuda.Format.RGB8)
    cvcuda.hq_resize(batch, [(8, 8)], antialias=True, interpolation=cvcuda.Interp.LINEAR, stream=stream)
    cvcuda.hq_resize(batch, [(8, 8)], antialiasing=True, stream=stream)  # call-overload
    cvcuda.as_images(images, "RGB8")  # arg-type


def rtx(logger: tensorrt_rtx.ILogger, network: tensorrt_rtx.INetworkDefinition) -> None:
    builder = tensorrt_rtx.Builder(logger)
    config = builder.create_builder_config()
    config.set_flag(tensorrt_rtx.BuilderFlag.FP16)  # attr-defined
    config.set_compute_capability(tensorrt_rtx.ComputeCapability.SM89, 0)
    bytes(builder.build_serialized_network(network, config))  # arg-type
    builder.create_optimization_profile().set_shape("x", (1, 3), (2, 3), max_shape=(4, 3))  # call-arg


def trt(runtime: tensorrt.Runtime, plan: bytes, stream: int, config: tensorrt.IBuilderConfig) -> None:
    engine = runtime.deserialize_cuda_engine(plan)
    engine.create_execution_context()  # union-attr
    assert engine is not None
    context = engine.create_execution_context()
    assert context is not None
    context.set_input_shape("x", (1, 3))
    context.execute_async_v3(stream_handle=stream)
    context.execute_async_v3(stream=stream)  # call-arg
    config.num_compute_capabilities = 1  # attr-defined


def video(path: str, stream: int) -> None:
    demuxer = nvc.CreateDemuxer(path)
    decoder = nvc.CreateDecoder(codec=demuxer.GetNvCodecId(), cudastream=stream, usedevicememory=True)
    for packet in demuxer:
        timestamps: list[int] = [frame.getPTS() for frame in decoder.Decode(packet)]
    nvc.CreateDecoder(cuda_stream=stream)  # call-arg
    nvc.CreateDecoder(latency=0)  # arg-type
    nvc.GetDecoderCaps(codec="h264")  # arg-type
    data = nvc.PacketData()
    data.bsl_data, data.bsl, data.pts = 0, 0, 7
    data.decode_flag = nvc.VideoPacketFlag.ENDOFPICTURE  # assignment
    data.timestamp = 7  # attr-defined
    decoder.Decode(b"packet")  # arg-type
    decoder.Decode(data)[0].GetPtrToPlane()  # call-arg
    nvc.SimpleDecoder(path, output_color_type="RGB")  # arg-type
    nvc.ThreadedDecoder(path)  # call-arg


def calls(names: list[str], domain: int, cbid: int, data: cupti.CallbackData) -> None:
    names.append(data.function_name)


def count_calls() -> None:
    names: list[str] = []
    subscriber = cupti.subscribe(calls, names)
    cupti.enable_domain(1, subscriber, cupti.CallbackDomain.RUNTIME_API)
    cupti.enable_domain(1, subscriber, domain="RUNTIME_API")  # arg-type
    cupti.subscribe(calls, {})  # arg-type
    cupti.enable_callback(1, subscriber, cupti.CallbackDomain.DRIVER_API)  # call-arg
"""


def mypy(*paths: Path, cache: Path, stubs: Path | None = None) -> str:
    """What mypy says under this project's configuration; ``stubs`` is a folder whose stubs go first."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(cache)]
    environment = {**os.environ, **({"MYPYPATH": str(stubs)} if stubs else {})}
    result = subprocess.run(
        [*command, *map(str, paths)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    return result.stdout


def test_wrong_calls_are_reported_and_right_ones_are_not(tmp_path: Path) -> None:
    source = tmp_path / "calls.py"
    source.write_text(CALLS)
    wrong = {
        number: marked[1]
        for number, line in enumerate(CALLS.splitlines(), start=1)
        if (marked := re.search(r"  # ([a-z-]+)$", line))
    }
    reported = re.findall(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", mypy(source, cache=tmp_path), re.MULTILINE)
    assert {(int(number), code) for number, code in reported} == set(wrong.items())


def only_of_rtx(rtx: str, tensorrt: str) -> set[str]:
    """Names in what TensorRT's stub does not take from the other one, and does not have itself."""
    shared = {
        alias.name for node in ast.walk(ast.parse(tensorrt)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    own = [ast.unparse(node) for node in ast.parse(rtx).body if getattr(node, "name", None) not in shared]
    return set(re.findall(r"\w+", "\n".join(own))) - set(re.findall(r"\w+", tensorrt))


def test_the_engine_calls_what_both_tensorrts_have(tmp_path: Path) -> None:
    """Read with TensorRT's stub, it lacks only what TensorRT for RTX has alone, which it asks for by ``IS_RTX``."""
    tensorrt, rtx = ((ROOT / "typings" / name / "__init__.pyi").read_text() for name in ("tensorrt", "tensorrt_rtx"))
    stubs = {"rtx_itself": rtx, "tensorrt_rtx": tensorrt.replace("from tensorrt_rtx import", "from rtx_itself import")}
    for name, stub in stubs.items():
        (tmp_path / "stubs" / name).mkdir(parents=True)
        (tmp_path / "stubs" / name / "__init__.pyi").write_text(stub)
    only_rtx = only_of_rtx(rtx, tensorrt)
    said = mypy(ROOT / "serving" / "engine", cache=tmp_path, stubs=tmp_path / "stubs")
    errors = [line for line in said.splitlines() if re.match(r"serving/engine/\S+ error: ", line)]
    assert errors, "TensorRT's stub was not used: choosing a compute capability exists only in TensorRT for RTX"
    assert [line for line in errors if not only_rtx & set(re.findall(r"\w+", line.split(": error: ")[1]))] == []
