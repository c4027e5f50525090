"""The command on a fake server, for the tests of this folder."""

from __future__ import annotations

from bulk_fakes import bulk, folder

__all__ = ["bulk", "folder"]
