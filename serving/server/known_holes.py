"""Holes of tritonserver that are known, and the releases that mend them.

From NVIDIA's bulletins (https://github.com/NVIDIA/product-security) and Triton's own history, as both stood in August
2026. Left out are those of parts that this project does not run: Triton's MLflow plugin, and what only 24.11 had.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onestream.serving.server.triton.installation import TritonInstallation, triton_environment

Version = tuple[int, int, int]
_STATED = re.compile(r"\| server_version\s*\| (\d+)\.(\d+)\.(\d+)")
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A way to end a server, or worse.

    Attributes:
        what: a request that ends it, or the CVEs of a bulletin.
        bulletin: the number of NVIDIA's bulletin; None for what was tried here against 2.51.
        mended: the first release with the mend; None where no mend is known.
    """

    what: str
    bulletin: int | None
    mended: Version | None


HOLES = (
    # Mended by server#8708.
    Hole(what="a stream that ends with an error under triton_grpc_error", bulletin=None, mended=(2, 68, 0)),
    # Mended by common#156 and tested by server#8745.
    Hole(what="JSON nested 100,000 deep", bulletin=None, mended=(2, 69, 0)),
    # Mended by server#8432 and server#8676.
    Hole(what="JSON data of a huge shape", bulletin=None, mended=(2, 68, 0)),
    # Mended by server#8305, and bounded by server#8770 in 2.69.
    Hole(what="600,000 HTTP chunks (CVE-2025-23310, 23311)", bulletin=None, mended=(2, 59, 1)),
    # Mended by server#7840; server#8034 tells of a rare case that remains.
    Hole(what="gRPC calls that are given up after some 10 ms, by the thousand", bulletin=None, mended=(2, 54, 0)),
    Hole(what="messages for a model that is not there among good ones in a stream", bulletin=None, mended=None),
    Hole(what="an HTTP form of 4.5 MB", bulletin=None, mended=None),
    Hole(what="a model process that was stopped for seconds and goes on", bulletin=None, mended=None),
    Hole(
        what="CVE-2025-23268, 23310, 23311, 23317 to 23327, 23331, 23333 to 23335",
        bulletin=5687,
        mended=(2, 59, 1),
    ),
    Hole(what="CVE-2025-23316, 23328, 23329, 23336", bulletin=5691, mended=(2, 60, 0)),
    Hole(what="CVE-2025-33202", bulletin=5723, mended=(2, 61, 0)),
    Hole(what="CVE-2025-33201, 33211", bulletin=5734, mended=(2, 62, 0)),
    Hole(what="CVE-2025-33238, 33254, CVE-2026-24158", bulletin=5790, mended=(2, 65, 0)),
    Hole(what="CVE-2026-24146, 24147, 24173 to 24175", bulletin=5816, mended=(2, 66, 0)),
    Hole(what="CVE-2026-24206 to 24210, 24213 to 24215", bulletin=5828, mended=(2, 67, 0)),
    Hole(what="CVE-2026-24264, 24266", bulletin=5848, mended=(2, 68, 0)),
    Hole(what="CVE-2026-47476 to 47482", bulletin=5853, mended=(2, 69, 0)),
    Hole(what="CVE-2026-47606, 47627 to 47630", bulletin=5865, mended=(2, 70, 0)),
)
"""Bulletins 5687 to 5734 are of August to December 2025, the others of March to August 2026."""
LAST_MEND_CONTAINER = (26, 6)
"""Year and month of NVIDIA's container with the last of these mends; it holds 2.70. 2.59.1 was 25.07."""


def open_holes(version: Version) -> list[Hole]:
    """The holes of a release that a later one mends, in the order of ``HOLES``."""
    return [hole for hole in HOLES if hole.mended is not None and hole.mended > version]


def triton_version(installation: TritonInstallation) -> Version | None:
    """Let a tritonserver say its version, which it does while it fails to load a model that is not there.

    Returns:
        The version, or None where it says none.
    """
    with tempfile.TemporaryDirectory(prefix="onestream-version-") as name:
        folder = Path(name)
        (folder / "repository").mkdir()
        ended = subprocess.run(
            [
                str(installation.executable),
                f"--model-repository={folder / 'repository'}",
                *("--model-control-mode=explicit", "--load-model=none"),
                *("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"),
            ],
            env=triton_environment(installation, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    stated = _STATED.search(ended.stdout)
    return (int(stated[1]), int(stated[2]), int(stated[3])) if stated else None
