"""Makes the blocking half of the client of the half for event loops: ``python -I client/make_sync.py``.

Each module of ``MADE`` is its ``_aio`` twin without ``async`` and ``await``. What the halves do not share, they import
from modules whose names differ by ``_aio`` alone, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MADE = {
    "_client.py": "_async_client.py",
    "_requests.py": "_requests_aio.py",
    "_transports/transport.py": "_transports/transport_aio.py",
    "_transports/http.py": "_transports/http_aio.py",
}
"""The modules that are made, by what they are made of."""

_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        # What is between backticks is text about both halves.
        (r"(?<!`)\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b__a(enter|exit)__\b", r"__\1__"),
        (r"\bCoroutine\[Any, Any, (\w+)\]|\bAwaitable\[(\w+)\]", r"\1\2"),
        (r"\bAsyncGenerator\[(.+), None\]", r"Iterator[\1]"),
        (r"\bAsyncGenerator\b", "Iterator"),
        (r"\b(\w+\[\w+\]) \| Async\1", r"\1"),
        (r"(?<!`)\bAsync([A-Z]\w*)", r"\1"),
        (r"(\w)_aio\b", r"\1"),
        (r"(?:;|\.) ``\w+`` is made of this by ``make sync``", ""),
    ]
]


def made_of(source: str, name: str) -> str:
    """The blocking text for the text of a module with this name, formatted by ruff."""
    text = source
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = f"# Made of {name} by `make sync`: change that.\n{text}"
    options = ["--stdin-filename", str(HERE / "made.py")]
    for command in (["check", "--select", "I,F401", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, *options, "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write every module anew."""
    for made, source in MADE.items():
        text = (HERE / source).read_text(encoding="utf-8")
        (HERE / made).write_text(made_of(text, Path(source).name), encoding="utf-8")


if __name__ == "__main__":
    main()
