"""The command on a fake server, for the tests of this folder."""

from bulk_fakes import bulk

__all__ = ["bulk"]
