"""The repository of a pipeline, computed from the pipeline and its network.

NAME              ensemble: NAME_preprocess, NAME_model, NAME_postprocess
NAME_fused        the same in one process
NAME_video        streams, where the pipeline takes them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from onestream.postprocess.network import NetworkOutput
from onestream.serving.building import forms
from onestream.serving.building.repository import (
    Repository,
    ServedModel,
    Terms,
    answer_of,
    beside,
    on_gpu,
    pixels_of,
    small_pixels,
    stream_model,
    tensors_of,
)
from onestream.serving.built.memory_pool import usual_queue
from onestream.serving.built.triton_config import (
    INSTANCES_PARAMETER,
    Device,
    Ensemble,
    Model,
    Placement,
    Step,
    StreamModel,
    Tensor,
    Warmup,
)
from onestream.serving.built.versions import VERSION_OF
from onestream.serving.engine.base import EngineTensor
from onestream.serving.engine.table import ENGINES, names_of
from onestream.serving.errors import BadPipeline
from onestream.serving.graph.network_inputs import EXAMPLE_SIDE
from onestream.serving.pipeline import BACKGROUND_FILE, Pipeline
from onestream.wire.kinds import KIND_PARAMETER
from onestream.wire.limits import (
    MAX_BODY_BYTES_PARAMETER,
    MAX_INPUT_VALUES_PARAMETER,
    MAX_PIXELS_PARAMETER,
    PICTURES_PARAMETER,
    TIMEOUT_PARAMETER,
)
from onestream.wire.tensor_names import IMAGE, IMAGE_SIZE, PIXELS_OF, VIDEO

_SIZES = ("image_size", "image_size_wh", "image_scale")
"""The sources of inputs by which a network answers in pixels of the picture."""


def plan(
    pipeline: Pipeline,
    outputs: Sequence[NetworkOutput],
    *,
    inputs: Sequence[EngineTensor] = (),
    outputs_vary: bool = False,
    labels: str | None,
    background: bytes | None = None,
    version_of: str | None = None,
) -> Repository:
    """Compute the repository of a pipeline from its network's outputs, and its ``inputs`` beside the pixels.

    ``outputs_vary``: the size of an output follows that of the picture.

    ``labels`` is the text of the labels file, ``background`` the content of the file that a matte names.
    ``version_of`` names the pipeline that this one is a later version of (``onestream.serving.built.versions``).

    Raises ``BadNetwork`` where the outputs do not suit the postprocessing, ``BadPipeline`` where the labels, the
    activation or the inputs do not.
    """
    name, definition, options = pipeline.name, pipeline.preprocess, pipeline.serving
    postprocess = pipeline.postprocess
    network_tensors = tensors_of(outputs)
    terms = Terms.of(pipeline.limits, options)
    pixels = pixels_of(definition)
    is_free = -1 in pixels.dims
    if is_free and pipeline.video:
        raise BadPipeline(
            "video: frames of streams share batches, and the definition's output size depends on the picture; end its "
            "geometry with center_crop, pad, letterbox or an exact resize"
        )
    postprocess = postprocess.suited_to(outputs)
    pipeline = pipeline.model_copy(update={"postprocess": postprocess})
    results = answer_of(postprocess, definition, outputs, labels)
    others = tuple(Tensor(one.name, one.dtype, one.dims) for one in inputs)
    more_pixels = tuple(one for one in others if one.name.startswith(PIXELS_OF))
    more_images = tuple(Tensor(one.name.removeprefix(PIXELS_OF), "uint8", (-1,)) for one in more_pixels)
    values = tuple(one for one in others if one.name != IMAGE_SIZE and one not in more_pixels)
    asked = (*more_images, *values)
    takes_size = len(more_pixels) + len(values) < len(others)
    # The size of each picture, for what is mapped back to it, and for the network.
    size = (Tensor(IMAGE_SIZE, "int32", (2,)),)
    size_after = size if postprocess.takes_image_size else ()
    size_before = size if size_after or takes_size else ()
    between = {tensor.name: f"preprocess/{tensor.name}" for tensor in size_before}
    network_outputs = {out.name: f"network/{out.name}" for out in outputs}
    _check_inputs(pipeline, asked, [*between.values(), *network_outputs.values(), *(one.name for one in results)])

    batch = options.max_batch_size
    stamp = {"definition": definition.canonical_json(), "definition_digest": definition.digest, "pipeline": name}
    if version_of is not None:
        stamp[VERSION_OF] = version_of
    limits, per_core, python_cpu, image = terms.limits, terms.per_core, terms.python_cpu, terms.image
    input_limit = {}
    if any(-1 in one.dims for one in values):
        input_limit = {MAX_INPUT_VALUES_PARAMETER: str(pipeline.limits.max_input_values)}
    pictures = {PICTURES_PARAMETER: ",".join(one.name for one in more_images)} if more_images else {}
    # The names of classes lie in a file beside each model.
    after = {
        "postprocess": postprocess.model_dump_json(exclude={"labels", "characters"}),
        "network_outputs": ",".join(out.name for out in outputs),
        KIND_PARAMETER: postprocess.kind,
    }
    # A machine with a GPU reads config.pbtxt, any other configs/cpu.pbtxt.
    gpu = options.gpu
    if gpu.network_precision not in ENGINES[gpu.engine].precisions_on_triton:
        able = names_of(lambda engine: gpu.network_precision in engine.precisions_on_triton)
        raise BadPipeline(
            f"serving.gpu: Triton's {gpu.engine} backend runs model.onnx as it is, which is float32; precision "
            f"{gpu.network_precision} needs engine {able}, or --form dali-backend"
        )
    # On a GPU memory is allocated once: of other sizes a machine with a GPU runs everything on its CPU.
    is_on_cpu = is_free or outputs_vary or any(-1 in one.dims for one in others)
    python_gpu, network_gpu = (python_cpu, python_cpu) if is_on_cpu else on_gpu(options)
    bound = usual_queue(gpu.max_batch_size) if gpu.max_queue_size == "auto" else gpu.max_queue_size
    if bound and not is_on_cpu:
        # Two instances, since one would stall behind a bound (``Placement``); TensorRT's share the weights.
        network_gpu = replace(network_gpu, max_queue_size=bound, instances=max(2, network_gpu.instances))
    fused_cpu, fused_per_core = python_cpu, dict[str, str]()
    if options.cpu_instances == "cores" and python_cpu.max_queue_size:
        # Behind a bounded queue a process has nothing to do for a moment after each batch; one more uses that moment.
        fused_cpu = replace(python_cpu, instances=python_cpu.instances + 1)
        fused_per_core = {INSTANCES_PARAMETER: "cores+1"}

    def model(
        role: str,
        inputs: tuple[Tensor, ...],
        produced: tuple[Tensor, ...],
        placements: dict[Device, Placement],
        warmup: Warmup,
        parameters: dict[str, str],
    ) -> Model:
        return Model(
            f"{name}_{role}",
            inputs,
            produced,
            placements,
            max_queue_ms=options.max_queue_ms,
            warmup=warmup,
            parameters={**stamp, **parameters},
        )

    names_classes = labels is not None and postprocess.ranks_classes
    labelled = _with_labels_file(network_tensors) if names_classes else network_tensors
    images = (image, *(replace(one, ragged=True) for one in more_images))
    preprocess = model(
        "preprocess",
        images,
        (pixels, *more_pixels, *size_before),
        {"cpu": python_cpu, "gpu": python_gpu},
        replace(terms.photo, tensors=images),
        limits | pictures | per_core,
    )
    network = model(
        "model",
        (pixels, *others),
        labelled,
        {"cpu": python_cpu, "gpu": network_gpu},
        Warmup((small_pixels(definition), *others), ones=_shapes_of_ones(others, pipeline.limits.max_input_values)),
        per_core | ({"limits": limits["limits"]} if input_limit else {}),
    )
    last = model(
        "postprocess",
        (*network_tensors, *size_after),
        results,
        # It takes what the steps before it let through, without a limit of its own.
        {
            "cpu": Placement("python", "cpu", batch, python_cpu.instances if postprocess.takes_long else 1),
            "gpu": Placement("python", "cpu", gpu.max_batch_size),
        },
        Warmup((*network_tensors, *size_after)),
        after
        | ({INSTANCES_PARAMETER: per_core[INSTANCES_PARAMETER]} if postprocess.takes_long else {})
        | ({"limits": limits["limits"]} if postprocess.takes_image_size else {}),
    )
    fused = model(
        "fused",
        (*images, *values),
        results,
        {"cpu": fused_cpu, "gpu": fused_cpu if is_on_cpu else python_gpu},
        replace(
            terms.photo,
            tensors=(*images, *values),
            ones=_shapes_of_ones(values, pipeline.limits.max_input_values),
        ),
        limits | pictures | input_limit | per_core | fused_per_core | after,
    )
    network_inputs = {one.name: between.get(one.name, one.name) for one in (pixels, *others)}
    last_inputs = network_outputs | {one.name: between[one.name] for one in size_after}
    ensemble = Ensemble(
        name,
        (Tensor(IMAGE, "uint8", (-1,)), *asked),
        results,
        (
            Step(
                preprocess.name,
                {one.name: one.name for one in images},
                {one.name: one.name for one in (pixels, *more_pixels)} | between,
            ),
            Step(network.name, network_inputs, network_outputs),
            Step(last.name, last_inputs, {tensor.name: tensor.name for tensor in results}),
        ),
        min(batch, gpu.max_batch_size),
        {
            **stamp,
            **{name: limits[name] for name in (MAX_BODY_BYTES_PARAMETER, MAX_PIXELS_PARAMETER, TIMEOUT_PARAMETER)},
            **pictures,
            **input_limit,
            KIND_PARAMETER: postprocess.kind,
        },
    )
    of_images, own = "onestream.serving.models.image", beside(definition, labels)
    served = [
        ServedModel(ensemble, None, beside(definition), ("ensemble",)),
        ServedModel(preprocess, (of_images, "Preprocess"), beside(definition), ("ensemble",)),
        ServedModel(network, (of_images, "Network"), own, ("ensemble", forms.VIDEO)),
        ServedModel(last, (of_images, "Postprocess"), own, ("ensemble",)),
        ServedModel(fused, (of_images, "Fused"), own, ("fused",)),
    ]
    if pipeline.video:
        of_video = {"network_inputs": IMAGE_SIZE} if takes_size else {}
        video = _video(
            pipeline,
            results,
            stamp | after | of_video,
            network_batch=min(batch, gpu.max_batch_size),
            is_on_cpu=is_on_cpu,
        )
        if background is not None:
            own = {**own, BACKGROUND_FILE: background}
        served.append(ServedModel(video, ("onestream.serving.video.model", "Video"), own, (forms.VIDEO,)))
    return forms.planned(served, options)


def _shapes_of_ones(tensors: Sequence[Tensor], most_values: int) -> dict[str, tuple[int, ...]]:
    """What a network is warmed up with: as the build ran it, where the limit of values allows that."""
    for side in range(EXAMPLE_SIDE, 0, -1):
        shapes = {one.name: tuple(side if size < 0 else size for size in one.dims) for one in tensors}
        if all(prod(shapes[one.name]) <= most_values for one in tensors if -1 in one.dims):
            break
    return shapes


def _check_inputs(pipeline: Pipeline, asked: Sequence[Tensor], tensors: Sequence[str]) -> None:
    """Raise ``BadPipeline`` where a network's inputs beside its pixels cannot be served.

    ``asked`` come with a request, into an ensemble whose other ``tensors`` have these names.
    """
    kind = pipeline.postprocess.kind
    names = [one.name for one in asked]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadPipeline(
            f"network_inputs: {twice[0]} is a picture and a value of the request; name the picture otherwise"
        )
    sized = [item for item in pipeline.network_inputs.items() if item[1] in _SIZES]
    if sized and pipeline.postprocess.takes_image_size and IMAGE_SIZE in tensors:
        name, source = sized[0]
        raise BadPipeline(
            f"network_inputs.{name}: {source}: postprocess {kind} maps what it answers from the network's input to the "
            "picture itself; give the network numbers, or take kind raw"
        )
    for one in asked:
        if one.name in tensors:
            raise BadPipeline(
                f"network_inputs.{one.name}: with postprocess {kind} another tensor of the pipeline has this name; "
                f"give the network's input another, none of {', '.join(tensors)}"
            )
        if pipeline.video:
            raise BadPipeline(
                f"video: frames come without {one.name}; streams take a network whose network_inputs hold no request "
                "and no other picture"
            )


def _video(
    pipeline: Pipeline,
    results: tuple[Tensor, ...],
    parameters: dict[str, str],
    *,
    network_batch: int,
    is_on_cpu: bool,
) -> StreamModel:
    """The model of a pipeline's video streams, from which also encoded frames may leave."""
    options = pipeline.video
    assert options is not None
    if options.output:
        if not pipeline.postprocess.leaves_with_pictures:
            results = ()
            parameters = {name: value for name, value in parameters.items() if name != KIND_PARAMETER}
        results = (Tensor(VIDEO, "uint8", (-1,)), *results)
    return stream_model(
        pipeline.name,
        results,
        options,
        parameters,
        network_batch=network_batch,
        on_gpu=options.decode != "cpu" and not is_on_cpu,
        gpu=next(iter(pipeline.serving.gpu.gpu_numbers), 0),
    )


def _with_labels_file(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    first = tensors[0]
    return (Tensor(first.name, first.dtype, first.dims, labels_file="labels.txt"), *tensors[1:])
