"""Shell-like braces in names of shards: ``train-{0000..0127}.tar`` and ``{train,test}.tar``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_GROUP = re.compile(r"\{(?P<first>-?\d{1,18})\.\.(?P<last>-?\d{1,18})\}|\{(?P<list>[^{},]*(?:,[^{},]*)+)\}")

_MOST_GROUPS = 64


def expand_braces(text: str) -> Iterator[str]:
    """Every name that ``text`` stands for, as bash would write them; lazily, so a range may be of any length.

    A range counts up or down, and is padded with zeros where one of its ends is (``{08..11}``: 08, 09, 10, 11). Braces
    that hold neither a range nor a list stay as they are, and so does a text with more than 64 groups. Groups are not
    nested; the ends of a range have 18 digits at most.
    """
    group = _GROUP.search(text)
    if group is None or len(_GROUP.findall(text)) > _MOST_GROUPS:
        yield text
        return
    before, after = text[: group.start()], text[group.end() :]
    for choice in _choices(group):
        for rest in expand_braces(after):
            yield before + choice + rest


def _choices(group: re.Match[str]) -> Iterator[str]:
    if group["list"] is not None:
        yield from group["list"].split(",")
        return
    ends = group["first"], group["last"]
    first, last = int(ends[0]), int(ends[1])
    padded = any(re.match(r"-?0\d", end) for end in ends)
    width = max(map(len, ends)) if padded else 0
    step = 1 if first <= last else -1
    for number in range(first, last + step, step):
        yield f"{number:0{width}d}"
