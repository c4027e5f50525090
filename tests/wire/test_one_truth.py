"""What two sides must agree on is written once, in ``wire``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from onestream import client, preprocess
from onestream.client._transports.refusals import refusal
from onestream.serving.video import bounds
from onestream.wire import refusals
from onestream.wire.refusals import ImageRefusal, StreamRefusal

ROOT = Path(__file__).parents[2]
ROOMS = ("wire", "preprocess", "postprocess", "pipelines", "serving", "client", "measure", "cli")
IMAGE_CODES, STREAM_CODES = get_args(ImageRefusal), get_args(StreamRefusal)


def test_both_sides_follow_what_is_renamed_in_wire(tmp_path: Path) -> None:
    program = Path(__file__).with_name("renamed_wire.py")
    done = subprocess.run([sys.executable, program, ROOT, tmp_path], capture_output=True, text=True)
    assert done.stdout == "agreed\n", done.stderr


def sources() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def codes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every code that is written as a string, with what it is the code of: an error that is made, or one that came."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id in ("BadImage", "BadStream") and isinstance(node.args[0], ast.Constant):
                yield node.func.id, node.args[0].value
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "code":
            for one in ast.walk(node.comparators[0]):
                if isinstance(one, ast.Constant):
                    yield "any", one.value


def test_every_code_is_one_of_wire() -> None:
    # *ended* is the client's own.
    known = {"BadImage": set(IMAGE_CODES), "BadStream": {*STREAM_CODES, "ended"}}
    known["any"] = known["BadImage"] | known["BadStream"]
    texts = [(path, text) for path, text in sources() if re.search(r"Bad(?:Image|Stream)\(|\.code\b", text)]
    found = [(path, kind, code) for path, text in texts for kind, code in codes(ast.parse(text))]
    assert {kind for _, kind, _ in found} == set(known)
    assert [(path, code) for path, kind, code in found if code not in known[kind]] == []


def test_the_documented_codes_are_those_of_wire() -> None:
    contract = (ROOT / "docs" / "wire-contract.md").read_text(encoding="utf-8")
    table = contract.partition("`CODE` is one of:")[2].partition("\nA reason says")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(IMAGE_CODES)
    video = (ROOT / "docs" / "video.md").read_text(encoding="utf-8")
    sentence = video.partition("ends at once with `BadStream`: ")[2].partition(", each with")[0]
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(STREAM_CODES)


@given(st.sampled_from(IMAGE_CODES), st.text(max_size=300), st.sampled_from(["", "in ensemble 'classify', "]))
def test_a_client_reads_the_refusal_that_a_server_writes(code: ImageRefusal, reason: str, prefix: str) -> None:
    written = preprocess.BadImage(code, reason)
    assert refusals.find_bad_image(prefix + str(written)) == (code, written.reason.strip())
    read = refusal("INVALID_ARGUMENT", f"{prefix}bad image ({code}): plain", model="m", url="u")
    assert isinstance(read, client.BadImage)
    assert (read.code, str(read)) == (code, str(preprocess.BadImage(code, "plain")))


@given(st.sampled_from(STREAM_CODES), st.text(max_size=300))
def test_both_sides_write_a_stream_refusal_alike(code: StreamRefusal, reason: str) -> None:
    written = bounds.BadStream(code, reason)
    assert str(client.BadStream(code, written.reason)) == str(written) == f"bad stream ({code}): {written.reason}"


@given(st.text(max_size=300))
def test_a_reason_is_cut_and_says_so(reason: str) -> None:
    short = refusals.shortened(reason)
    assert len(short) <= refusals.LONGEST_REASON
    assert short == reason or (short.endswith(" …") and reason.startswith(short.removesuffix(" …")))
