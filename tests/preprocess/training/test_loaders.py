"""What all loaders have in common: what a sample depends on, order, last batches, bad files, options and their end."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_sets import FORMATS
from loader_kinds import COUNT, KINDS, Kind, assert_same
from patience import threads_named

from onestream.preprocess import BadSample, CannotCompile
from onestream.preprocess.training import Augmentation

BAD = (1, 4, 6)
REFUSED = {
    "images": ("mosaic", "speed", "drop_frames"),
    "boxes": ("cutmix", "warp", "background", "speed"),
    "masks": ("mosaic", "mixup", "cutmix", "background", "speed"),
    "lines": ("flip", "box", "scale_jitter", "mosaic", "mixup", "cutmix"),
    "clips": ("mosaic", "mixup", "cutmix", "background"),
}
"""Operations that a loader cannot do."""
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"normalize": "gpu"}, "normalize must be 'backend' or 'torch', got 'gpu'"),
    ({"bad_files": "ignore"}, "bad_files must be 'fail' or 'skip', got 'ignore'"),
    ({"last_batch": "keep"}, "last_batch must be 'partial', 'pad' or 'drop', got 'keep'"),
    ({"seed": -1}, "seed must be 0 or more, got -1"),
    ({"dtype": torch.int8}, "dtype must be one of torch.float32, torch.float16, torch.bfloat16, got torch.int8"),
    ({"memory_format": torch.preserve_format}, "memory_format must be torch.contiguous_format or torch.channels_last"),
    ({"threads": 0}, "threads must be at least 1, got 0"),
    ({"shard_id": 1}, "give both shard_id and num_shards"),
]
WRONG_IN_TRAINING: list[tuple[dict[str, Any], str]] = [
    ({"prefetch": 0}, "prefetch must be at least 1, got 0"),
    ({"train": False, "augmentation": Augmentation()}, "augmentation needs train=True"),
]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def source(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return kind.write(tmp_path_factory.mktemp("data"))[0]


def epoch(kind: Kind, source: Any, number: int = 0, **options: Any) -> dict[int, tuple[Any, ...]]:
    with kind.open(source, **options) as loader:
        loader.set_epoch(number)
        return kind.collect(loader)


def sharded(kind: Kind, source: Any, shards: int, **options: Any) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    for shard in range(shards):
        made = epoch(kind, source, shard_id=shard, num_shards=shards, **options)
        assert not set(made) & set(found)
        found |= made
    return found


def indices(loader: Any) -> list[list[int]]:
    return [batch.indices.tolist() for batch in loader]


def spoiled(kind: Kind, folder: Path, bad: Iterable[int]) -> tuple[Any, list[Path]]:
    """A source of which these files hold text, and all files."""
    source, paths = kind.write(folder)
    for index in bad:
        paths[index].write_text("no picture")
    return source, paths


def test_a_sample_depends_on_seed_epoch_and_index_only(kind: Kind, source: Any) -> None:
    """In shards 1, 2 and 8, batches of any size, any number of threads, any order, and normalized by either."""
    first = epoch(kind, source, batch_size=3, threads=1)
    assert sorted(first) == list(range(COUNT))
    assert_same(first, epoch(kind, source, batch_size=COUNT, threads=3, shuffle=True, normalize="torch", to="cpu"))
    assert_same(first, sharded(kind, source, 2, batch_size=3, threads=2, shuffle=True, last_batch="pad"))
    assert_same(first, sharded(kind, source, 8, batch_size=1, threads=1))
    for other in (
        epoch(kind, source, 1, batch_size=3),
        epoch(kind, source, batch_size=3, seed=8),
        epoch(kind, source, batch_size=3, varied=False),
    ):
        assert not any(np.array_equal(other[index][0], first[index][0]) for index in first)


def test_the_reference_draws_and_makes_the_same(kind: Kind, source: Any) -> None:
    """In any process, in every bit."""
    options: dict[str, Any] = {"definition": kind.definition.pixels(), "batch_size": 4}
    compiled, literal = (epoch(kind, source, backend=backend, threads=1, **options) for backend in kind.backends)
    assert_same(literal, sharded(kind, source, 2, backend=kind.backends[1], threads=2, **options))
    assert_same(compiled, literal)


def test_normalizing_in_torch_gives_the_same_bits(kind: Kind, source: Any) -> None:
    definitions = FORMATS.values() if kind.name in ("images", "clips") else [kind.definition]
    for definition in definitions:
        one, other = (
            epoch(kind, source, definition=definition, batch_size=COUNT, normalize=normalize, to="cpu")
            for normalize in ("backend", "torch")
        )
        assert {made[0][0].dtype for made in (one, other)} == {np.dtype(definition.output_spec.dtype)}
        assert_same(one, other)


@pytest.mark.parametrize("normalize", ["backend", "torch"])
def test_memory_format_and_dtype_change_no_value_but_by_rounding(kind: Kind, source: Any, normalize: str) -> None:
    chosen = {"normalize": normalize, "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    with kind.open(source, batch_size=3) as plain, kind.open(source, batch_size=3, **chosen) as other:
        for (expected, *_), (images, *_) in zip(plain, other, strict=True):
            assert images.shape == expected.shape
            assert images.movedim(-3, -1).is_contiguous()
            assert torch.equal(images, expected.to(torch.bfloat16))
    in_order_already = kind.definition.with_layout("NHWC")
    with pytest.raises(ValueError, match=r"channels_last needs a definition whose output has the layout NCHW"):
        kind.open(source, definition=in_order_already, batch_size=3, memory_format=torch.channels_last)


def test_each_loop_is_an_epoch_in_another_order(kind: Kind, source: Any) -> None:
    orders = []
    for seed in (1, 2):
        with kind.open(source, batch_size=3, varied=False, shuffle=True, seed=seed) as loader:
            orders += [indices(loader), indices(loader)]
            assert loader.epoch == 2
            _, first = iter(loader), iter(loader)
            # Lightning makes one that it does not use, and chooses the epoch after it made one.
            loader.set_epoch(0)
            assert indices(first) == orders[-2]
            assert loader.epoch == 1
    assert all(sorted(itertools.chain(*order)) == list(range(COUNT)) for order in orders)
    assert len({str(order) for order in orders}) == 4


def test_the_last_batch(kind: Kind, source: Any) -> None:
    for last_batch, expected in (
        ("partial", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("drop", [[0, 1, 2], [3, 4, 5]]),
        ("pad", [[0, 1, 2], [3, 4, 5], [6, 7, -1]]),
    ):
        with kind.open(source, batch_size=3, varied=False, last_batch=last_batch) as loader:
            batches = list(loader)
            assert indices(batches) == expected
            assert len(loader) == len(expected)
            assert [len(batch[0]) for batch in batches] == [len(one) for one in expected]
    assert kind.is_blank(batches[-1], 2)
    if kind.name != "lines":  # of which each batch is as wide as its widest
        assert torch.equal(batches[-1][0][2], batches[0][0][0])


def test_bad_files_end_an_epoch_by_name_or_are_skipped_and_listed(kind: Kind, tmp_path: Path) -> None:
    source, paths = kind.write(tmp_path)
    whole = {varied: epoch(kind, source, varied=varied, batch_size=4) for varied in (False, True)}
    for index in BAD:
        paths[index].write_text("no picture")
    skipped = [(index, paths[index].name) for index in BAD]
    for backend in kind.backends:
        with kind.open(source, varied=False, batch_size=4, backend=backend) as loader:
            for _ in range(2):
                with pytest.raises(BadSample, match=rf"{re.escape(paths[1].name)}.*{kind.bad_text}"):
                    list(loader)
    for varied, backend in ((False, kind.backends[0]), (True, kind.backends[0]), (kind.chain.mixes, "reference")):
        with kind.open(source, varied=varied, batch_size=4, backend=backend, bad_files="skip") as loader:
            for _ in range(2):
                loader.set_epoch(0)
                made = kind.collect(loader)
                assert sorted(made) == [0, 2, 3, 5, 7]
                if backend != "reference" and not (varied and kind.chain.mixes):
                    assert_same(made, {index: whole[varied][index] for index in made})
            found = [(one.index, Path(one.name.partition(":")[0]).name) for one in loader.skipped]
            assert found == skipped
            assert all(kind.bad_text in one.reason for one in loader.skipped)


def test_batches_keep_their_size_where_they_are_padded_or_whole(kind: Kind, tmp_path: Path) -> None:
    source, _ = spoiled(kind, tmp_path, BAD)
    for last_batch in ("pad", "drop"):
        with kind.open(source, varied=False, batch_size=4, bad_files="skip", last_batch=last_batch) as loader:
            first, second = loader
        assert indices([first, second]) == [[0, -1, 2, 3], [-1, 5, -1, 7]]
        for batch, bad, good in ((first, 1, 0), (second, 0, 1), (second, 2, 1)):
            assert kind.is_blank(batch, bad)
            assert torch.equal(batch[0][bad], batch[0][good])


def test_a_batch_of_bad_files_only_is_left_out_also_as_the_rest_of_an_epoch(kind: Kind, tmp_path: Path) -> None:
    source, _ = spoiled(kind, tmp_path, (2, 3, 6, 7))
    for last_batch in ("partial", "pad", "drop"):
        with kind.open(source, batch_size=2, bad_files="skip", last_batch=last_batch) as loader:
            for _ in range(2):
                assert indices(loader) == [[0, 1], [4, 5]]
            assert [one.index for one in loader.skipped] == [2, 3, 6, 7]
            for _ in zip(range(2), loader, strict=False):
                state = loader.state_dict()
            loader.load_state_dict(state)
            assert list(loader) == []


def test_shards_stay_in_step_over_a_batch_of_bad_files(kind: Kind, tmp_path: Path) -> None:
    source, paths = kind.write(tmp_path)
    for last_batch in ("partial", "pad", "drop"):
        options: dict[str, Any] = {"batch_size": 2, "shard_id": 1, "num_shards": 2, "last_batch": last_batch}
        with kind.open(source, bad_files="skip", **options) as loader:
            first, second = loader.order.batches(0)
            for slot in first:
                paths[slot.index].write_text("no picture")
            batches = list(loader)
            assert len(loader) == 2
        assert indices(batches) == [[-1, -1], [slot.index for slot in second]]
        assert all(kind.is_blank(batches[0], place) for place in (0, 1))


def test_an_epoch_of_bad_files_only_is_an_error_even_when_skipping(kind: Kind, tmp_path: Path) -> None:
    source, paths = spoiled(kind, tmp_path, range(COUNT))
    for shards in (1, 2):
        message = rf"all {COUNT // shards} .* of the epoch are bad, the first is .*{re.escape(paths[0].name)}"
        options: dict[str, Any] = {"batch_size": 3, "last_batch": "pad", "shard_id": 0, "num_shards": shards}
        with kind.open(source, bad_files="skip", **options) as loader, pytest.raises(BadSample, match=message):
            list(loader)


def test_an_epoch_that_is_left_early_leaves_nothing_behind(kind: Kind, source: Any) -> None:
    before = threads_named("onestream-")
    loader = kind.open(source, batch_size=2, threads=2, varied=False)
    expected = next(iter(loader))[0]
    for _ in range(3):
        assert torch.equal(next(iter(loader))[0], expected)
    assert threads_named("onestream-") - before
    loader.reset()
    assert len(list(loader)) == 4
    loader.close()
    loader.close()
    assert threads_named("onestream-") <= before


def test_a_run_goes_on_within_an_epoch(kind: Kind, source: Any) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 7}
    with kind.open(source, threads=1, **options) as loader:
        loader.set_epoch(1)
        whole = list(loader)
        running = iter(loader)
        next(running)
        loader.set_epoch(1)
        begun = [batch for _, batch in zip(range(2), loader, strict=False)]
        assert_same(kind.collect(begun), kind.collect(whole[:2]))
        state = json.loads(json.dumps(loader.state_dict()))
        with pytest.raises(RuntimeError, match="another loop over this loader began"):
            next(running)
    assert (state["epoch"], state["batches"]) == (1, 2)
    with kind.open(source, threads=2, **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        # As trainers do, which know the epoch.
        loader.sampler.set_epoch(1)
        rest = list(loader)
        assert indices(rest) == indices(whole[2:])
        assert_same(kind.collect(rest), kind.collect(whole[2:]))
        assert loader.state_dict() == state | {"epoch": 2, "batches": 0}
        assert len(list(loader)) == len(whole)
    with kind.open(source, batch_size=2, shuffle=True, seed=8) as other:
        with pytest.raises(ValueError, match="the state is of a loader with seed 7; this one has 8"):
            other.load_state_dict(state)
        with pytest.raises(ValueError, match="the state of a loader has no batches"):
            other.load_state_dict({name: value for name, value in state.items() if name != "batches"})
    # Between epochs the number of processes may change.
    with kind.open(source, **{**options, "batch_size": 1}, shard_id=1, num_shards=2) as loader:
        loader.load_state_dict(state | {"epoch": 2, "batches": 0})
        assert (loader.epoch, len(list(loader.sampler))) == (2, COUNT // 2)
        with pytest.raises(ValueError, match="a loader with batch_size 2; this one has 1"):
            loader.load_state_dict(state)


def test_wrong_options_are_named(kind: Kind, source: Any) -> None:
    for options, message in WRONG + (WRONG_IN_TRAINING if kind.name != "lines" else []):
        with pytest.raises(ValueError, match=message):
            kind.open(source, varied=False, **{"batch_size": 4, **options})
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="PyTorch sees no CUDA device"):
            kind.open(source, batch_size=4, to="cuda")


def test_what_a_loader_cannot_vary_is_refused_by_name(kind: Kind, source: Any) -> None:
    use = {"images": "classes"}.get(kind.name, kind.name)
    for name in REFUSED.get(kind.name, ()):
        with pytest.raises(CannotCompile, match=f"{name} cannot vary {use}, only "):
            kind.open(source, batch_size=2, augmentation=Augmentation([{"op": name}]))


@pytest.mark.needs_gpu
def test_a_gpu_gets_what_the_cpu_makes(kind: Kind, source: Any) -> None:
    """Of pictures that it decodes itself, the targets."""
    decodes = kind.name in ("boxes", "masks")
    options: dict[str, Any] = {"batch_size": 3, "augmentation": Augmentation() if decodes else kind.chain}
    with kind.open(source, **options) as loader:
        expected = list(loader)
    places: list[dict[str, Any]] = [{"normalize": one, "pin_memory": True} for one in ("backend", "torch")]
    for place in (*places, *([{"device": "gpu"}] if decodes else [])):
        with kind.open(source, to="cuda", **options, **place) as loader:
            for batch, other in zip(loader, expected, strict=True):
                assert batch.indices.tolist() == other.indices.tolist()
                for field, same in list(zip(batch, other, strict=True))["device" in place :]:
                    ones, others = (value if isinstance(value, list) else [value] for value in (field, same))
                    for one, two in zip(ones, others, strict=True):
                        assert not isinstance(one, torch.Tensor) or one.is_cuda
                        assert torch.equal(one.cpu(), two) if isinstance(one, torch.Tensor) else one == two
