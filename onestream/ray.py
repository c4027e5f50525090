"""Pipelines on a Ray Dataset: ``onestream.ray.predict``. Needs the extra ``ray``."""

from onestream.cli.bulk.ray.datasets import predict

__all__ = ["predict"]
