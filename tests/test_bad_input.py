"""Bad input gets one sentence with the cure, and loses nothing."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dubito
from dubito import data

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3
REAL = X[:, 0]


def net(inputs: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def fit(x=X, y=Y, method="map", module=None, **settings):
    settings = {"steps": 2, "progress": False, "device": "cpu", **settings}
    return dubito.fit(net() if module is None else module, (x, y), method, **settings)


class Blocked(nn.Linear):
    """Its outputs carry no gradient."""

    def __init__(self):
        super().__init__(4, 3)

    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Recomputed(nn.Module):
    """Forgets its activations and makes them again for the gradient, in training."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 3), reentrant

    def forward(self, x):
        h = self.first(x)
        return checkpoint(self.second, h, use_reentrant=self.reentrant) if self.training else self.second(h)


def holed(x: torch.Tensor, value: float = torch.nan) -> torch.Tensor:
    x = x.clone()
    x[7] = value
    return x


CASES: dict[str, tuple[Callable[[], object], list[str]]] = {
    # shapes
    "too few features": (lambda: fit(X[:, :3]), ["(3,) float32", "shape and type it expects"]),
    "too few features for dropout": (lambda: fit(X[:, :3], method="mc_dropout"), ["(3,) float32", "shape and type"]),
    "one row without a batch": (lambda: fit(X[0], Y[:4]), ["() float32", "shape and type it expects"]),
    "integers for a linear layer": (lambda: fit(Y.view(30, 1).expand(30, 4)), ["(4,) int64", "shape and type"]),
    "a number among the inputs": (lambda: fit({"input": X, "scale": 2.0}), ["a single number", "when it is made"]),
    "half a row at prediction": (lambda: fit().predict(X, batch_size=2.5), ["batch_size must be a whole number"]),
    "statistics without a size": (
        lambda: fit(module=nn.Sequential(nn.LazyBatchNorm1d(affine=False), net())),
        ["lazy layers that have not seen data", "one forward pass"],
    ),
    "x longer than y": (lambda: fit(X, Y[:29]), ["x has 30 rows and y has 29", "must agree"]),
    "inputs of two lengths": (lambda: fit((X, X[:9])), ["different numbers of rows", "[9, 30]"]),
    "labels as a column": (lambda: fit(y=Y.view(30, 1)), ["(30, 1)", "expected y of shape (30,)"]),
    "one-hot labels": (lambda: fit(y=nn.functional.one_hot(Y)), ["one-hot", "y.argmax(-1)"]),
    "targets of another width": (
        lambda: fit(y=X[:, :2], likelihood=dubito.Gaussian(1.0)),
        ["(30, 2)", "expected y of shape (30, 3)"],
    ),
    "no batch axis": (lambda: fit(module=nn.Sequential(net(), nn.Flatten(0))), ["(3,)", "first axis must be"]),
    "predict too few features": (lambda: fit().predict(X[:, :3]), ["(3,) float32", "shape and type it expects"]),
    # values
    "label out of range": (lambda: fit(y=Y + 1), ["label 3", "0 to 2", "number the labels from 0"]),
    "negative label": (lambda: fit(y=Y - 1), ["label -1", "0 to 2"]),
    "label out of range in validation": (lambda: fit(validation=(X, Y + 1)), ["label 3", "0 to 2"]),
    "floating labels": (lambda: fit(y=Y.float(), likelihood=dubito.Categorical()), ["float32", "y.long()"]),
    "labels for one logit": (
        lambda: fit(y=Y, module=net(outputs=1), likelihood=dubito.Bernoulli()),
        ["{0, 1}", "found 2", "Categorical()"],
    ),
    "counts below zero": (
        lambda: fit(y=REAL, module=net(outputs=1), likelihood=dubito.Poisson()),
        ["counts", "Gaussian.learned()"],
    ),
    "nan in x": (lambda: fit(holed(X)), ["x holds NaN", "row 7", "remove or impute"]),
    "infinity in x": (lambda: fit(holed(X, torch.inf)), ["x holds NaN or infinity", "row 7"]),
    "nan in y": (lambda: fit(y=holed(REAL), module=net(outputs=1)), ["y holds NaN", "row 7"]),
    "nan in validation": (lambda: fit(validation=(holed(X), Y)), ["x holds NaN", "row 7"]),
    "nan at prediction": (lambda: fit().predict(holed(X)), ["x holds NaN", "row 7"]),
    "text": (lambda: fit(np.array([["a"] * 4] * 30)), ["cannot use an array of <U1", "numbers"]),
    "a list of labels": (lambda: fit(y=Y.tolist()), ["y must be one tensor or array", "stack it"]),
    "no pair": (lambda: dubito.fit(net(), X, "map", steps=1, progress=False), ["data must be (x, y)"]),
    # sizes
    "no rows": (lambda: fit(X[:0], Y[:0]), ["data are empty", "at least one row"]),
    "no rows to predict": (lambda: fit().predict(X[:0]), ["nothing to predict", "no rows"]),
    "batch larger than data": (lambda: fit(batch_size=31), ["batch_size is 31", "30 rows", "between 1 and 30"]),
    "empty batch": (lambda: fit(batch_size=0), ["batch_size is 0", "between 1 and 30"]),
    "half a batch": (lambda: fit(batch_size=9.5), ["batch_size must be a whole number", "9.5"]),
    "a batch for all data": (lambda: fit(method="hmc", batch_size=9), ["HMC uses all 30 rows", "leave batch_size out"]),
    "no length": (lambda: fit(steps=None), ["exactly one of steps= and epochs="]),
    "two lengths": (lambda: fit(epochs=2), ["exactly one of steps= and epochs="]),
    "no steps": (lambda: fit(steps=0), ["nothing to do in 0 steps", "at least one"]),
    "broken steps": (lambda: fit(steps=1e3), ["steps must be a whole number", "1000.0"]),
    "no members": (lambda: fit(members=0), ["members must be at least 1", "0"]),
    "no draws": (lambda: fit().predict(X, draws=0), ["draws must be at least 1"]),
    "half a draw": (lambda: fit().predict(X, draws=2.5), ["draws must be a whole number, got 2.5"]),
    "no samples": (lambda: fit().sample(0), ["n must be at least 1, got 0"]),
    "nothing kept": (lambda: fit(method="sgld"), ["no sample would be kept in 2 steps", "burn_in"]),
    "no data size": (lambda: fit(n_data=0), ["n_data must be at least 1", "0"]),
    "temperature without end": (lambda: fit(temperature=np.inf), ["temperature must be positive", "inf"]),
    "temperature as text": (lambda: fit(temperature="1"), ["temperature must be a number, got '1'"]),
    "half a row": (lambda: fit(n_data=2.5), ["n_data must be a whole number, got 2.5"]),
    "half a check": (lambda: fit(patience=1.5, validation=(X, Y)), ["patience must be a whole number, got 1.5"]),
    "no seed": (lambda: fit(seed=None), ["seed must be a whole number, got None"]),
    "checkpoints without end": (lambda: fit(checkpoint_every=0), ["checkpoint_every is 0", "leave it out"]),
    "text for a step size": (lambda: dubito.SGLD(step_size="1e-6"), ["step_size must be positive, got '1e-6'"]),
    "steps without end": (lambda: dubito.SGHMC(step_size=np.inf), ["step_size must be positive, got inf"]),
    "text for a rate": (lambda: dubito.MCDropout(rate="0.1"), ["rate must lie between 0 and 1, got '0.1'"]),
    "text for a learning rate": (lambda: dubito.MAP(learning_rate="1"), ["learning_rate must be positive, got '1'"]),
    "text for friction": (lambda: dubito.SGHMC(friction="1"), ["friction must lie in (0, 1], got '1'"]),
    "text for a mixture": (lambda: dubito.ScaleMixture("half", 1.0, 0.1), ["pi is 'half'", "between 0 and 1"]),
    "temperature": (lambda: fit(temperature=0.0), ["temperature must be positive", "1 is the Bayesian"]),
    # names and types
    "unknown method": (lambda: fit(method="sgdl"), ["no method is called 'sgdl'", "did you mean 'sgld'?"]),
    "a method class": (lambda: fit(method=dubito.MAP), ["method must be an instance such as dubito.SGLD()", "MAP"]),
    "a method that is none": (lambda: fit(method=3), ["method must be an instance", "got 3"]),
    "unknown data set": (lambda: data.load("mnits"), ["mnits", "mnist"]),
    "a likelihood class": (lambda: fit(likelihood=dubito.Categorical), ["instance such as dubito.Categorical()"]),
    "a prior that is none": (lambda: fit(prior=1.0), ["1.0 is no prior", "Normal(std=1.0)"]),
    "a prior for nothing": (lambda: fit(prior={"conv*": dubito.Normal()}), ["'conv*' matches no", "0.weight"]),
    "a module class": (lambda: fit(module=nn.Linear), ["net must be an nn.Module", "call the class"]),
    "unknown device": (lambda: fit(device="gpu"), ["unknown device 'gpu'", "'auto', 'cpu' or 'cuda'"]),
    "nothing to infer": (lambda: fit(prior=dubito.Fixed()), ["no free parameters", "prior"]),
    "points for a sampler": (
        lambda: fit(method=dubito.SGLD(burn_in=0, thin=1), prior={"0.bias": dubito.Point()}),
        ["SGLD samples every parameter", "'0.bias' is Point()", "Fixed()"],
    ),
    "targets for several outputs": (lambda: fit(y=REAL), ["y of shape (30,) does not fit"]),
    "bytes beyond the classes": (lambda: fit(y=torch.full((30,), 156, dtype=torch.uint8)), ["label 156", "0 to 2"]),
    # networks
    "no gradients": (lambda: fit(module=Blocked()), ["do not depend on the weights", "remove no_grad()"]),
    "recomputed activations": (lambda: fit(module=Recomputed(False)), ["torch.utils.checkpoint", "turn that off"]),
    "recomputed the old way": (lambda: fit(module=Recomputed(True)), ["torch.utils.checkpoint", "turn that off"]),
    "complex weights": (lambda: fit(module=nn.Linear(4, 3).to(torch.complex64)), ["complex64", "floating-point"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", "ignore:Complex modules are a new feature")
@pytest.mark.parametrize("name", CASES)
def test_one_sentence_with_the_cure(name):
    call, words = CASES[name]
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    "settings", [{"y": Y + 1}, {"batch_size": 99}, {"prior": 1.0}, {"members": 0}, {"validation": (X, Y + 1)}]
)
def test_a_refused_call_leaves_an_existing_run_as_it_was(settings, tmp_path):
    method = dubito.SGLD(burn_in=0, thin=1)
    before = fit(method=method, folder=tmp_path, steps=5)
    held = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError):
        fit(**{"method": method, "folder": tmp_path, "steps": 5, **settings})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == held
    assert torch.equal(fit(method=method, folder=tmp_path, steps=5).thetas(9), before.thetas(9))


def test_a_refused_call_makes_no_folder(tmp_path):
    with pytest.raises(ValueError):
        fit(y=Y + 1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_inference_mode_and_torchscript_get_their_sentence():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"outside torch\.inference_mode\(\)"):
        fit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="TorchScript module hides its layers; give the Python module"):
        fit(module=scripted)


def test_layers_that_draw_weights_themselves_are_named_with_the_ways_out():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), dubito.nn.BayesLinear(5, 3))
    with pytest.raises(ValueError, match=r"draws weights itself, in 2 \(BayesLinear\); give fit .*to_posterior"):
        fit(module=module)
    with pytest.raises(ValueError, match=r"in the module \(BayesLinear\)"):
        dubito.plan(dubito.nn.BayesLinear(4, 3), "variational", example=torch.zeros(1, 4))
    assert len(fit(module=dubito.nn.to_posterior(module, dubito.Categorical()).mean_network())) == 1


def test_sparse_embeddings_and_small_integers_are_no_bad_input():
    module = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    tokens = torch.randint(5, (30, 4))
    assert len(fit(tokens, Y.to(torch.uint8), module=module, members=2)) == 2
    assert module[0].sparse
    labels = torch.full((30,), 156, dtype=torch.uint8)
    many = fit(y=labels, module=net(outputs=200), method=dubito.MAP(learning_rate=0.1), steps=100)
    assert float(many.predict(X).probs[:, 156].min()) > 0.5
