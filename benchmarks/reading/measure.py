"""Every reader on every picture: what it reads of lines that are known, and which lines it reads as another does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.reading.pictures import RenderedLine, TextPicture
from benchmarks.reading.readers import Reader
from benchmarks.results import Compared, Difference, LineRead
from onestream.postprocess.same_lines import Line, same_lines

_EVERY = 20


def lines_read(
    readers: Mapping[str, Reader], lines: Sequence[RenderedLine], *, progress: Callable[[str], None] = print
) -> list[LineRead]:
    """What each reader says of each rendered line: all that it finds on its picture, in its order, with a space
    between.
    """
    found = []
    for index, line in enumerate(lines):
        if index % _EVERY == 0:
            progress(f"rendered lines: {index} of {len(lines)}")
        read = {name: " ".join(one.text for one in reader(line.picture.content)) for name, reader in readers.items()}
        found.append(LineRead(text=line.text, font=line.font, height_px=line.height_px, read=read))
    return found


def compared(
    readers: Mapping[str, Reader],
    pictures: Sequence[TextPicture],
    pairs: Sequence[tuple[str, str]],
    *,
    progress: Callable[[str], None] = print,
) -> list[Compared]:
    """How many lines of the second reader of each pair the first one reads equally, over all pictures."""
    read: dict[str, list[list[Line]]] = {name: [] for name in readers}
    for index, picture in enumerate(pictures):
        if index % _EVERY == 0:
            progress(f"turned pictures: {index} of {len(pictures)}")
        for name, reader in readers.items():
            read[name].append(reader(picture.content))
    return [_compared(one, read[one], other, read[other], pictures) for one, other in pairs]


def _compared(
    one: str,
    ours: Sequence[Sequence[Line]],
    other: str,
    theirs: Sequence[Sequence[Line]],
    pictures: Sequence[TextPicture],
) -> Compared:
    differences, lines, equal, rendered, rendered_equal, only_one, only_other = [], 0, 0, 0, 0, 0, 0
    for picture, our_lines, their_lines in zip(pictures, ours, theirs, strict=True):
        pairs = same_lines(our_lines, their_lines)
        alike = [(i, j) for i, j in pairs if our_lines[i].text == their_lines[j].text]
        lines += len(their_lines)
        equal += len(alike)
        if picture.written:
            rendered += len(their_lines)
            rendered_equal += len(alike)
        only_one += len(our_lines) - len(pairs)
        only_other += len(their_lines) - len(pairs)
        differences += [
            Difference(picture=picture.name, one=our_lines[i].text, other=their_lines[j].text)
            for i, j in pairs
            if (i, j) not in alike
        ]
    return Compared(
        one=one,
        other=other,
        pictures=len(pictures),
        lines=lines,
        equal=equal,
        rendered=rendered,
        rendered_equal=rendered_equal,
        only_one=only_one,
        only_other=only_other,
        differences=differences,
    )
