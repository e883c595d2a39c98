"""Samples on disk: written row by row, read where they are asked for, readable at every moment."""

import errno
import json
import os
import resource

import pytest
import torch

from dubito.posteriors import storage
from dubito.posteriors.storage import Damaged, JoinedSamples, MemorySamples, SampleWriter, StoredSamples, shard_name

ROWS, CHAINS, SIZE = 11, 2, 5


def made(rows: int = ROWS) -> list[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(0)
    return [
        {
            "theta": torch.randn(CHAINS, SIZE, generator=rng),
            "buffer/norm.count": torch.full((CHAINS,), i),
            "buffer/norm.mean": torch.randn(CHAINS, 3, generator=rng).double(),
        }
        for i in range(rows)
    ]


@pytest.fixture
def small_shards(monkeypatch):
    row = CHAINS * (SIZE * 4 + 8 + 3 * 8)
    monkeypatch.setattr(storage, "SHARD_BYTES", 4 * row)


def write(folder, rows, start: int = 0, finish: bool = True) -> dict:
    writer = SampleWriter(folder, rows[0], start)
    for row in rows[start:]:
        writer.append(row)
    if finish:
        writer.finish()
    return {**writer.layout(), "chains": CHAINS}


def check(samples, rows) -> None:
    assert (samples.rows, samples.chains, len(samples)) == (len(rows), CHAINS, CHAINS * len(rows))
    index = [7, 0, len(samples) - 1, 7]
    theta, buffers = samples.get(index)
    for place, i in enumerate(index):
        row, chain = divmod(i, CHAINS)
        assert torch.equal(theta[place], rows[row]["theta"][chain])
        assert int(buffers["norm.count"][place]) == row
        assert torch.equal(buffers["norm.mean"][place], rows[row]["buffer/norm.mean"][chain])
    paths = samples.coordinates([4, 1])
    assert torch.equal(paths, torch.stack([r["theta"][:, [4, 1]] for r in rows], 1))


def test_rows_come_back_from_memory_and_from_shards(tmp_path, small_shards):
    rows = made()
    manifest = write(tmp_path, rows)
    assert sorted(p.name for p in tmp_path.iterdir()) == [shard_name(i) for i in range(3)]
    check(StoredSamples(tmp_path, manifest, SIZE), rows)
    stacked = {n: torch.stack([r[n] for r in rows]) for n in rows[0]}
    theta = stacked.pop("theta")
    check(MemorySamples(theta, {n.removeprefix("buffer/"): b for n, b in stacked.items()}), rows)


def test_shards_are_plain_safetensors_cut_to_what_they_hold(tmp_path, small_shards):
    from safetensors.torch import load_file

    rows = made()
    write(tmp_path, rows)
    shards = [load_file(tmp_path / shard_name(i)) for i in range(3)]
    assert [len(s["theta"]) for s in shards] == [4, 4, 3]
    assert torch.equal(torch.cat([s["theta"] for s in shards]), torch.stack([r["theta"] for r in rows]))


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("finish", [True, False])
def test_a_writer_goes_on_where_another_stopped(tmp_path, small_shards, stop, finish):
    rows = made()
    before = write(tmp_path, rows[:stop], finish=finish)
    if stop > 3:
        check(StoredSamples(tmp_path, before, SIZE), rows[:stop])
    manifest = write(tmp_path, rows, start=stop)
    check(StoredSamples(tmp_path, manifest, SIZE), rows)


def test_writing_rows_again_keeps_the_later_ones_readable(tmp_path, small_shards):
    rows = made()
    manifest = write(tmp_path, rows, finish=False)
    writer = SampleWriter(tmp_path, rows[0], 2)
    for row in rows[2:7]:
        writer.append(row)
        check(StoredSamples(tmp_path, manifest, SIZE), rows)


def test_every_moment_of_writing_is_readable(tmp_path, small_shards):
    rows = made()
    writer = SampleWriter(tmp_path, rows[0], 0)
    for i, row in enumerate(rows):
        writer.append(row)
        reader = StoredSamples(tmp_path, {**writer.layout(), "chains": CHAINS}, SIZE)
        assert torch.equal(reader.get([2 * i])[0][0], row["theta"][0])


def test_an_open_reader_survives_the_writer_finishing(tmp_path, small_shards):
    rows = made()
    manifest = write(tmp_path, rows[:10], finish=False)
    reader = StoredSamples(tmp_path, manifest, SIZE)
    write(tmp_path, rows, start=10)
    check(reader, rows[:10])


def test_a_killed_layout_leaves_no_shard_under_its_name(tmp_path, small_shards, monkeypatch):
    writer = SampleWriter(tmp_path, made()[0], 0)
    monkeypatch.setattr(os, "pwrite", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writer.append(made()[0])
    assert not (tmp_path / shard_name(0)).exists()
    monkeypatch.undo()
    monkeypatch.setattr(storage, "SHARD_BYTES", 4 * CHAINS * (SIZE * 4 + 8 + 3 * 8))
    check(StoredSamples(tmp_path, write(tmp_path, made()), SIZE), made())


def test_short_writes_are_completed_and_none_at_all_is_a_full_disk(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(1, len(data) // 2)], at))
    manifest = write(tmp_path, made())
    monkeypatch.undo()
    check(StoredSamples(tmp_path, manifest, SIZE), made())
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError) as caught:
        write(tmp_path, made(), start=3)
    assert caught.value.errno == errno.ENOSPC


def test_a_file_that_may_not_grow_keeps_the_rows_it_has(tmp_path, monkeypatch):
    rows, row_bytes = made(), CHAINS * (SIZE * 4 + 8 + 3 * 8)
    writer = SampleWriter(tmp_path, rows[0])
    header = len(writer._header(writer.capacity))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(most: int) -> SampleWriter:
        resource.setrlimit(resource.RLIMIT_FSIZE, (header + most * row_bytes, limits[1]))
        return SampleWriter(tmp_path, rows[0], writer.rows)

    try:
        for most in (4, 2):  # and a lower one later takes nothing away
            writer = limited(most)
            with pytest.raises(OSError) as caught:
                for row in rows[writer.rows :]:
                    writer.append(row)
            assert caught.value.errno == errno.EFBIG
            check(StoredSamples(tmp_path, {**writer.layout(), "chains": CHAINS}, SIZE), rows[:4])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check(StoredSamples(tmp_path, write(tmp_path, rows, start=4), SIZE), rows)


def cut(path, manifest):
    path.write_bytes(path.read_bytes()[:-3])


def garble(path, manifest):
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])


def empty(path, manifest):
    path.write_bytes(b"")


def promise_more(path, manifest):
    manifest["rows"] += 1


def other_chains(path, manifest):
    manifest["chains"] += 1


def other_tensors(path, manifest):
    manifest["tensors"].append("buffer/unknown")


def no_number(path, manifest):
    manifest["rows"] = "many"


def nothing(path, manifest):
    manifest["shard_rows"] = 0


@pytest.mark.parametrize(
    "harm",
    [cut, garble, empty, promise_more, other_chains, other_tensors, no_number, nothing],
    ids=lambda f: f.__name__,
)
def test_damage_is_told_when_the_samples_are_opened(tmp_path, small_shards, harm):
    manifest = write(tmp_path, made())
    harm(tmp_path / shard_name(2), manifest)
    with pytest.raises(Damaged, match=r"damaged.*restore it or fit again"):
        StoredSamples(tmp_path, manifest, SIZE)


@pytest.mark.parametrize("harm", [cut, garble, empty], ids=lambda f: f.__name__)
@pytest.mark.parametrize("start", [0, 6, 11])
def test_a_writer_does_not_go_on_behind_damage(tmp_path, small_shards, harm, start):
    write(tmp_path, made())
    harm(tmp_path / shard_name(start // 4), {})
    with pytest.raises(Damaged, match=r"damaged or cut short .*; restore it or fit again"):
        write(tmp_path, made(12), start=start)


def test_a_writer_puts_no_zeros_in_the_place_of_a_missing_shard(tmp_path, small_shards):
    write(tmp_path, made())
    (tmp_path / shard_name(1)).unlink()
    with pytest.raises(Damaged, match=r"samples-00001.safetensors is missing; restore it or fit again"):
        write(tmp_path, made(12), start=11)


def test_a_missing_shard_and_a_network_of_another_size_are_told_too(tmp_path, small_shards):
    manifest = write(tmp_path, made())
    with pytest.raises(Damaged, match=r"theta is \[4, 2, 5\] where \[4, 2, 6\] was expected"):
        StoredSamples(tmp_path, manifest, SIZE + 1)
    (tmp_path / shard_name(1)).unlink()
    with pytest.raises(Damaged, match=r"samples-00001.safetensors is missing; restore it or fit again"):
        StoredSamples(tmp_path, manifest, SIZE)


def test_chains_of_several_runs_stand_side_by_side(tmp_path, small_shards):
    rows = made()
    first = MemorySamples(torch.stack([r["theta"] for r in rows]))
    second = MemorySamples(torch.full((4, 1, SIZE), 9.0))
    joined = JoinedSamples([first, second])
    assert (joined.rows, joined.chains) == (4, 3)
    theta, _ = joined.get(range(12))
    assert torch.equal(theta.view(4, 3, SIZE)[:, :2], first.theta[:4])
    assert bool((theta.view(4, 3, SIZE)[:, 2] == 9).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_type_of_weight_is_stored_bit_for_bit(tmp_path, dtype):
    rows = [{"theta": torch.randn(1, 7).to(dtype)} for _ in range(3)]
    writer = SampleWriter(tmp_path, rows[0])
    for row in rows:
        writer.append(row)
    writer.finish()
    samples = StoredSamples(tmp_path, {**writer.layout(), "chains": 1}, 7)
    theta, _ = samples.get(range(3))
    assert theta.dtype == dtype and torch.equal(theta, torch.cat([r["theta"] for r in rows]))
    assert json.loads((tmp_path / shard_name(0)).read_bytes()[8:].split(b"}}")[0] + b"}}")["theta"]["shape"] == [
        3,
        1,
        7,
    ]
