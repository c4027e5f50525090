"""Faults of the wire contract, the postprocessing, the client, the measurements and the commands."""

from __future__ import annotations

from planted import Fault

_MESSAGES = ("tests/wire/test_video_messages.py",)

_WIRE = (
    Fault(
        name="priorities-normal-and-low-exchanged",
        file="wire/priority.py",
        old='{"high": 1, "normal": 2, "low": 3}',
        new='{"high": 1, "normal": 3, "low": 2}',
        tests=("tests/wire/test_priority.py",),
    ),
    Fault(
        name="newer-version-of-streams-taken",
        file="wire/video.py",
        old='if header.get("version") != VERSION:',
        new='if header.get("version", 0) < VERSION:',
        tests=_MESSAGES,
    ),
    Fault(
        name="keyframe-read-as-discarded",
        file="wire/video.py",
        old="bool(flags & 2)",
        new="bool(flags & 3)",
        tests=_MESSAGES,
    ),
    Fault(
        name="matroska-length-without-its-head",
        file="wire/truncation.py",
        old="return None if length is None else at + length",
        new="return None if length is None else length",
        tests=("tests/wire/test_truncation.py",),
    ),
    Fault(
        name="shorter-runs-of-masks-longer",
        file="wire/run_lengths.py",
        old="    counts -= ((codes[ends] & _SIGN) != 0) * (1 << (_BITS * lengths))\n",
        new="",
        tests=("tests/postprocess/test_object_shapes.py",),
    ),
)

_POSTPROCESS = (
    Fault(
        name="points-beyond-the-picture",
        file="postprocess/kinds/keypoints.py",
        old=".clip(0, mapping.source_hw[::-1])",
        new="",
        tests=("tests/postprocess/test_object_shapes.py",),
    ),
    Fault(
        name="lines-to-points-that-are-not-shown",
        file="postprocess/kinds/keypoints.py",
        old="np.nonzero(seen[:, joined].all(axis=2))",
        new="np.nonzero(seen[:, joined].any(axis=2))",
        tests=("tests/postprocess/test_drawing.py",),
    ),
    Fault(
        name="turned-boxes-of-other-classes-suppressed",
        file="postprocess/detection/suppression.py",
        old="            if class_aware and class_ids[one] != class_ids[other]:\n                continue\n",
        new="",
        tests=("tests/postprocess/test_object_shapes.py",),
    ),
    Fault(
        name="masks-half-a-pixel-off",
        file="postprocess/detection/masks.py",
        old="(scale / 2 + offset) * size",
        new="offset * size",
        tests=("tests/postprocess/test_object_shapes.py",),
    ),
    Fault(
        name="boxes-at-the-threshold-suppressed",
        file="postprocess/detection/suppression.py",
        old="if intersection / union > iou_threshold:",
        new="if intersection / union >= iou_threshold:",
        tests=("tests/postprocess/test_suppression.py",),
    ),
    Fault(
        name="of-equal-scores-the-higher-class",
        file="postprocess/kinds/classification.py",
        old='class_ids = np.argsort(-values, axis=1, kind="stable")[:, :k]',
        new='class_ids = np.argsort(values, axis=1, kind="stable")[:, ::-1][:, :k]',
        tests=("tests/postprocess/test_classification.py",),
    ),
    Fault(
        name="blank-does-not-part-equal-characters",
        file="postprocess/text/decoding.py",
        old="            before = own\n",
        new="            if own != _BLANK:\n                before = own\n",
        tests=("tests/postprocess/test_text.py",),
    ),
    Fault(
        name="levels-of-masks-truncated",
        file="postprocess/segmentation.py",
        old="levels: Levels = (known * np.float32(255) + np.float32(0.5)).astype(np.uint8)",
        new="levels: Levels = (known * np.float32(255)).astype(np.uint8)",
        tests=("tests/postprocess/test_segmentation.py",),
    ),
)

_CLIENT = (
    Fault(
        name="retries-with-the-whole-time",
        file="client/_requests.py",
        old="return call(deadline.require_s())",
        new="return call(deadline.timeout_s)",
        tests=("tests/client/test_client_retries.py",),
    ),
    Fault(
        name="region-that-the-server-reads-used-again",
        file="client/_transports/shared_memory.py",
        old="is_reusable = not isinstance(error, _UNANSWERED)",
        new="is_reusable = not isinstance(error, ClientClosed)",
        tests=("tests/client/test_client_shared_memory.py",),
    ),
    Fault(
        name="bitmap-with-red-and-blue-exchanged",
        file="client/images.py",
        old="self.pixels[::-1, :, 2 - channel]",
        new="self.pixels[::-1, :, channel]",
        tests=("tests/client/test_client_images.py",),
    ),
    Fault(
        name="error-of-the-source-swallowed",
        file="client/ordered.py",
        old="            except Exception as error:\n                source_error = error\n                break\n",
        new="            except Exception:\n                break\n",
        tests=("tests/client/test_client_many.py",),
    ),
)

_MEASURE = (
    Fault(
        name="missing-results-not-in-the-p99",
        file="measure/capacity/playing.py",
        old="place = math.ceil(0.99 * (len(latencies) + missing)) - 1",
        new="place = math.ceil(0.99 * len(latencies)) - 1",
        tests=("tests/measure/capacity/test_playing.py",),
    ),
    Fault(
        name="attempts-on-the-way-counted",
        file="measure/capacity/capacity_search.py",
        old="those = [tried for tried in found.tried if tried.competitor == name and tried.counts]",
        new="those = [tried for tried in found.tried if tried.competitor == name]",
        tests=("tests/measure/capacity/test_held.py",),
    ),
    Fault(
        name="standard-error-by-the-count",
        file="measure/tune/decide.py",
        old="(ratio.high - ratio.low) / math.sqrt(ratio.count)",
        new="(ratio.high - ratio.low) / ratio.count",
        tests=("tests/measure/tune/test_tune_decide.py",),
    ),
    Fault(
        name="quartiles-at-the-thirds",
        file="measure/spread.py",
        old="np.percentile(values, [25, 50, 75])",
        new="np.percentile(values, [33, 50, 67])",
        tests=("tests/measure/load/test_spread.py",),
    ),
)

_CLI = (
    Fault(
        name="torn-line-stays-in-the-journal",
        file="cli/bulk/journal.py",
        old="                self._file.truncate(at)\n",
        new="                self._file.seek(at)\n",
        tests=("tests/cli/bulk/test_bulk_resumed.py",),
    ),
    Fault(
        name="environment-before-the-option",
        file="cli/options.py",
        old='given or os.environ.get("ONESTREAM_URL") or DEFAULT_URL',
        new='os.environ.get("ONESTREAM_URL") or given or DEFAULT_URL',
        tests=("tests/cli/test_commands.py",),
    ),
    Fault(
        name="counter-of-a-new-server-counted-backwards",
        file="cli/top/reading.py",
        old="grown[series] = value - earlier if value >= earlier else value",
        new="grown[series] = value - earlier",
        tests=("tests/cli/top/test_top_reading.py",),
    ),
    Fault(
        name="one-line-too-many-waits",
        file="cli/serve/output.py",
        old="if self._waiting.qsize() >= MOST_WAITING:",
        new="if self._waiting.qsize() > MOST_WAITING:",
        tests=("tests/cli/test_line_writer.py",),
    ),
)

AROUND: tuple[Fault, ...] = (*_WIRE, *_POSTPROCESS, *_CLIENT, *_MEASURE, *_CLI)
