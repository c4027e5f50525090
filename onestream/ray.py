"""Pipelines on a Ray Dataset: ``onestream.ray.predict``. Needs the extra ``ray`` beside ``cpu`` or ``gpu``."""

from onestream.wire.install import install_command

try:
    from onestream.cli.bulk.ray.datasets import predict
except ImportError as error:
    raise ImportError(f"onestream.ray needs Ray and what serves: {install_command('cpu', 'ray')} ({error})") from error

__all__ = ["predict"]
