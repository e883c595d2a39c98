"""From posteriors to small networks: scores, the curve, the cut that is chosen, and the file."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubito
from dubito import compress
from dubito.compress.curve import Point

G = torch.Generator().manual_seed(0)
X = torch.randn(300, 12, generator=G)
Y = (X[:, 0] - X[:, 1] > 0).long()


def dense(*sizes: int) -> nn.Module:
    torch.manual_seed(1)
    return dubito.nn.mlp(sizes, "silu")


@pytest.fixture(scope="module")
def posteriors() -> dict[str, dubito.Posterior]:
    options = {"steps": 300, "batch_size": 100, "device": "cpu", "progress": False}
    methods = {
        "Sparse VD": dubito.SparseVD(learning_rate=0.03, schedule="linear"),
        "VI": dubito.Variational(learning_rate=0.03, schedule="linear"),
        "MAP": dubito.MAP(learning_rate=0.03),
    }
    return {name: dubito.fit(dense(12, 40, 2), (X[:200], Y[:200]), m, **options) for name, m in methods.items()}


def test_every_posterior_has_its_score(posteriors):
    held = {name: compress.scored(p) for name, p in posteriors.items()}
    assert [one.by for one in held.values()] == ["log_alpha", "signal_to_noise", "magnitude"]
    assert held["Sparse VD"].cut == -3.0
    own = held["Sparse VD"].masked(-3.0)
    for a, b in zip(own.parameters(), posteriors["Sparse VD"].mean_network().parameters(), strict=True):
        assert torch.equal(a, b)
    for one in held.values():
        half = one.masked(one.at_share(0.5))
        assert compress.ratio(half) == pytest.approx(2.0, rel=0.01)
        assert compress.ratio(one.masked(one.at_share(1.0))) == math.inf
    with pytest.raises(ValueError, match="use by='magnitude'"):
        compress.scored(posteriors["MAP"], "log_alpha")
    with pytest.raises(ValueError, match="there is no score 'size'"):
        compress.scored(posteriors["MAP"], "size")


def test_the_curve_chooses_the_sparsest_within_its_tolerance(posteriors):
    result = compress.curve(posteriors, (X[200:], Y[200:]))
    table = result.tables[0]
    assert {row[0] for row in table.rows if row[-1] == "chosen"} == set(posteriors)
    for name, chosen in result.numbers.items():
        rows = [row for row in table.rows if row[0] == name]
        assert [row[3] for row in rows] == sorted(row[3] for row in rows)
        assert chosen["error"] <= min(row[5] for row in rows) + 0.1
    ten = torch.zeros(10, dtype=torch.float64)
    few, many = Point(0.0, 0.5, 50, 0.0, ten), Point(1.0, 0.9, 10, 1.0, ten + 1)
    assert compress.choose([few, many]) is few


def test_a_network_that_answers_with_no_numbers_is_never_chosen(tmp_path):
    """All labels are the class that argmax gives where nothing is left of a normalised weight."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(12, 6))
    network = nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 2))
    rows = (X[:40], torch.zeros(40, dtype=torch.long))
    posterior = dubito.fit(network, rows, "map", steps=60, progress=False, device="cpu")
    compress.write(posterior, tmp_path / "n.safetensors", rows)
    assert bool(torch.isfinite(dubito.load_network(tmp_path / "n.safetensors", network)(X)).all())


