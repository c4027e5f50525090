"""A pipeline as a step of anybody's Ray Dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data

from onestream.cli.bulk.outputs import arrow_columns
from onestream.cli.bulk.ray.answering import ByThisProcess, InProcessRows
from onestream.cli.bulk.ray.attempts import MOST_ATTEMPTS
from onestream.cli.bulk.ray.machines import Installed, check_all, check_same, here, installed
from onestream.cli.bulk.ray.run import Workers
from onestream.cli.bulk.ray.sent_model import SentModel, built_model
from onestream.cli.bulk.rows import Row
from onestream.cli.bulk.tables import Table
from onestream.client import OnestreamError, UnreadableInput
from onestream.client.images import encode

_PICTURES_AT_ONCE = 64


def predict(
    dataset: ray.data.Dataset,
    pipeline: str | Path,
    *,
    column: str = "bytes",
    repository: str | Path = "model_repository",
    top: int = 1,
    prefix: str = "",
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    workers: int | None = None,
) -> ray.data.Dataset:
    """The dataset with columns of what a pipeline says of each row's picture, made by its fused form in Ray's workers.

    The columns are those of ``onestream bulk --to out.parquet`` without ``path`` and ``key``: such as ``label``,
    ``class_id`` and ``score``, then ``latency_ms``, ``error`` and ``reason``. A bad picture is a row with its reason.
    Rows keep their columns. Nothing runs before the dataset is consumed. A batch that loses its worker's process five
    times, by a picture or with the machine, ends the dataset with Ray's error.

    Args:
        dataset: with a column of encoded pictures: bytes, or records with a field ``bytes``.
        pipeline: the name of a pipeline that is built in ``repository``, or its file, which must be the one built.
        column: of the pictures.
        top: how many classes of each picture; objects and text are given all.
        prefix: before the names of the new columns, for a dataset that has such names.
        cpus_per_worker: each worker reserves them, and decodes and infers with as many threads.
        gpus_per_worker: 0 runs the pipeline on CPUs, 1 on a GPU, and 0.5 on one that two workers share.
        workers: how many at most; by default as many as the cluster has CPUs and GPUs for.

    Raises ``ValueError`` for numbers that no worker can have, ``BadPipeline``, ``StampMismatch``, ``NoRoom`` where no
    machine has what a worker reserves, and ``WrongMachine`` where one has another onestream.
    """
    each = Workers(cpus_per_worker, gpus_per_worker, workers)
    folder = built_model(pipeline, Path(repository), each.device)
    most = each.most()
    check_all()
    by = ByThisProcess(SentModel.of(folder), top, max(1, int(cpus_per_worker)), each.device)
    return dataset.map_batches(
        _Predictor,
        fn_constructor_kwargs={
            "by": by,
            "column": column,
            "prefix": prefix,
            "asked_by": installed(),
        },
        batch_size=_PICTURES_AT_ONCE,
        batch_format="pyarrow",
        zero_copy_batch=True,
        # May grow: a fixed size could take every CPU, and what reads the dataset would wait for ever.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most),
        num_cpus=each.cpus,
        num_gpus=each.gpus,
        max_task_retries=MOST_ATTEMPTS - 1,
    )


class _Predictor:
    """An actor of Ray's."""

    def __init__(self, *, by: ByThisProcess, column: str, prefix: str, asked_by: Installed) -> None:
        check_same(asked_by, machine=here())
        self._maker: InProcessRows = by.open()
        self._column, self._prefix, self._top = column, prefix, by.top

    def __call__(self, batch: pa.Table) -> pa.Table:
        if self._column not in batch.column_names:
            raise ValueError(f"no column {self._column!r}; there are {', '.join(batch.column_names)}")
        images = [self._image(value.as_py()) for value in batch.column(self._column)]
        rows = [Row.of("", "", said, self._top) for said in self._maker.answer(images)]
        for name, values in arrow_columns(Table.of(self._maker.example, self._top, is_flat=False), rows).items():
            if name in ("path", "key"):
                continue
            if self._prefix + name in batch.column_names:
                raise ValueError(f"the dataset has a column {self._prefix + name!r} already; give a prefix")
            batch = batch.append_column(self._prefix + name, values)
        return batch

    def _image(self, value: Any) -> bytes | OnestreamError:
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            return UnreadableInput(f"the column {self._column!r} holds {type(value).__name__}, expected bytes")
        try:
            return encode(value, max_body_bytes=self._maker.max_body_bytes).to_bytes()
        except OnestreamError as error:
            return error
