"""Inputs: one tensor, several or a dict of them, from arrays, data sets and loaders."""

import random
import warnings
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dubito
from dubito import inputs

X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))


class Rows(Dataset):
    """Rows with labels, optionally shaken at random by three generators."""

    def __init__(self, shake=False):
        self.shake = shake

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        noise = torch.rand(()) + float(np.random.rand()) + random.random() if self.shake else 0.0
        return X[i] + noise, i % 3


class Endless(IterableDataset):
    def __iter__(self):
        return iter(Rows()[i] for i in range(len(X)))


def fitted():
    return dubito.fit(nn.Linear(4, 3), (X, torch.arange(9) % 3), "deep_ensemble", steps=2, progress=False)


def test_containers_are_called_as_the_module_expects():
    a, b = torch.ones(2, 1), torch.zeros(2, 3)
    assert inputs.arguments(a) == ((a,), {})
    assert inputs.arguments((a, b)) == ((a, b), {})
    assert inputs.arguments(UserDict(left=a)) == ((), {"left": a})
    assert inputs.signature({"left": a, "right": b}) == (((1,), torch.float32), ((3,), torch.float32))
    assert inputs.n_rows((a, b)) == 2
    assert torch.equal(inputs.rows({"left": a}, slice(0, 1))["left"], a[:1])
    assert inputs.shapes((a, b)) == "(2, 1), (2, 3)"


def test_rows_must_agree_and_exist():
    with pytest.raises(ValueError, match=r"different numbers of rows, \[2, 3\]; they must agree"):
        inputs.n_rows((torch.ones(2), torch.ones(3)))
    with pytest.raises(ValueError, match="hold no rows; give a tensor"):
        inputs.n_rows(())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(3, 2)[::-1],
        np.broadcast_to(np.arange(2.0), (3, 2)),
        np.arange(6, dtype=">f8").reshape(3, 2),
        np.arange(6, dtype=np.uint16).reshape(3, 2),
        np.asfortranarray(np.arange(6.0).reshape(3, 2)),
        np.float32(3),
    ],
    ids=["reversed", "read-only", "foreign bytes", "unsigned", "fortran", "scalar"],
)
def test_any_numeric_array_becomes_a_tensor_without_warnings(array):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inputs.tensors(array).tolist() == array.tolist()


@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array([None, 1]), "text", {1, 2}, object()])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"cannot use .* as data; "):
        inputs.tensors(value)


def test_not_finite_rows_are_named():
    bad = X.clone()
    bad[5, 1] = torch.nan
    with pytest.raises(ValueError, match="x holds NaN or infinity, first in row 5; remove or impute it"):
        inputs.check_finite({"a": X, "b": bad}, "x")
    with pytest.raises(ValueError, match="first in row 1"):
        inputs.check_finite(torch.tensor([0.0, torch.inf]), "y")
    inputs.check_finite((X, torch.arange(3)), "x")
    inputs.check_finite(torch.full((4,), 3e38), "x")  # finite, although the sum is not


SOURCES = {
    "tensor": lambda: X,
    "array": lambda: X.numpy(),
    "tensor data set": lambda: TensorDataset(X, torch.arange(9)),
    "data set": Rows,
    "loader": lambda: DataLoader(Rows(), batch_size=2, shuffle=True),
    "iterable": Endless,
    "iterable loader": lambda: DataLoader(Endless(), batch_size=3),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_rows_in_order_and_leaves_the_generators_alone(name):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    parts = list(inputs.batches(SOURCES[name](), 4))
    assert [len(p) for p in parts] == [4, 4, 1]
    assert torch.equal(torch.cat(parts), X)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_same_prediction(name):
    posterior = fitted()
    torch.testing.assert_close(posterior.predict(SOURCES[name]()).probs, posterior.predict(X).probs)


def test_a_data_set_that_draws_at_random_shows_all_draws_the_same_rows():
    first = torch.cat(list(inputs.batches(Rows(shake=True), 4)))
    assert not torch.equal(first, X)
    assert torch.equal(first, torch.cat(list(inputs.batches(Rows(shake=True), 4))))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loaders_workers_are_used_for_prediction():
    loader = DataLoader(Rows(), batch_size=4, num_workers=2)
    assert torch.equal(torch.cat(list(inputs.batches(loader, 4))), X)


def test_nan_in_a_data_set_is_found_when_it_is_read():
    class Holed(Rows):
        def __getitem__(self, i):
            return X[i] * (torch.nan if i == 7 else 1), 0

    with pytest.raises(ValueError, match="x holds NaN or infinity"):
        fitted().predict(Holed())
