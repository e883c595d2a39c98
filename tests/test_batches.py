"""Batches as a function of (seed, step), from tensors, data sets, loaders and streams."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dubito
from dubito.batches import Batches, Stream, is_stream
from dubito.sources import open_source

CPU, FLOAT = torch.device("cpu"), torch.float32
X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (20,), generator=torch.Generator().manual_seed(1))


class Rows(Dataset):
    def __init__(self, x=X, y=Y, shake=False):
        self.x, self.y, self.shake = x, y, shake

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = torch.rand(()) + float(np.random.rand()) + random.random() if self.shake else 0.0
        return self.x[i] + noise, self.y[i]


class Endless(IterableDataset):
    def __init__(self, rows=20):
        self.rows = rows

    def __iter__(self):
        return iter((X[i], Y[i]) for i in range(self.rows))


def doubled(items):
    x, y = zip(*items, strict=True)
    return 2 * torch.stack(x), torch.stack(y)


def feed(data, size=6, seed=0, augment=None) -> Batches:
    return Batches(open_source(data, CPU, FLOAT), size, seed, CPU, augment)


def fit(data, method="map", **settings):
    settings = {"steps": 6, "batch_size": 5, "progress": False, **settings}
    torch.manual_seed(3)
    return dubito.fit(nn.Linear(4, 3), data, method, **settings)


def test_an_epoch_visits_rows_once_in_an_order_of_its_own():
    batches = feed((X, Y))
    assert batches.per_epoch == 3
    epochs = [torch.cat([batches.index(e * 3 + i) for i in range(3)]).tolist() for e in range(3)]
    assert all(len(set(order)) == 18 for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert {row for order in epochs for row in order} == set(range(20))


def test_a_batch_depends_on_seed_and_step_alone():
    one, other = feed((X, Y)), feed((X, Y))
    forwards = [one(s).rows.tolist() for s in range(8)]
    backwards = [other(s).rows.tolist() for s in reversed(range(8))][::-1]
    assert forwards == backwards
    assert forwards != [feed((X, Y), seed=1)(s).rows.tolist() for s in range(8)]
    batch = one(4)
    assert torch.equal(batch.x, X[batch.rows]) and torch.equal(batch.y, Y[batch.rows])


def test_all_rows_at_once_stay_in_their_order():
    batches = feed((X, Y), size=20)
    assert batches(0).rows.tolist() == list(range(20)) and batches(0) is batches(7)


SOURCES = {
    "arrays": lambda: (X.numpy().astype(np.float64), Y.numpy().astype(np.int32)),
    "tensor data set": lambda: TensorDataset(X, Y),
    "data set": Rows,
    "loader": lambda: DataLoader(Rows(), batch_size=3, shuffle=True),
    "loader of tensors": lambda: DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
    "workers": lambda: DataLoader(Rows(), batch_size=3, num_workers=2),
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_trains_to_the_same_weights(name):
    before = torch.get_rng_state()
    reference = fit((X, Y)).predict(X).probs
    torch.set_rng_state(before)
    found = fit(SOURCES[name]()).predict(X).probs
    assert torch.equal(found, reference)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_data_set_draws_at_random_depends_on_the_step_with_and_without_workers():
    alone, helped = feed(Rows(shake=True)), feed(DataLoader(Rows(shake=True), num_workers=2))
    ahead = [helped(s).x for s in (0, 1, 2, 3)]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    again = [alone(s).x for s in (3, 2, 1, 0)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(ahead, again, strict=True))
    assert torch.equal(helped(3).x, ahead[3]) and torch.equal(helped(1).x, ahead[1])
    assert not torch.equal(alone(0).x - X[alone(0).rows], alone(1).x - X[alone(1).rows])
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_a_loaders_collate_function_is_used():
    batch = feed(DataLoader(Rows(), collate_fn=doubled))(2)
    assert torch.equal(batch.x, 2 * X[batch.rows])


def test_dict_and_tuple_inputs_are_cut_together():
    batch = feed(({"a": X, "b": X[:, :1]}, Y))(1)
    assert torch.equal(batch.x["a"], X[batch.rows]) and torch.equal(batch.x["b"], X[batch.rows, :1])


def test_a_weight_of_two_is_a_row_given_twice():
    weight = torch.ones(20)
    weight[3] = 2
    method = dubito.SGLD(step_size=1e-3, burn_in=0, thin=1)
    weighted = fit((X, Y, weight), method, batch_size=20)
    twice = fit((torch.cat([X, X[3:4]]), torch.cat([Y, Y[3:4]])), method, batch_size=21)
    torch.testing.assert_close(weighted.thetas(9), twice.thetas(9), rtol=1e-5, atol=1e-6)
    plain = fit((X, Y), method, batch_size=20)
    assert not torch.allclose(weighted.thetas(9), plain.thetas(9), rtol=1e-5, atol=1e-6)


def test_a_weight_of_nothing_leaves_a_row_out():
    weight = torch.ones(20)
    weight[:5] = 0
    method = dubito.SGLD(step_size=1e-3, burn_in=0, thin=1)
    ignored = fit((X, Y, weight), method, batch_size=20)
    torch.testing.assert_close(ignored.thetas(9), fit((X[5:], Y[5:]), method, batch_size=15).thetas(9))


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (torch.ones(19), r"shape \(19,\)"),
        (torch.ones(20, 1), r"shape \(20, 1\)"),
        (-torch.ones(20), "-1; leave such rows out"),
        (torch.full((20,), torch.nan), "nan; leave such rows out"),
    ],
)
def test_bad_weights_are_refused(weight, found):
    with pytest.raises(ValueError, match=f"weights must be 20 finite numbers that are not negative, got {found}"):
        feed((X, Y, weight))


def test_augmentation_runs_on_batches_with_a_generator_of_the_step():
    seen = []

    def flip(x, generator):
        seen.append(x.shape)
        return x * torch.where(torch.rand(len(x), 1, generator=generator) < 0.5, -1.0, 1.0)

    batches = feed((X, Y), augment=flip)
    first, again, later = batches(0).x, batches(0).x, batches(1).x
    assert torch.equal(first, again) and first.shape == later.shape
    assert torch.equal(first.abs(), X[batches(0).rows].abs()) and not torch.equal(first, X[batches(0).rows])
    runs = [fit((X, Y), augment=a).predict(X).probs for a in (flip, flip, None)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert len(seen) > 3


def test_a_stream_drops_what_fills_no_batch():
    def sizes(data, size):
        stream = Stream(data, size, 50, 0, torch.empty(0))
        return [len(stream(s).y) for s in range(5)]

    assert sizes(Endless(7), 3) == sizes(DataLoader(Endless(7), batch_size=3), 3) == [3] * 5
    assert sizes(Endless(7), 10) == [7] * 5  # all there is
    assert sizes(DataLoader(Endless(7), batch_size=2), 3) == [3] * 5  # the size that was asked for
    assert sizes(DataLoader([(X[:5], Y[:5]), (X[:2], Y[:2])], batch_size=None), 3) == [5, 2, 5, 2, 5]


def test_batches_of_a_stream_stay_within_its_rows():
    with pytest.raises(ValueError, match="batch_size is 30 but the data have 20 rows"):
        fit(Endless(), batch_size=30, n_data=20)
    with pytest.raises(ValueError, match="batch_size is 64 but the data have 20 rows"):
        fit(DataLoader(Endless(), batch_size=64), batch_size=None, n_data=20)


def test_a_stream_is_declared_not_to_resume_to_the_bit(capsys, tmp_path):
    fit(Endless(), n_data=20, progress=True, folder=tmp_path / "a")
    assert "6 steps on cpu; a stream, not checked and not bit-resumable" in capsys.readouterr().err
    assert "not bit-resumable" in (tmp_path / "a" / "run.json").read_text()


def test_a_stream_is_augmented():
    def away(x, generator):
        return x + torch.rand(x.shape, generator=generator)

    stream, plain = (Stream(Endless(), 5, 20, 0, torch.empty(0), a) for a in (away, None))
    moved = stream(0).x - plain(0).x
    assert 0.2 < float(moved.mean()) < 0.8
    fit(Endless(), n_data=20, augment=away)


def test_a_stream_runs_around_and_counts_as_many_rows_as_it_says():
    stream = Stream(Endless(7), 3, 50, 0, torch.empty(0))
    before = torch.get_rng_state()
    posterior = fit(Endless(), dubito.SGLD(burn_in=0, thin=2), n_data=50)
    assert posterior.about["n_data"] == 50
    loader = DataLoader(Endless(), batch_size=4)
    assert is_stream(loader) and is_stream(Endless()) and not is_stream(Rows())
    torch.set_rng_state(before)
    dubito.fit(nn.Linear(4, 3), loader, "map", n_data=20, steps=3, progress=False)
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    stream(5)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_stream_needs_its_size_and_rows():
    with pytest.raises(ValueError, match="tell fit with n_data="):
        fit(Endless())
    with pytest.raises(ValueError, match="the iterable gave no rows"):
        fit(Endless(0), n_data=5)
    with pytest.raises(ValueError, match="needs to know which rows it sees"):
        fit(Endless(), dubito.DeepEnsemble(bootstrap=True), n_data=20)
    with pytest.raises(ValueError, match="needs all rows at every step, and an IterableDataset"):
        fit(Endless(), dubito.HMC(burn_in=0), batch_size=None, n_data=20)
    with pytest.raises(ValueError, match="resamples the 20 rows there are; leave n_data=50 out"):
        fit((X, Y), dubito.DeepEnsemble(bootstrap=True), n_data=50)


def test_fingerprints_tell_data_apart():
    def mark(*data):
        return open_source(data, CPU, FLOAT).fingerprint()

    changed = X.clone()
    changed[11, 2] += 1e-3
    assert mark(X, Y) == mark(X.numpy(), Y.numpy())
    assert (
        len({mark(X, Y), mark(changed, Y), mark(X, Y.flip(0)), mark(X[:19], Y[:19]), mark(X, Y, torch.ones(20))}) == 5
    )
    shaken = open_source(Rows(shake=True), CPU, FLOAT)
    assert shaken.fingerprint() == shaken.fingerprint() != open_source(Rows(), CPU, FLOAT).fingerprint()


def test_labels_of_a_data_set_are_checked_as_they_are_read():
    wrong = Y.clone()
    wrong[int(feed((X, Y), 5).index(2)[0])] = 9
    with pytest.raises(ValueError, match="label 9, outside 0 to 2"):
        fit(Rows(y=wrong))
    with pytest.raises(ValueError, match="label 9, outside 0 to 2"):
        fit((X, Y), validation=Rows(y=wrong), steps=20)
    with pytest.raises(ValueError, match="label 9, outside 0 to 2"):
        fit((X, Y), validation=(X, wrong))