def test_a_posterior_becomes_a_small_file(posteriors, tmp_path):
    posterior = posteriors["Sparse VD"]
    made = compress.write(posterior, tmp_path / "small.safetensors", (X[200:], Y[200:]))
    network = dubito.load_network(made.path)
    masked = compress.scored(posterior).masked(made.cut)
    torch.testing.assert_close(network(X), masked(X), rtol=1e-5, atol=1e-6)
    assert made.ratio > 5 and made.bytes == (tmp_path / "small.safetensors").stat().st_size
    assert made.dense_bytes >= 4 * sum(p.numel() for p in masked.parameters())
    assert made.smaller == made.dense_bytes / made.bytes > 1
    assert made.units[0] < 40 and made.units[-1] == 2 and made.seconds > 0
    assert made.error <= made.dense_error + 0.05
    assert [row[0] for row in made.table().rows] == ["dense", "compressed"]
    fixed = compress.write(posterior, tmp_path / "own.safetensors", (X[200:], Y[200:]), cut=-posterior.threshold)
    torch.testing.assert_close(dubito.load_network(fixed.path)(X), posterior.mean_network()(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Sparse VD", "VI", "MAP"])
@pytest.mark.parametrize("everything", [False, True])
def test_nothing_or_everything_may_go(posteriors, name, everything, tmp_path):
    """An empty network answers with the biases that are left, whatever the input."""
    cut = math.inf if everything else -math.inf
    made = compress.write(posteriors[name], tmp_path / "net.safetensors", (X[200:], Y[200:]), cut=cut)
    assert made.ratio == (math.inf if everything else 1.0) and set(made.sparsity.values()) == {float(everything)}
    network, masked = dubito.load_network(made.path), compress.scored(posteriors[name]).masked(cut)
    torch.testing.assert_close(network(X), masked(X), rtol=1e-5, atol=1e-6)
    assert made.units == ((1, 2) if everything else (40, 2))
    if everything:
        assert bool((network(X) == network(X[:1])).all())
        commonest = int(network(X[:1]).argmax())
        assert made.error == pytest.approx(float((Y[200:] != commonest).double().mean()))
    else:
        assert made.error == made.dense_error and made.smaller > 0.7


@pytest.mark.parametrize("by", ["signal_to_noise", "log_alpha"])
def test_weights_that_have_gone_go_first(posteriors, by, tmp_path):
    """Mean and standard deviation are 0 there, whose ratio is no number."""
    for before in (compress.pruned(posteriors["VI"], 0.5), posteriors["Sparse VD"].pruned()):
        held = compress.scored(before, by)
        gone = 1 - 1 / compress.ratio(held.network)
        share = (1 + gone) / 2
        assert 1 - 1 / compress.ratio(held.masked(held.at_share(share))) == pytest.approx(share, abs=0.01)
        made = compress.write(before, tmp_path / "net.safetensors", (X[200:], Y[200:]), by=by)
        assert made.ratio >= compress.ratio(held.network) > 1.5
    twice = compress.pruned(posteriors["Sparse VD"], 0.5)
    assert compress.scored(twice).cut == -3.0 and len({p.left for p in curve_of(twice)}) > 2


def curve_of(posterior: dubito.Posterior) -> list[Point]:
    return compress.points(compress.scored(posterior), posterior.likelihood, (X[200:], Y[200:]))


def test_a_rate_that_is_the_same_everywhere_is_no_score():
    options = {"steps": 5, "device": "cpu", "progress": False}
    for method in (dubito.GaussianDropout(), dubito.VariationalDropout(per="weight", learning_rate=0.05)):
        posterior = dubito.fit(dense(12, 10, 2), (X, Y), method, **options)
        fixed = type(method) is dubito.GaussianDropout
        assert compress.scored(posterior).by == ("magnitude" if fixed else "signal_to_noise")


def test_wrong_input_is_one_sentence(posteriors, tmp_path):
    path, rows = tmp_path / "net.safetensors", (X[200:], Y[200:])
    for wrong, options, match in [
        ((X,), {}, r"validation rows are a pair \(x, y\), got tuple"),
        ((X, Y[:3]), {}, "x has 300 rows and y has 3; they must agree"),
        ((X[:, :3], Y), {}, r"does not accept rows of \(3,\) float32"),
        (rows, {"cut": math.nan}, "cut is nan"),
        (rows, {"cut": "low"}, "cut is low, below which no score lies; give a number"),
        (rows, {"tolerance": None}, "tolerance is None standard errors"),
        (rows, {"tolerance": -1.0}, "tolerance is -1.0 standard errors; it must be 0 or more"),
    ]:
        with pytest.raises(ValueError, match=match):
            compress.write(posteriors["MAP"], path, wrong, **options)
    with pytest.raises(ValueError, match="there is no posterior to look at; give at least one"):
        compress.curve({}, rows)
    several = dubito.fit(dense(12, 4, 2), (X, Y), "sparse_vd", steps=1, members=2, device="cpu", progress=False)
    with pytest.raises(dubito.Undefined, match=r"no single network to make smaller .* posterior\.member\(0\)"):
        compress.write(several, path, rows)
    assert compress.write(several.member(0), path, rows).units


def test_regression_has_a_curve_too():
    y = X[:, 0] + 0.1 * torch.randn(300, generator=G)
    posterior = dubito.fit(
        nn.Linear(12, 1), (X, y), dubito.Variational(learning_rate=0.05), steps=200, device="cpu", progress=False
    )
    result = compress.curve({"VI": posterior}, (X, y), shares=(0.0, 0.5, 1.0))
    errors = [row[5] for row in result.tables[0].rows]
    assert errors[-1] == pytest.approx(1.0, abs=0.2) and errors[0] < 0.2 and "RMSE" in result.tables[0].columns


def test_labels_to_ignore_are_no_errors(tmp_path):
    """Of three labels a row one or two count, and the error is that of all that do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Linear(4, 2))
    y = (X.unflatten(1, (3, 4))[..., 0] > 0).long()
    y[:100, 1:], y[100:, 2] = 9, 9
    options = {"steps": 50, "device": "cpu", "progress": False, "likelihood": dubito.Categorical(ignore_index=9)}
    posterior = dubito.fit(net, (X, y), dubito.Variational(learning_rate=0.01), **options)
    logits = posterior.mean_network()(X).detach()
    expected = float((logits.argmax(-1) != y)[y != 9].float().mean())
    assert 0 < expected < 0.5
    made = compress.write(posterior, tmp_path / "net.safetensors", (X, y), cut=-math.inf)
    assert made.error == made.dense_error == pytest.approx(expected)
    (row,) = compress.pruning({"VI": posterior}, (X, y), shares=(0.0,), draws=5).numbers["VI"]
    assert row[3] == pytest.approx(expected)
    assert row[5] == pytest.approx(float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=9)), rel=1e-4)
    with pytest.raises(ValueError, match="every label is one to ignore, so there is no error to go by"):
        compress.curve({"VI": posterior}, (X, torch.full_like(y, 9)))


def test_writing_and_opening_leave_the_global_generator_alone(tmp_path):
    posterior = dubito.fit(dense(12, 6, 2), (X, Y), "variational", steps=3, progress=False, device="cpu")
    before = torch.get_rng_state()
    compress.write(posterior, tmp_path / "n.safetensors", (X, Y), cut=0.1)
    assert torch.equal(torch.get_rng_state(), before)
    dubito.load_network(tmp_path / "n.safetensors")
    assert torch.equal(torch.get_rng_state(), before)
