"""The README.md that is written beside the models of the stock form. The same for every pipeline."""

README = """\
# Models for the unmodified Triton container

Written by `onestream build --form dali-backend`. Nothing of onestream is needed to serve them: every `NAME` is an
ensemble of `NAME_preprocess` (Triton's DALI backend; `1/dali.py` is serialized when it loads) and `NAME_model`
(TensorRT or ONNX Runtime; softmax and top-k are part of the network).

## Serve

YY.MM is one Triton release, 26.03 or newer. Where its DALI is older than 2.2, images are decoded whole, and WebP files
with an EXIF orientation come out wrong:

    docker run --rm nvcr.io/nvidia/tritonserver:YY.MM-py3 python3 -c 'import nvidia.dali as d; print(d.__version__)'

Where a `NAME_model/build_plan.sh` is there, make its plan first, on the GPU that will serve. A plan fits one TensorRT
version and one kind of GPU:

    docker run --rm --gpus all -v "$PWD:/models" nvcr.io/nvidia/tensorrt:YY.MM-py3 sh /models/NAME_model/build_plan.sh

With a GPU:

    docker run --rm --gpus all -v "$PWD:/models:ro" -p 127.0.0.1:8000-8002:8000-8002 \\
        nvcr.io/nvidia/tritonserver:YY.MM-py3 tritonserver --model-repository=/models

Without one, leave out `--gpus all` and add `--model-config-name=cpu` at the end; `configs/cpu.pbtxt` says how many
instances run.

## What a request gives

`image`, UINT8 [1, bytes], is one encoded file; many images are many requests, which Triton batches. `scores` and
`class_ids` come back best first. `labels` come with ONNX Runtime. TensorRT has no strings: use `class_ids` with the
lines of `NAME_model/labels.txt`, counted from 0. Triton's `label_filename` cannot do that, since it names by position
and the positions are ranks here.

## What this form cannot promise

- **On a GPU a bad image fails every request of its batch.** On a CPU images run one by one, and it fails alone.
- **Errors are Triton's own**: a bad image, too, is answered with UNKNOWN or INTERNAL, in the words of DALI and with
  file paths of the server. Do not pass them on.
- **Limits come late and fail like a bad image.** Bytes and pixels are checked before decoding, but Triton has read the
  whole body by then: bound it in a proxy. `limits.formats` is not checked: what DALI decodes is accepted.
- **Unclear metadata may turn an image or fail it**: a second EXIF block, a malformed orientation entry, and in WebP an
  EXIF block with JPEG's prefix or after a chunk of odd length.
- **Nobody checks at load that the files belong together.** Each model carries the definition and its digest
  (`definition.json` and `parameters` of its configuration); build again rather than mix.
- **Without a GPU driver every batch must hold one image** (`preferred_batch_size: 1` in `configs/cpu.pbtxt`): the DALI
  backend copies larger ones with CUDA and fails all of them.

Use it where the container may not be changed and the images are known to be good. Otherwise the default form
(`onestream build`) isolates bad images, tells errors apart and is watched by `onestream serve`.
"""
