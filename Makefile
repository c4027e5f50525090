# Every target does its own set-up. `make` alone lists them.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
# What `install`, `build` and `serve` are for: cpu, or gpu in Triton's container.
DEVICE ?= cpu
# TensorRT's Python bindings for DEVICE=gpu; `none` leaves them out, and ONNX Runtime runs the networks.
TENSORRT ?= $$($(BIN)/python deploy/tensorrt_bindings.py)
# The wheel on PyPI brings CUDA, gigabytes of it. The small CPU build:
# make test TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
BIN := $(VENV)/bin
comma := ,
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Processes that `make test` runs tests in; each file's are in one.
WORKERS ?= 2
INSTALLED := $(VENV)/$(if $(filter gpu,$(DEVICE)),.gpu,.serve)

.DEFAULT_GOAL := help
.PHONY: help demo demo-page test test-slow test-gpu example lint type stubs format bench bench-training bench-video bench-streams bench-overload bench-gpu soak install build parity serve doctor clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.serve  ## build, serve and classify real photos, then stop
	$(BIN)/onestream demo

demo-page: $(VENV)/.page model_repository/classify_fused/1/model.onnx  ## serve, and show what the network sees in a browser
	$(BIN)/onestream demo-page --serve

test: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## run every test that can run here, but the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' --ignore=tests/typings $(PYTEST_ARGS)

test-slow: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## run the slow ones: soaks, kills, suites within suites
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-gpu: $(VENV)/.dev-gpu model_repository/classify_fused/1/model.onnx  ## run every test that needs a GPU; none may be skipped
	ONESTREAM_NO_SKIPS=1 $(BIN)/python -m pytest -m needs_gpu $(PYTEST_ARGS)

example: $(VENV)/.dev  ## train, export and serve a small network, and prove that predictions are equal
	$(BIN)/python examples/train_classifier/train.py $(EXAMPLE_ARGS)

lint: $(VENV)/.dev  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.dev  ## mypy --strict, and the tests of the type stubs
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/typings

stubs: $(VENV)/.dev  ## write the type stubs of GPU libraries anew, from what is installed
	PYTHONPATH=typings $(BIN)/python -m make_stubs

format: $(VENV)/.dev  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench model_repository/classify_fused/1/model.onnx  ## measure with perf_analyzer into benchmarks/results
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-training: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## measure the training loaders
	$(BIN)/python -m benchmarks.training $(BENCH_ARGS)

bench-video: $(VENV)/.dev  ## measure the video loader against decord
	$(BIN)/python -m benchmarks.video_clips $(BENCH_ARGS)

bench-streams: $(VENV)/.dev  ## measure how many video streams are held, and a soak of half an hour
	$(BIN)/python -m benchmarks.streams $(BENCH_ARGS)

bench-overload: $(VENV)/.bench  ## offer half, once, twice and five times what the server can do, with a plot
	$(BIN)/python -m benchmarks.overload $(BENCH_ARGS)

bench-gpu: $(VENV)/.dev-gpu model_repository/classify_fused/1/model.onnx  ## measure on this machine's GPU
	$(BIN)/python -m benchmarks.gpu $(BENCH_ARGS)

soak: $(VENV)/.dev  ## hostile callers, kills and a soak of half an hour, about 75 minutes; `SOAK_ARGS=--help` tells more
	$(BIN)/python -m benchmarks.hostile $(SOAK_ARGS)

install: $(INSTALLED)  ## install what serves; DEVICE=gpu for a GPU

build: model_repository/classify_fused/1/model.onnx  ## write model_repository from pipelines/classify.yaml

parity: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## compare the backends and a server with the reference
	$(BIN)/onestream parity --serve

serve: $(INSTALLED) model_repository/classify_fused/1/model.onnx  ## start the server; stop with Ctrl-C
	$(BIN)/onestream serve

doctor: $(VENV)/.serve  ## what this machine has and lacks
	$(BIN)/onestream doctor

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	rm -f model_repository/*/1/model.onnx model_repository/*/certificate.json

model_repository/classify_fused/1/model.onnx: $(INSTALLED) pipelines/classify.yaml
	$(BIN)/onestream build pipelines/classify.yaml
	@touch $@

$(VENV)/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.10, 3.11 or 3.12 found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv),"; \
		echo "or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; fi
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# One stamp file for each set of packages; pip runs again when pyproject.toml changes.
define install
	@echo "installing $(1) into $(VENV) (1 to 5 minutes the first time)"
	@$(PIP) install -e '.[$(2)]' > $(VENV)/install.log 2>&1 & pip=$$!; \
	while kill -0 $$pip 2>/dev/null; do printf '.'; sleep 2; done; echo; \
	wait $$pip || { tail -n 5 $(VENV)/install.log; \
		echo "pip failed (whole log: $(VENV)/install.log). It needs the network or a mirror, and 3 GB of disk."; exit 1; }
	@touch $@
endef

$(VENV)/.serve: $(VENV)/bin/python pyproject.toml Makefile
	$(call install,the server,cpu)

$(VENV)/.page: $(VENV)/.serve
	$(call install,what the page needs,cpu$(comma)demo)

$(VENV)/.gpu: $(VENV)/bin/python pyproject.toml Makefile deploy/tensorrt_bindings.py
	@bindings="$(TENSORRT)" && if [ "$$bindings" != none ]; then \
		echo "installing $$bindings"; $(PIP) install --quiet --no-deps $$bindings && \
		$(BIN)/python -c 'import tensorrt; print("TensorRT", tensorrt.__version__)'; fi
	$(call install,the GPU server,gpu)

$(VENV)/.dev: $(VENV)/.serve
	@echo "installing $(TORCH) (a minute; with CUDA several, and 6 GB of disk)"
	@$(PIP) install --quiet $(TORCH) && \
	$(PIP) install --quiet --no-deps $(TORCHVISION) efficientnet-lite-pytorch==0.1.0 kserve==0.21.0 || { \
		echo "pip could not install it. The small CPU build:"; \
		echo "  make $(MAKECMDGOALS) TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'"; exit 1; }
	$(call install,the test tools,cpu$(comma)train$(comma)video$(comma)async$(comma)bulk$(comma)demo$(comma)dev$(comma)bench)

$(VENV)/.dev-gpu: $(VENV)/.dev
	$(call install,the GPU libraries,gpu$(comma)gpu-test)

$(VENV)/.bench: $(VENV)/.serve
	$(call install,the benchmark tools,cpu$(comma)bench)
