# Every target does its own set-up. `make` alone lists them.
# The newest Python comes last: the embedded Triton does not run on it.
PYTHON ?= $(shell for newest in 12 13; do for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $$newest))" 2>/dev/null && { echo $$p; exit; }; \
	done; done)
VENV ?= .venv
# What `install`, `build` and `serve` are for: cpu, or gpu in Triton's container.
DEVICE ?= cpu
# TensorRT's Python bindings for DEVICE=gpu; `none` leaves them out, and ONNX Runtime runs the networks.
TENSORRT ?= $$($(BIN)/python deploy/tensorrt_bindings.py $(TENSORRT_IF_THERE))
# Where PyTorch comes from on a machine without a GPU: its own index has builds without CUDA, a sixth of the size.
# PyPI has builds with CUDA only; an empty TORCH_INDEX takes those.
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
# What the tests of the proxy, the demo page, alerts and RTSP run.
DEBIAN_PACKAGES := nginx-light chromium prometheus gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good \
	gstreamer1.0-plugins-bad python3-gi
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Processes that run tests, one more than cores, since many wait for servers; each file's are in one.
WORKERS ?= 3
# Processes share compiled files, whatever the environment says.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
COMPILED := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python deploy/compile_loops.py
STUB := $(VENV)/libexec/triton_python_backend_stub
INSTALLED := $(VENV)/$(if $(filter gpu,$(DEVICE)),.gpu,.serve)

.DEFAULT_GOAL := help
.PHONY: help demo demo-page test test-slow test-night test-gpu mutations example lint type stubs sync presets pages format bench bench-training bench-augmentation bench-video bench-boxes bench-reading bench-streams bench-overload bench-gpu soak install install-train install-numpy2 install-debian lock update build parity serve doctor clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.serve  ## build, serve, classify real photos and find objects in them, then stop
	$(BIN)/onestream demo

demo-page: $(VENV)/.page model_repository/classify_fused/1/model.onnx  ## serve, and show what the network sees in a browser
	$(BIN)/onestream demo page --serve

test: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## run every test that can run here, but the slow ones
	@$(COMPILED)
	$(PYTEST) -n $(WORKERS) -m 'not slow and not night' --ignore=tests/typings $(PYTEST_ARGS)

test-slow: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## run the slow ones: kills, floods, Ray, every form of a pipeline on a real server
	@$(COMPILED)
	$(PYTEST) -n $(WORKERS) -m 'slow and not night' $(PYTEST_ARGS)

test-night: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## run all, with 500 new examples of each property: hours
	HYPOTHESIS_PROFILE=night $(PYTEST) -n $(WORKERS) --timeout 3600 $(PYTEST_ARGS)

mutations: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## plant faults in the product, one by one, and see which the tests find: an hour
	$(BIN)/python tests/mutations $(MUTATIONS_ARGS)

test-gpu: $(VENV)/.dev-gpu model_repository/classify_fused/1/model.onnx  ## run every test that needs a GPU; none may be skipped
	ONESTREAM_NO_SKIPS=1 $(PYTEST) -m needs_gpu $(PYTEST_ARGS)

example: $(VENV)/.dev  ## train, export and serve a small network, and prove that predictions are equal
	$(BIN)/python examples/train_classifier/train.py $(EXAMPLE_ARGS)

install-debian:  ## install the programs of Debian that tests run, which are skipped without them; needs root
	apt-get update -q
	apt-get install -y -q --no-install-recommends $(DEBIAN_PACKAGES)

lint: $(VENV)/.dev  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.dev  ## mypy --strict, and the tests of the type stubs
	$(BIN)/mypy
	$(PYTEST) tests/typings

stubs: $(VENV)/.dev  ## write the type stubs of GPU libraries anew, from what is installed
	PYTHONPATH=typings $(BIN)/python -m make_stubs

sync: $(VENV)/.dev  ## write the client's blocking half anew, from the half for event loops
	$(BIN)/python -I client/make_sync.py

presets: $(VENV)/.dev  ## write the preprocessing of torchvision's and timm's models anew, from what is installed
	$(BIN)/python -m generators.presets

pages: $(VENV)/.dev  ## write the generated pages anew: fields of a pipeline file, imports, results, the README's table
	$(BIN)/python -m generators.pipeline_page > $(VENV)/pipeline.md && mv $(VENV)/pipeline.md docs/pipeline.md
	$(BIN)/python -m generators.import_page > $(VENV)/import.md && mv $(VENV)/import.md docs/import.md
	$(BIN)/python -m benchmarks.report

