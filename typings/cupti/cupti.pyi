# cupti-python 13 (wheel 13.4.0, NVIDIA): what counting calls of CUDA needs, by callbacks or by activity records.
#
# Written by hand from the stub in the wheel, which leaves the callbacks and many results open, the docstrings of the
# module and cupti-python-samples. Of the calls only those that wait, may wait, copy, allocate or launch graphs.

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TypeVar

_Data = TypeVar("_Data")

class CallbackDomain(IntEnum):
    INVALID = 0
    DRIVER_API = 1
    RUNTIME_API = 2
    RESOURCE = 3
    SYNCHRONIZE = 4
    NVTX = 5
    STATE = 6

class ApiCallbackSite(IntEnum):
    API_ENTER = 0
    API_EXIT = 1

class CallbackIdSync(IntEnum):
    INVALID = 0
    STREAM_SYNCHRONIZED = 1
    CONTEXT_SYNCHRONIZED = 2

class RuntimeApiTraceCbid(IntEnum):
    cudaMalloc_v3020 = 20
    cudaFree_v3020 = 22
    cudaMallocHost_v3020 = 25
    cudaFreeHost_v3020 = 26
    cudaMemcpy_v3020 = 31
    cudaMemcpyAsync_v3020 = 41
    cudaThreadSynchronize_v3020 = 126
    cudaStreamSynchronize_v3020 = 131
    cudaStreamQuery_v3020 = 132
    cudaEventSynchronize_v3020 = 137
    cudaEventQuery_v3020 = 138
    cudaStreamWaitEvent_v3020 = 147
    cudaHostRegister_v4000 = 152
    cudaDeviceSynchronize_v3020 = 165
    cudaMemcpy_ptds_v7000 = 215
    cudaMemcpyAsync_ptsz_v7000 = 225
    cudaStreamSynchronize_ptsz_v7000 = 239
    cudaStreamQuery_ptsz_v7000 = 240
    cudaStreamWaitEvent_ptsz_v7000 = 247
    cudaGraphLaunch_v10000 = 311
    cudaGraphLaunch_ptsz_v10000 = 312
    cudaMallocAsync_v11020 = 373
    cudaFreeAsync_v11020 = 375

class DriverApiTraceCbid(IntEnum):
    cuCtxSynchronize = 17
    cuMemFreeHost = 38
    cuEventQuery = 120
    cuEventSynchronize = 121
    cuStreamQuery = 125
    cuStreamSynchronize = 126
    cuMemAlloc_v2 = 243
    cuMemFree_v2 = 245
    cuMemcpyHtoD_v2 = 276
    cuMemcpyHtoDAsync_v2 = 277
    cuMemcpyDtoH_v2 = 278
    cuMemcpyDtoHAsync_v2 = 279
    cuMemcpyDtoD_v2 = 280
    cuMemcpyDtoDAsync_v2 = 281
    cuMemAllocHost_v2 = 294
    cuStreamWaitEvent = 295
    cuMemcpy = 305
    cuMemcpyAsync = 306
    cuMemHostRegister_v2 = 379
    cuStreamWaitEvent_ptsz = 436
    cuStreamQuery_ptsz = 439
    cuStreamSynchronize_ptsz = 440
    cuGraphLaunch = 514
    cuGraphLaunch_ptsz = 515
    cuMemAllocAsync = 598
    cuMemFreeAsync = 600
    cuCtxSynchronize_v2 = 800

class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17
    CUDA_EVENT = 36
    SYNCHRONIZATION = 38

class ActivitySynchronizationType(IntEnum):
    UNKNOWN = 0
    EVENT_SYNCHRONIZE = 1
    STREAM_WAIT_EVENT = 2
    STREAM_SYNCHRONIZE = 3
    CONTEXT_SYNCHRONIZE = 4

class Result(IntEnum):
    SUCCESS = 0
    ERROR_INVALID_PARAMETER = 1
    ERROR_NOT_INITIALIZED = 15
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_OLD_PROFILER_API_INITIALIZED = 36
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40

class cuptiError(Exception):
    status: int
    def __init__(self, status: int) -> None: ...

class CallbackData:
    callback_site: int
    context: int
    context_uid: int
    correlation_data: int
    correlation_id: int
    function_name: str
    function_params: int
    function_return_value: int
    symbol_name: str

class SubscriberParams:
    def __init__(self) -> None: ...
    struct_size: int
    subscriber_name: str
    old_subscriber_name: str
    allow_multiple_subscribers: int
    @property
    def ptr(self) -> int: ...

SUBSCRIBER_PARAMS_SIZE: int

class ActivityAPI:
    kind: int
    cbid: int
    correlation_id: int
    start: int
    end: int
    process_id: int
    thread_id: int
    return_value: int

class ActivitySynchronization2:
    kind: int
    type: int
    context_id: int
    stream_id: int
    correlation_id: int
    cuda_event_id: int
    start: int
    end: int
    return_value: int

def subscribe(callback: Callable[[_Data, int, int, CallbackData], None], userdata: _Data) -> int: ...
def subscribe_v2(callback: Callable[[_Data, int, int, CallbackData], None], userdata: _Data, p_params: int) -> int: ...
def unsubscribe(subscriber: int) -> None: ...
def enable_domain(enable: int, subscriber: int, domain: int) -> None: ...
def enable_all_domains(enable: int, subscriber: int) -> None: ...
def enable_callback(enable: int, subscriber: int, domain: int, cbid: int) -> None: ...
def get_callback_name(domain: int, cbid: int) -> str: ...
def get_timestamp() -> int: ...
def get_last_error() -> int: ...
def finalize() -> None: ...
def activity_enable(kind: int) -> None: ...
def activity_disable(kind: int) -> None: ...
def activity_flush_all(flag: int) -> None: ...
def activity_register_callbacks(
    func_buffer_requested: Callable[[], tuple[int, int]],
    func_buffer_completed: Callable[[Sequence[ActivityAPI | ActivitySynchronization2]], None],
) -> None: ...
