"""``onestream augment``: what training sees of photos, as one picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

from onestream.cli.exit_codes import EXIT_CANNOT_START, EXIT_FAILED, fail, needs_extras
from onestream.measure.image_files import ImageNames, expand

if TYPE_CHECKING:
    from onestream.preprocess.definition import Definition
    from onestream.preprocess.training.augmentation import Augmentation
    from onestream.preprocess.training.cost import Cost
    from onestream.preprocess.training.detection.coco import CocoFile
    from onestream.preprocess.training.detection.files import DetectionSample
    from onestream.preprocess.training.segmentation.files import Mask
    from onestream.preprocess.training.sheet import Subject
    from onestream.preprocess.training.text.files import TextLine


def augment(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file.")],
    photos: Annotated[
        list[str], typer.Argument(metavar="PHOTOS", help="Images, directories of images, or patterns like '*.jpg'.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The picture to write: PNG or JPEG, by its name.")],
    augmentation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An augmentation as YAML (docs/augmentation.md).  \\[default: box and flip]"),
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPERATION",
            help="In place of a file: an operation by its name, or with settings as YAML, such as "
            "'{op: rotation, degrees: [-30, 30]}'; may be repeated.",
        ),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="COCO's JSON of the photos, whose boxes and keypoints are drawn."),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Masks (docs/training.md), whose classes are drawn: FOLDER/cat.png is that of cat.jpg.",
        ),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines of text in the photos (docs/training.md): shows each line, as it is read, and its text.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, max=100, help="How many variations of each photo.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="As of a loader.")] = 0,
    cell: Annotated[int, typer.Option(min=16, help="Longest side of a photo on the sheet, in pixels.")] = 224,
    backend: Annotated[Literal["dali", "reference"], typer.Option(help="What makes the pixels.")] = "dali",
    cost: Annotated[
        bool, typer.Option("--cost", help="Measure what each operation costs on these photos, and print it.")
    ] = False,
) -> None:
    """Draw a contact sheet: a row a photo, first what serving makes of it, then what training sees in each epoch.

    Prints what was drawn, a line for each; with --cost also what each operation adds to the milliseconds of an image.

    Exits with 1 where a photo cannot be used, 2 where nothing can be drawn.
    """
    if augmentation is not None and operation:
        fail("--augmentation and --operation exclude each other: the file has operations", EXIT_CANNOT_START)
    for option, given in (("--boxes", boxes), ("--masks", masks)):
        if given is not None and lines is not None:
            fail(f"{option} and --lines exclude each other", EXIT_CANNOT_START)
    if cost and lines is not None:
        fail("--cost is of pictures, not of --lines", EXIT_CANNOT_START)
    from onestream.preprocess.errors import BadDataset, BadSample, CannotVary, PreprocessError

    with needs_extras("train"):
        from onestream.preprocess.training.cost import chain_cost
        from onestream.preprocess.training.sheet import contact_sheet, line_sheet
        from onestream.serving.errors import BadPipeline
        from onestream.serving.pipeline import Pipeline
    names = ImageNames()
    paths = expand(photos, names)
    if not paths:
        fail(names.none_in(photos), EXIT_CANNOT_START)
    chain = read_augmentation(augmentation, operation or [])
    measured: Cost | None = None
    try:
        if lines is None:
            definition, pictures = Pipeline.from_file(pipeline).preprocess, _subjects(paths, boxes, masks)
            sheet = contact_sheet(definition, chain, pictures, epochs=epochs, seed=seed, cell=cell, backend=backend)
            if cost:
                measured = chain_cost(definition, chain, pictures, epochs=epochs, seed=seed, backend=backend)
            shown = [subject.name for subject in pictures]
        else:
            definition, listed = _reading(pipeline), _lines(paths, lines)
            sheet = line_sheet(definition, chain, listed, epochs=epochs, seed=seed, cell=cell, backend=backend)
            shown = [f"{line.name} {line.text!r}" for line in listed]
    except (BadPipeline, BadDataset) as error:
        fail(str(error), EXIT_CANNOT_START)
    except BadSample as error:
        fail(str(error), EXIT_FAILED)
    except CannotVary as error:
        fail(f"{augmentation or '--operation'}: {error}", EXIT_CANNOT_START)
    except PreprocessError as error:
        fail(f"{pipeline}: {error}", EXIT_CANNOT_START)
    try:
        sheet.image.save(out)
    except (OSError, ValueError) as error:
        fail(f"--out {out}: {getattr(error, 'strerror', None) or error}", EXIT_CANNOT_START)
    for name, row in zip(shown, sheet.drawn, strict=True):
        for epoch, drawn in enumerate(row):
            typer.echo(f"{name}, epoch {epoch}: {drawn}")
    if measured is not None:
        _show(measured)


def read_augmentation(file: Path | None, operations: list[str]) -> Augmentation:
    """The augmentation of a file, of operations as YAML, or the default; ends the command where it is none."""
    from onestream.preprocess.training.augmentation import Augmentation
    from onestream.preprocess.user_files import BadYaml, describe, read_plain_yaml

    given = "--operation" if file is None else str(file)
    try:
        if file is not None:
            return Augmentation.from_yaml(file.read_text(encoding="utf-8"))
        if not operations:
            return Augmentation()
        read = [read_plain_yaml(text) for text in operations]
        return Augmentation([{"op": one} if isinstance(one, str) else one for one in read])
    except ValidationError as error:
        fail(f"{given}: {describe(error, Augmentation)}", EXIT_CANNOT_START)
    except (BadYaml, OSError, UnicodeDecodeError) as error:
        fail(f"{given}: {getattr(error, 'strerror', None) or error}", EXIT_CANNOT_START)


def _show(cost: Cost) -> None:
    """A line for each operation, as what it adds."""
    typer.echo(f"CPU ms an image, of {cost.images} made one at a time:")
    rows = [("as served", f"{cost.served_ms:.2f}")]
    rows += [(f"+ {name}", f"{added:+.2f}") for name, added in cost.added_ms]
    rows.append(("in all", f"{cost.total_ms:.2f}"))
    for name, value in rows:
        typer.echo(f"  {name:<24}{value:>8}")


def _subjects(paths: list[Path], boxes: Path | None, masks: Path | None) -> list[Subject]:
    """Raises ``BadSample`` for a file that cannot be read, and ``BadDataset`` for boxes that are no COCO file of it."""
    from onestream.preprocess.errors import BadDataset, BadSample
    from onestream.preprocess.training.sheet import Subject

    listed = None if boxes is None else _coco(boxes)
    subjects, any_listed = [], False
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadSample(f"{path}: {error.strerror or error}") from None
        shown = Subject(str(path), data, mask=None if masks is None else _mask(path, data, masks))
        sample = None if listed is None else _sample(path, data, listed)
        if sample is not None:
            shown = replace(shown, boxes=sample.boxes, class_ids=sample.class_ids, keypoints=sample.keypoints)
            any_listed = True
        subjects.append(shown)
    if listed is not None and not any_listed:
        raise BadDataset(f"{boxes} lists none of the photos")
    return subjects


def _coco(boxes: Path) -> CocoFile:
    """With its keypoints; where they cannot be read it says so and leaves them out. Raises ``BadDataset``."""
    from onestream.preprocess.errors import BadDataset
    from onestream.preprocess.training.detection.coco import CocoFile

    try:
        return CocoFile(boxes, keypoints=True)
    except BadDataset as error:
        read = CocoFile(boxes)
        typer.echo(f"keypoints are not drawn: {error}", err=True)
        return read


def _sample(path: Path, data: bytes, listed: CocoFile) -> DetectionSample | None:
    """The objects of a photo. Raises ``BadSample`` naming it where they cannot be used, or are of another size."""
    from onestream.preprocess.errors import BadImage, BadSample
    from onestream.preprocess.limits import Limits

    sample = listed.picture(path)
    if sample is None:
        return None
    try:
        if sample.problem:
            raise BadSample(sample.problem)
        return sample.refuse_other_size(Limits().check(data).oriented_hw)
    except (BadImage, BadSample) as error:
        raise BadSample(f"{path}: {error}") from None


def _mask(path: Path, data: bytes, folder: Path) -> Mask:
    """The mask of a photo. Raises ``BadSample`` naming the photo where it has none that fits, or is bad itself."""
    from onestream.preprocess.errors import BadImage, BadSample
    from onestream.preprocess.limits import Limits
    from onestream.preprocess.training.segmentation.files import SegmentationFiles, SegmentationSample

    files = SegmentationFiles([SegmentationSample(path, folder / f"{path.stem}.png")], [str(one) for one in range(255)])
    try:
        return files.mask(0, Limits().check(data).oriented_hw)
    except (BadImage, BadSample) as error:
        raise BadSample(f"{path}: {error}") from None


def _reading(pipeline: Path) -> Definition:
    """The definition of a pipeline's stage that reads lines: the last one that begins with ``region``."""
    from onestream.preprocess.operations import Region
    from onestream.serving.cascade import Cascade, read_file
    from onestream.serving.errors import BadPipeline

    read = read_file(pipeline)
    stages = [stage.preprocess for stage in read.stages.values()] if isinstance(read, Cascade) else [read.preprocess]
    definitions = [one for one in stages if isinstance(one.source, Region)]
    if not definitions:
        raise BadPipeline(f"{pipeline}: no stage begins with region; --lines needs one that reads lines of text")
    return definitions[-1]


def _lines(paths: list[Path], file: Path) -> list[TextLine]:
    """The lines of the photos. Raises ``BadDataset`` for a file that is no list, and ``BadSample`` for a bad line."""
    from onestream.preprocess.errors import BadDataset, BadSample
    from onestream.preprocess.training.text.json_lines import read_text_lines

    wanted = {path.resolve() for path in paths}
    found = [line for line in read_text_lines(file).samples if line.path.resolve() in wanted]
    for line in found:
        if line.problem:
            raise BadSample(f"{line.name}: {line.problem}")
    if not found:
        raise BadDataset(f"{file} lists no line of the photos")
    return found