format: $(VENV)/.dev  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench model_repository/classify_fused/1/model.onnx  ## measure with perf_analyzer into benchmarks/results
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-training: $(VENV)/.dev model_repository/classify_fused/1/model.onnx  ## measure the training loaders
	$(BIN)/python -m benchmarks.training $(BENCH_ARGS)

bench-augmentation: $(VENV)/.dev  ## measure random chains in the training loaders against torchvision
	$(BIN)/python -m benchmarks.training.augmented $(BENCH_ARGS)

bench-video: $(VENV)/.dev  ## measure the video loader against decord
	$(BIN)/python -m benchmarks.training.video_clips $(BENCH_ARGS)

bench-boxes: $(VENV)/.bench  ## count the boxes that every backend and a server share with the reference
	$(BIN)/python -m benchmarks.boxes $(BENCH_ARGS)

bench-reading: $(VENV)/.bench  ## count what is read wrong, beside rapidocr with the same networks
	$(BIN)/python -m benchmarks.reading $(BENCH_ARGS)

bench-streams: $(VENV)/.dev  ## measure how many video streams are held, and a soak of half an hour
	$(BIN)/python -m benchmarks.streams $(BENCH_ARGS)

bench-overload: $(VENV)/.bench  ## offer half, once, twice and five times what the server can do, with a plot
	$(BIN)/python -m benchmarks.overload $(BENCH_ARGS)

bench-gpu: $(VENV)/.dev-gpu model_repository/classify_fused/1/model.onnx  ## measure on this machine's GPU
	$(BIN)/python -m benchmarks.gpu $(BENCH_ARGS)

soak: $(VENV)/.dev  ## hostile callers, kills and a soak of half an hour, about 80 minutes; `SOAK_ARGS=--help` tells more
	$(BIN)/python -m benchmarks.hostile $(SOAK_ARGS)

install: $(INSTALLED)  ## install what serves; DEVICE=gpu for a GPU

install-train: $(VENV)/.train  ## install what trains and asks a server, with NumPy 2; it serves nothing

install-numpy2: $(VENV)/.serve $(STUB)  ## serve with NumPy 2: builds Triton's process for Python models anew, 3 minutes (docs/operations.md)
	$(PIP) install --no-deps 'numpy>=2,<2.5'

lock: $(VENV)/.dev  ## write locks/ anew for what pyproject.toml says; versions that it still allows stay
	$(foreach name,$(LOCKS),$(call compile,$(name)))

update: $(VENV)/.dev  ## write locks/ anew with the newest versions that pyproject.toml allows: once a week, then `make test`
	@$(MAKE) --no-print-directory lock LOCK_ARGS=--upgrade

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
	@echo "compiling loops (a minute the first time)"
	@$(COMPILED)
	$(BIN)/onestream build pipelines/classify.yaml
	@touch $@

$(VENV)/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.10 to 3.13 found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv),"; \
		echo "or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; fi
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# Each lock holds the extras and dependency groups of pyproject.toml that are named here, for every Python that they support.
# All take the versions of `dev-gpu`, so that what serves is what was tested; only `train` is by itself, with NumPy 2. `page` and
# `bench` are installed over `serve`, `dev-gpu` over `dev`.
LOCKS := dev-gpu dev serve page bench gpu train
dev-gpu_EXTRAS := cpu gpu train
dev-gpu_GROUPS := gpu-test
dev_EXTRAS := cpu train video bulk heif openvino ray detect demo
dev_GROUPS := bench dev
serve_EXTRAS := cpu
page_EXTRAS := demo
bench_GROUPS := bench
gpu_EXTRAS := gpu
train_EXTRAS := train video bulk

# What holds the same files as a package of the extra `gpu`.
SHADOWED := onnxruntime nvidia-dali-cuda120 $(addprefix nvidia-,nvimgcodec-cu12 nvjpeg-cu12 nvjpeg2k-cu12 nvtiff-cu12 libnvcomp-cu12)
SHADOWING := onnxruntime-gpu nvidia-dali-cuda130 $(addprefix nvidia-,nvimgcodec-cu13 nvjpeg nvjpeg2k-cu13 nvtiff-cu13 libnvcomp-cu13)
# $(1): the lock. PyTorch is left out of all but `dev-gpu`, with the CUDA libraries that PyPI's build asks for, which ONNX Runtime
# needs in `gpu` too.
define compile
$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --annotation-style line $(LOCK_ARGS) \
	$(addprefix --extra ,$($(1)_EXTRAS)) $(addprefix --group ,$($(1)_GROUPS)) \
	pyproject.toml locks/build.in $(if $(filter dev,$(1)),locks/dev.in) -c locks/torch.txt \
	$(if $(filter dev-gpu,$(1)),$(addprefix --no-emit-package ,$(SHADOWED)),--no-emit-package torch --no-emit-package torchvision) \
	$(if $(filter dev-gpu gpu,$(1)),,--excludes locks/cuda.txt) \
	$(if $(filter dev-gpu train,$(1)),,-c locks/dev-gpu.txt) $(if $(filter serve page bench gpu,$(1)),-c locks/dev.txt) \
	-o locks/$(1).txt

