"""Faults of the build, the engines, the models that Triton runs, the server, the proxy and served video."""

from __future__ import annotations

from planted import Fault

_NETWORK = ("tests/serving/building/test_network.py",)
_PROXY = ("tests/serving/proxy/test_proxy.py",)
_SESSION = ("tests/serving/video/test_video_session.py",)

_BUILDING = (
    Fault(
        name="stamps-compared-without-normalize",
        file="serving/engine/stamp.py",
        old="    if one.digest != other.digest:\n",
        new="    if one.pixels().digest != other.pixels().digest:\n",
        tests=_NETWORK,
    ),
    Fault(
        name="means-in-the-other-order",
        file="serving/graph/onnx_graph.py",
        old="constant(step, values, shape))",
        new='constant(step, values[::-1] if step == "mean" else values, shape))',
        tests=_NETWORK,
    ),
    Fault(
        name="usual-requests-of-low-priority",
        file="serving/built/triton_config.py",
        old='config.dynamic_batching.default_priority_level = PRIORITIES["normal"]',
        new='config.dynamic_batching.default_priority_level = PRIORITIES["low"]',
        tests=("tests/serving/building/test_repository.py",),
    ),
    Fault(
        name="damaged-plan-taken",
        file="serving/engine/cache.py",
        old="    if hashlib.sha256(content).hexdigest() != sha256:\n",
        new="    if not content or not sha256:\n",
        tests=("tests/serving/engine/test_engine_cache.py",),
    ),
)

_MODELS = (
    Fault(
        name="whole-timeout-handed-on",
        file="serving/models/deadline.py",
        old="left_us = round((self._until_s - time.monotonic()) * 1e6)",
        new="left_us = int(self.request.timeout())",
        tests=("tests/serving/models/test_deadline_of_callers.py",),
    ),
    Fault(
        name="bytes-of-heavy-pictures-not-released",
        file="serving/models/heavy_pictures.py",
        old="self._waiting, self._waiting_bytes = self._waiting - 1, self._waiting_bytes - taken.size",
        new="self._waiting -= 1",
        tests=("tests/serving/models/test_heavy_line.py",),
    ),
    Fault(
        name="callers-of-a-gpu-answered-twice",
        file="serving/models/on_gpu.py",
        old="sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
        new="[sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) for _ in range(2)]",
        tests=("tests/serving/models/test_gpu_callers.py",),
    ),
    Fault(
        name="one-refusal-too-few-in-the-log",
        file="serving/models/refusal_log.py",
        old="left_out = self._count > AT_MOST\n",
        new="left_out = self._count >= AT_MOST\n",
        tests=("tests/serving/models/test_refusal_log.py",),
    ),
    Fault(
        name="cascade-works-for-who-has-left",
        file="serving/models/stages.py",
        old="if look.journey.failure is None and not look.journey.caller.is_waiting():",
        new="if look.journey.failure is not None and not look.journey.caller.is_waiting():",
        tests=("tests/serving/models/test_stages.py",),
    ),
)

_SERVER = (
    Fault(
        name="token-in-other-letters-let-in",
        file="serving/proxy/tokens.py",
        old='first = seen.setdefault(match["token"].lower(), number)',
        new='first = seen.setdefault(match["token"], number)',
        tests=_PROXY,
    ),
    Fault(
        name="secrets-that-a-group-may-write",
        file="serving/proxy/tokens.py",
        old="_ALLOWED = 0o740",
        new="_ALLOWED = 0o760",
        tests=_PROXY,
    ),
    Fault(
        name="part-of-a-core-rounded-down",
        file="serving/server/fit.py",
        old="return max(1, min(cores, math.ceil(allowed_us / period_us)))",
        new="return max(1, min(cores, math.floor(allowed_us / period_us)))",
        tests=("tests/serving/server/test_fit.py",),
    ),
    Fault(
        name="regions-that-others-read",
        file="serving/server/triton/orphan_cleanup.py",
        old="os.fchmod(region, 0o600)",
        new="os.fchmod(region, 0o644)",
        tests=("tests/serving/server/test_loading.py",),
        slow=True,
    ),
    Fault(
        name="lost-traces-not-told",
        file="serving/server/server.py",
        old="if self._tracing is not None and complaint is not None:",
        new="if self._tracing is not None and complaint is None:",
        tests=("tests/serving/server/test_server.py",),
        slow=True,
    ),
    Fault(
        name="given-up-a-restart-too-late",
        file="serving/server/supervisor.py",
        old="if recent >= policy.max_restarts:",
        new="if recent > policy.max_restarts:",
        tests=("tests/serving/server/test_supervisor.py",),
        slow=True,
    ),
)

_STREAMS = (
    Fault(
        name="one-stream-too-many",
        file="serving/video/bounds.py",
        old="if streams >= self.max_streams:",
        new="if streams > self.max_streams:",
        tests=_SESSION,
    ),
    Fault(
        name="results-beyond-the-credit",
        file="serving/video/session.py",
        old="count = 0 if self.ended else min(most, len(inferred), self._credit)",
        new="count = 0 if self.ended else min(most, len(inferred))",
        tests=_SESSION,
    ),
    Fault(
        name="live-stream-drops-the-newest",
        file="serving/video/session.py",
        old="(queues.inferred or queues.frames).popleft()",
        new="(queues.inferred or queues.frames).pop()",
        tests=_SESSION,
    ),
    Fault(
        name="second-stream-ended-for-memory",
        file="serving/video/memory.py",
        old="if self._ending() is not None:",
        new="if self._ending() in streams:",
        tests=("tests/serving/video/test_video_memory.py",),
    ),
)

SERVING: tuple[Fault, ...] = (*_BUILDING, *_MODELS, *_SERVER, *_STREAMS)
