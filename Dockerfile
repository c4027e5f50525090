# Three images: `cpu`, small and without CUDA, `gpu`, on Triton's own, and `proxy`, nginx for in front of either.
# docs/containers.md says how to use them.
# Pinned by tag; a digest is stricter: --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver@sha256:…
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm
ARG DEBIAN_IMAGE=debian:12.12-slim
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.10-py3


FROM ${PYTHON_IMAGE} AS cpu-build
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/onestream
# What the installation reads: an edit of anything else installs nothing anew.
COPY Makefile pyproject.toml README.md LICENSE ./
COPY locks locks
COPY onestream onestream
RUN --mount=type=cache,target=/root/.cache/pip make install DEVICE=cpu
COPY . .
# As at run time: loops that are compiled here are found there, by the same kind of CPU.
ENV NUMBA_CACHE_DIR=/var/cache/onestream/numba
# --old-file: an installation from Docker's cache is kept, though the same files of a fresh checkout are newer.
RUN make build DEVICE=cpu --old-file=.venv/.serve


FROM ${PYTHON_IMAGE} AS cpu
RUN groupadd --gid 1000 onestream \
    && useradd --uid 1000 --gid 1000 --no-create-home onestream
COPY --from=cpu-build /opt/onestream /opt/onestream
# Docker fills a new volume from here.
COPY --from=cpu-build --chown=1000:1000 /var/cache/onestream /var/cache/onestream
WORKDIR /opt/onestream
# All that is written at run time goes to the cache, which is worth a volume, and to /tmp.
ENV PATH=/opt/onestream/.venv/bin:$PATH \
    HOME=/tmp \
    XDG_CACHE_HOME=/var/cache \
    ONESTREAM_CACHE=/var/cache/onestream \
    ONESTREAM_RUN_DIR=/tmp/onestream \
    NUMBA_CACHE_DIR=/var/cache/onestream/numba \
    PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=3m --retries=3 CMD ["python3", "deploy/healthcheck.py"]
ENTRYPOINT ["onestream"]
CMD ["serve", "--public", "--host", "0.0.0.0", "--insecure-bind", "--device", "cpu", "--verbose"]


FROM ${TRITON_IMAGE} AS gpu-build
# For a container whose TensorRT has no bindings on PyPI: requirements to install instead, or `none`.
ARG TENSORRT
RUN apt-get update \
    && apt-get install -y --no-install-recommends make python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/onestream
COPY Makefile pyproject.toml README.md LICENSE ./
COPY locks locks
COPY deploy/tensorrt_bindings.py deploy/
COPY onestream onestream
# Triton's image puts its own, other DALI first on Python's path.
ENV PYTHONPATH=
RUN --mount=type=cache,target=/root/.cache/pip make install DEVICE=gpu
COPY . .
ENV NUMBA_CACHE_DIR=/var/cache/onestream/numba
RUN make build DEVICE=gpu --old-file=.venv/.gpu


FROM ${TRITON_IMAGE} AS gpu
COPY --from=gpu-build /opt/onestream /opt/onestream
COPY --from=gpu-build --chown=1000:1000 /var/cache/onestream /var/cache/onestream
WORKDIR /opt/onestream
ENV PATH=/opt/onestream/.venv/bin:$PATH \
    PYTHONPATH= \
    HOME=/tmp \
    XDG_CACHE_HOME=/var/cache \
    ONESTREAM_CACHE=/var/cache/onestream \
    ONESTREAM_RUN_DIR=/tmp/onestream \
    NUMBA_CACHE_DIR=/var/cache/onestream/numba \
    CUDA_CACHE_PATH=/var/cache/onestream/cuda \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 1000:1000
EXPOSE 8000 8001 8002
# Before its first start the server builds the TensorRT engines, which takes minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python3", "deploy/healthcheck.py"]
# NVIDIA's looks for the driver, and takes the container's libraries for a newer CUDA where the driver is older.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "onestream"]
CMD ["serve", "--public", "--host", "0.0.0.0", "--insecure-bind", "--device", "gpu", "--startup-timeout-s", "300", "--verbose"]


# Its configuration, deploy/proxy/, is mounted.
FROM ${DEBIAN_IMAGE} AS proxy
RUN apt-get update \
    && apt-get install -y --no-install-recommends nginx-light \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
EXPOSE 8000 8001 8443
STOPSIGNAL SIGQUIT
ENTRYPOINT ["nginx", "-e", "stderr", "-c", "/etc/onestream/nginx.conf", "-g", "daemon off;"]
