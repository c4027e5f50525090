"""One run of a report: finds what can be compared, measures it, and closes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from onestream.measure.image_files import ImageNames, expand
from onestream.measure.parity import heatmap, photos
from onestream.measure.parity.bench import Bench
from onestream.measure.parity.cascade.cut_regions import PhotoRegion
from onestream.measure.parity.cascade.gathered import GatheredForFirstStage, GatheredForRegions, GatheredForWhole
from onestream.measure.parity.cascade.whole import WholeCascade
from onestream.measure.parity.gathered import Gathered, GatheredForPhotos
from onestream.measure.parity.library_baselines import MODULES
from onestream.measure.parity.own_code import NotATransform
from onestream.measure.parity.patches.gathered import GatheredForPatches
from onestream.measure.parity.patches.source import read
from onestream.measure.parity.report import CascadeReport, Kind, Report
from onestream.measure.parity.served import NotServed
from onestream.measure.parity.subject import CannotCompare, Item, Photo, Refused
from onestream.preprocess import PreprocessError
from onestream.serving.built.certificate import library_versions
from onestream.serving.cascade import Cascade
from onestream.serving.errors import ServingError
from onestream.serving.pipeline import Pipeline
from onestream.serving.stream_options import VideoOptions
from onestream.wire.install import install_command

_UNUSABLE: dict[Kind, str] = {"photo": "images", "frame": "clips", "region": "regions"}

Progress = Callable[[str, int, int | None], None]
"""Takes what is being done, how many photos or frames are done, and of how many (None: not known)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare: ``images``, by default the bundled photos, or ``frames`` frames of each of the ``clips``.

    ``pipeline_file`` may also be what ``patches.source.read`` takes.
    ``names`` tells which files of folders are images, and afterwards how many were passed over.

    ``against`` holds names of libraries (``library_baselines.LIBRARIES``, for clips ``video.library_readers.MODULES``),
    ``MODULE:NAME`` of transforms, or *none*; None takes the libraries installed. Of a cascade *rapidocr* is one of
    these, where it has the same networks. ``heatmap`` is then one file for each stage, ``FILE-STAGE.png``.
    """

    pipeline_file: Path
    images: Sequence[str] = ()
    names: ImageNames = field(default_factory=ImageNames)
    clips: Sequence[Path] = ()
    frames: int = 8
    repository: Path = Path("model_repository")
    url: str | None = None
    serve: bool = False
    against: Sequence[str] | None = None
    heatmap: Path | None = None


def run(options: Options, *, progress: Progress = lambda _text, _done, _total: None) -> Report | CascadeReport:
    """Make the report, of a cascade that of its stages and of the whole. Raises ``CannotCompare``."""
    try:
        return _run(options, progress)
    except (PreprocessError, ServingError, NotServed, NotATransform) as error:
        raise CannotCompare(str(error)) from None


def _run(options: Options, progress: Progress) -> Report | CascadeReport:
    source = read(options.pipeline_file)
    pipeline = source.pipeline
    if options.heatmap is not None:
        heatmap.check_installed()
    with ExitStack() as stack:
        if isinstance(pipeline, Cascade):
            return _run_on_cascade(pipeline, stack, options, progress)
        patches = pipeline.preprocess.for_processor is not None
        if patches and options.clips:
            raise CannotCompare(f"patches are compared on photos; got --video {options.clips[0]}")
        if options.clips:
            return _run_on_clips(pipeline, stack, options, progress)
        found, unreadable = _photos(options.images, options.names)
        gathered = GatheredForPatches(pipeline, stack, source.config) if patches else GatheredForPhotos(pipeline, stack)
        return _report(gathered, found, unreadable, options, progress)


def _run_on_clips(pipeline: Pipeline, stack: ExitStack, options: Options, progress: Progress) -> Report:
    try:
        from onestream.measure.parity.video.frames import Frame, read_clips
        from onestream.measure.parity.video.gathered import GatheredForFrames
    except ImportError as error:
        raise CannotCompare(f"{error.name or error} is not installed: {install_command('video')}") from None
    if options.images:
        raise CannotCompare(f"photos and clips are compared one after the other; got images and {options.clips[0]}")
    clips, unreadable = read_clips(
        options.clips, options=pipeline.video or VideoOptions(), most=options.frames, limits=pipeline.limits
    )
    frames = [Frame(clip, number) for clip in clips for number in clip.numbers]
    return _report(GatheredForFrames(pipeline, stack, clips), frames, unreadable, options, progress)


def _run_on_cascade(cascade: Cascade, stack: ExitStack, options: Options, progress: Progress) -> CascadeReport:
    if options.clips:
        raise CannotCompare(f"{cascade.name} is a cascade, which is compared on photos; got --video {options.clips[0]}")
    found, unreadable = _photos(options.images, options.names)
    whole = GatheredForWhole(cascade, options.repository, stack)
    _check_known(options.against, {**MODULES, **whole.libraries})

    def report(gathered: Gathered[Item], items: Sequence[Item], bad: dict[str, str], picture: Path | None) -> Report:
        known = [name for name in options.against or () if name in gathered.libraries or ":" in name]
        against = None if options.against is None else known
        return _report(gathered, items, bad, replace(options, against=against, heatmap=picture), progress)

    if options.serve:
        progress("starting Triton", 0, None)
        options = replace(options, serve=False, url=whole.start_server(options.repository))
    reference = whole.reference(whole.pipeline.preprocess)
    regions = _regions(cascade, reference, found, progress)
    stages: dict[str, Report] = {}
    for name, pipeline in cascade.pipelines.items():
        picture = options.heatmap and options.heatmap.with_stem(f"{options.heatmap.stem}-{name}")
        if pipeline.preprocess.region is None:
            stages[name] = report(GatheredForFirstStage(pipeline, stack), found, unreadable, picture)
        elif regions[name]:
            stages[name] = report(GatheredForRegions(pipeline, stack), regions[name], {}, picture)
        else:
            whole.not_compared[f"stage {name}"] = "no region of these photos reaches it"
    return CascadeReport(pipeline=cascade.name, stages=stages, whole=report(whole, found, unreadable, None))


def _check_known(against: Sequence[str] | None, libraries: Mapping[str, str]) -> None:
    """Raise ``CannotCompare`` for what no stage of a cascade is compared with; each stage takes what it knows."""
    for name in against or ():
        if name not in libraries and name != "none" and ":" not in name:
            raise CannotCompare(f"--against {name}: of this cascade allowed are {', '.join(libraries)}, and none")


def _regions(
    cascade: Cascade, reference: WholeCascade, found: Sequence[Photo], progress: Progress
) -> dict[str, list[PhotoRegion]]:
    """The regions of photos that each later stage takes, by the reference; none of photos that it refuses."""
    regions: dict[str, list[PhotoRegion]] = {name: [] for name in cascade.stages}
    for number, photo in enumerate(found):
        progress("finding regions", number, len(found))
        try:
            taken = reference.regions(photo)
        except Refused:
            continue
        for name, quads in taken.items():
            regions[name] += [PhotoRegion(photo, place + 1, quads[place : place + 1]) for place in range(len(quads))]
    return regions


def _report(
    gathered: Gathered[Item],
    items: Sequence[Item],
    unreadable: dict[str, str],
    options: Options,
    progress: Progress,
) -> Report:
    definition = gathered.pipeline.preprocess
    network = gathered.network(options.repository)
    gathered.backends()
    if options.serve:
        progress("starting Triton", 0, None)
        gathered.server(gathered.start_server(options.repository))
    elif options.url is not None:
        gathered.server(options.url)
    gathered.other_code(options.against)
    reference = gathered.reference(definition)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress("comparing", done, len(items))

    subjects = gathered.subjects
    measured, bad = Bench(definition, reference, network).measure(subjects, items, on_item=count)
    report = Report(
        pipeline=gathered.pipeline.name,
        kind=gathered.kind,
        colors=gathered.colors,
        definition_digest=gathered.digest,
        versions=library_versions() | gathered.versions,
        photos=[item.name for item in items] + list(unreadable),
        bad_images=unreadable | bad,
        problems=gathered.problems,
        not_compared=gathered.not_compared,
        subjects=measured,
    )
    if not report.compared:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in report.bad_images.items())
        raise CannotCompare(f"none of the {_UNUSABLE[gathered.kind]} can be used: {reasons}")
    if options.heatmap is not None:
        progress("drawing", 0, None)
        seen = [subject for subject, one in zip(subjects, measured, strict=True) if one.stages or one.other_shape]
        heatmap.draw(options.heatmap, report, reference, seen, items, color=definition.color)
    return report


def _photos(images: Sequence[str], names: ImageNames) -> tuple[list[Photo], dict[str, str]]:
    if not images:
        return photos.bundled(), {}
    paths = expand(images, names)
    if not paths:
        raise CannotCompare(names.none_in(images))
    return photos.read(paths)
