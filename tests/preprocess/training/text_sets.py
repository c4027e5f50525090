"""Writes one set of pictures with lines of text in two formats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from image_sets import save_turned
from turned import rectangle

Corners = tuple[tuple[float, float], ...]
CHARACTERS = tuple(" abcdefghijklmnopqrstuvwxyz0123456789,é")


@dataclass(frozen=True)
class Page:
    """A picture of (height, width) that is nowhere the same, and its lines: corners and text."""

    name: str
    size_hw: tuple[int, int]
    lines: tuple[tuple[Corners, str], ...]
    orientation: int = 1

    def save(self, folder: Path) -> Path:
        """Write it, stored so that the EXIF orientation turns it upright."""
        height, width = self.size_hw
        rows, columns = np.mgrid[:height, :width]
        noise = np.random.default_rng(height * width).integers(0, 60, (height, width, 3))
        waves = np.stack([rows * 3 + columns, rows + columns * 2, rows * columns // 40], axis=2) % 196
        path = folder / self.name
        save_turned(path, (waves + noise).astype(np.uint8), self.orientation)
        return path


def tilted(x: float, y: float, width: float, height: float, degrees: float) -> Corners:
    """The corners of a rectangle around (x, y), turned clockwise: whole quarters of a pixel, as both formats hold."""
    return tuple(map(tuple, (np.round(4 * rectangle((x, y), width, height, degrees)) / 4).tolist()))


def pages(count: int, *, seed: int = 0, most_lines: int = 5) -> list[Page]:
    """Pictures with 1 to ``most_lines`` lines each, in four orientations and three formats."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        height, width = (int(side) for side in random.integers(190, 320, 2))
        lines = []
        for _ in range(1 + number % most_lines):
            text = "".join(random.choice(CHARACTERS[1:], int(random.integers(1, 5))))
            line_hw = float(random.integers(12, 28)), float(random.integers(60, 120))
            x, y = (float(random.integers(75, side - 75)) for side in (width, height))
            lines.append((tilted(x, y, line_hw[1], line_hw[0], float(random.integers(-40, 40))), text))
        suffix, orientation = (".jpg", ".png", ".webp")[number % 3], (1, 6, 3, 8)[number % 4]
        found.append(Page(f"img_{number:03}{suffix}", (height, width), tuple(lines), orientation))
    return found


def entry(page: Page) -> dict[str, object]:
    """The object of a picture in a list of JSON lines."""
    return {"path": page.name, "lines": [{"quad": corners, "text": text} for corners, text in page.lines]}


def write_json_lines(folder: Path, found: list[Page]) -> Path:
    """``folder/lines.jsonl`` and the pictures beside it."""
    for page in found:
        page.save(folder)
    (folder / "lines.jsonl").write_text("".join(json.dumps(entry(page)) + "\n" for page in found), encoding="utf-8")
    return folder / "lines.jsonl"


def write_icdar(folder: Path, found: list[Page]) -> tuple[Path, Path]:
    """``folder/texts`` and ``folder/photos``."""
    (folder / "texts").mkdir(parents=True)
    for page in found:
        page.save(folder / "photos")
        lines = [
            ",".join([*(f"{value:g}" for corner in corners for value in corner), text]) for corners, text in page.lines
        ]
        path = folder / "texts" / f"gt_{Path(page.name).stem}.txt"
        path.write_text("".join(f"{line}\r\n" for line in [*lines, "1,1,9,1,9,9,1,9,###"]), encoding="utf-8-sig")
    return folder / "texts", folder / "photos"
