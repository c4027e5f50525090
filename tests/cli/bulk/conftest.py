"""The command on a fake server, and a real server of S3, for the tests of this folder."""

from __future__ import annotations

from buckets import bucket, s3, server_of_s3
from bulk_fakes import bulk, folder

__all__ = ["bucket", "bulk", "folder", "s3", "server_of_s3"]
