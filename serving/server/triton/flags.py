"""Flags of tritonserver's own, which ``onestream serve -- FLAGS`` hands on."""

from __future__ import annotations

from collections.abc import Sequence

_PROXY = "`onestream proxy` is for callers from elsewhere"
_LOG = "onestream reads the log; use --log-file, --log-format and --verbose"
_CHECKED = "onestream asks this service whether the server runs"
_REFUSED = {
    "--model-repository": "use --repository",
    "--model-store": "use --repository",
    "--load-model": "use --model",
    "--model-control-mode": "onestream loads the models; use `onestream models`",
    "--repository-poll-secs": "onestream loads the models; use `onestream models`",
    "--model-namespacing": "clients call models by their names alone",
    "--model-config-name": "use --device",
    "--disable-auto-complete-config": "the generated configurations are complete",
    "--strict-model-config": "the generated configurations are complete",
    "--exit-on-error": "a model that does not load is reported and left out",
    "--strict-readiness": "the server is ready when all its models are",
    "--exit-timeout-secs": "a stop takes 10 s at most",
    "--http-address": "use --host",
    "--http-port": "use --http-port before the --",
    "--reuse-http-port": "use --http-port before the --",
    "--grpc-address": "use --host",
    "--grpc-port": "use --grpc-port before the --",
    "--reuse-grpc-port": "use --grpc-port before the --",
    "--metrics-address": "use --host",
    "--metrics-port": "use --metrics-port before the --",
    "--allow-http": _CHECKED,
    "--allow-grpc": _CHECKED,
    "--allow-metrics": _CHECKED,
    "--allow-sagemaker": _PROXY,
    "--allow-vertex-ai": _PROXY,
    "--grpc-use-ssl": _PROXY,
    "--http-restricted-api": "loading, logging, tracing and shared memory are closed to callers already",
    "--grpc-restricted-protocol": "loading, logging, tracing and shared memory are closed to callers already",
    "--pinned-memory-pool-byte-size": "it is 0: Triton loses pixels there when its pool of GPU memory is full",
    "--grpc-infer-allocation-pool-size": "it is 0, since a pool would keep the memory of the largest requests",
    "--backend-directory": "use --triton",
    "--cache-directory": "use --triton",
    "shm-region-prefix-name": "onestream finds the regions of its models by it",
    "--log-file": _LOG,
    "--log-format": _LOG,
    "--log-info": _LOG,
    "--log-warning": _LOG,
    "--log-error": _LOG,
    "--trace": "use --trace and --trace-rate before the --",
    "--help": "run tritonserver itself",
}
"""What onestream sets, and what to use in its place; also longer flags that begin so."""


def check_flags(flags: Sequence[str]) -> None:
    """Raise ``ValueError`` where these are no flags, or one is onestream's to set, also where it is shortened."""
    if flags and not flags[0].startswith("--"):
        raise ValueError(
            f"{flags[0]!r} is no flag of tritonserver, such as --cache-config=local,size=1048576; a folder of models "
            "is --repository DIR"
        )
    for flag in flags:
        name = flag.partition("=")[0]
        for refused, reason in _REFUSED.items():
            # tritonserver takes a flag by its first letters too.
            if refused in flag or (name.startswith("--") and refused.startswith(name)):
                raise ValueError(f"{name}: not a flag for tritonserver here: {reason}")