endef

# One stamp file for each lock; pip runs again when the lock or pyproject.toml changes. Nothing is resolved here: a lock is
# complete, and --no-deps lets it leave PyTorch out; what has no wheel is built by the locked setuptools. $(1): what it is for; $(2): the lock.
define install
	@echo "installing $(1) into $(VENV) (1 to 5 minutes the first time)"
	@{ $(PIP) install --no-build-isolation --require-hashes --no-deps -r locks/$(2).txt && \
		$(PIP) install --no-build-isolation --no-deps -e .; } > $(VENV)/install.log 2>&1 & pip=$$!; \
	while kill -0 $$pip 2>/dev/null; do printf '.'; sleep 2; done; echo; \
	wait $$pip || { tail -n 5 $(VENV)/install.log; \
		echo "pip failed (whole log: $(VENV)/install.log). It needs the network or a mirror, and 3 GB of disk."; exit 1; }
endef

# After a lock, which holds what PyTorch needs besides CUDA. PyTorch itself pins the versions of that.
define install-torch
	@if [ -n "$(TORCH_INDEX)" ]; then \
		echo "installing PyTorch without CUDA (a minute)"; \
		$(PIP) install --index-url $(TORCH_INDEX) -r locks/torch.txt > $(VENV)/install-torch.log 2>&1 && exit; \
		echo "$(TORCH_INDEX) has no such builds or cannot be reached"; fi; \
	echo "installing PyPI's PyTorch, with CUDA where PyPI's mirror has no other (minutes, and 6 GB of disk)"; \
	$(PIP) install --quiet -r locks/torch.txt
endef

$(VENV)/.serve: $(VENV)/bin/python locks/serve.txt pyproject.toml Makefile
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { \
		echo "The embedded Triton needs NumPy 1, which Python 3.13 lacks. Install Python 3.10 to 3.12, and name it after"; \
		echo "make clean: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS). Without a server: make install-train"; exit 1; }
	$(call install,the server,serve)
	@touch $@

$(STUB): $(VENV)/bin/python deploy/build_stub.sh
	deploy/build_stub.sh $(abspath $(BIN)/python) $(abspath $@)

$(VENV)/.page: $(VENV)/.serve locks/page.txt
	$(call install,what the page needs,page)
	@touch $@

$(VENV)/.bench: $(VENV)/.serve locks/bench.txt
	$(call install,the benchmark tools,bench)
	@touch $@

# TensorRT's bindings, of the library that is there: after a lock, whose setuptools builds them.
define install-tensorrt
	@bindings="$(TENSORRT)" && if [ "$$bindings" != none ]; then \
		echo "installing $$bindings"; $(PIP) install --quiet --no-build-isolation --no-deps $$bindings && \
		$(BIN)/python -c 'import tensorrt; print("TensorRT", tensorrt.__version__)'; fi
endef

$(VENV)/.gpu: $(VENV)/bin/python locks/gpu.txt pyproject.toml Makefile deploy/tensorrt_bindings.py
	$(call install,the GPU server,gpu)
	$(call install-tensorrt)
	@touch $@

$(VENV)/.train: $(VENV)/bin/python locks/train.txt locks/torch.txt pyproject.toml Makefile
	$(call install,the loaders and the client,train)
	$(call install-torch)
	@touch $@

$(VENV)/.dev: $(VENV)/.serve locks/dev.txt locks/torch.txt
	$(call install,the test tools,dev)
	$(call install-torch)
	@touch $@

# Without TensorRT on the machine the suite runs the other engines. Packages with the same files go first, both of them: to remove
# one damages the other.
$(VENV)/.dev-gpu: TENSORRT_IF_THERE := --if-there
$(VENV)/.dev-gpu: $(VENV)/.dev locks/dev-gpu.txt deploy/tensorrt_bindings.py
	@$(PIP) uninstall --quiet --yes $(SHADOWED) $(SHADOWING)
	$(call install,the GPU libraries,dev-gpu)
	$(call install-tensorrt)
	@touch $@
