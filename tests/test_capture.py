"""Recorded steps: the numbers they read, and, where there is a GPU, that a replayed run equals an eager one."""

import pytest
import torch
from torch import nn

import dubito
from dubito import capture
from dubito.capture import AHEAD, Numbers
from dubito.loop import Diverged
from dubito.methods import registry
from dubito.methods.base import Sampler
from dubito.rng import Asked, Rng, Stream
from dubito.tick import Tick, add_scaled_

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def replayed(numbers, step):
    """What a recorded step would read."""
    numbers.seek(step)
    numbers.begin()
    row = numbers._row[: len(numbers.rules)].tolist()
    numbers.end()
    return row


def test_a_recorded_step_reads_the_numbers_of_its_step():
    numbers = Numbers(3 * AHEAD, torch.device("cpu"))
    numbers.begin()
    tick = Tick(numbers.step[0], numbers.steps, Rng(0), numbers)
    assert all(isinstance(tick.number(rule), torch.Tensor) for rule in (lambda s, n: s / n, lambda s, n: float(s)))
    for step in (5, 6, 7, AHEAD + 4, AHEAD + 5, AHEAD + 6, 2, 3 * AHEAD - 1):
        assert replayed(numbers, step) == pytest.approx([step / (3 * AHEAD), step])
    assert int(numbers.step) == 3 * AHEAD


def test_an_eager_step_has_floats():
    assert Tick.at(3, 10).number(lambda step, steps: step / steps) == 0.3


def test_a_scale_may_be_a_float_or_a_tensor():
    x = torch.arange(3.0)
    assert torch.equal(add_scaled_(torch.ones(3), x, 0.5), add_scaled_(torch.ones(3), x, torch.tensor(0.5)))


@pytest.mark.parametrize(
    ("asked", "seeded"),
    [
        (Asked("normal", torch.Size([capture.MANY]), torch.float32), True),
        (Asked("normal", torch.Size([capture.MANY - 1]), torch.float32), False),
        (Asked("normal", torch.Size([capture.MANY]), torch.float64), False),
        (Asked("uniform", torch.Size([capture.MANY]), torch.float32), False),
    ],
)
def test_of_very_many_normals_a_compiled_step_is_given_a_seed(asked, seeded):
    drawn = capture._drawn_before(asked)
    assert drawn == (Asked("seed", torch.Size(), torch.long) if seeded else asked)


def test_a_seed_is_a_function_of_the_step():
    stream, seeds = Stream(torch.device("cpu")), []
    for step in (3, 4, 3):
        Rng(0, stream=stream).at(step)
        seeds.append(int(stream.draw("seed", torch.zeros((), dtype=torch.long))))
    assert seeds[0] == seeds[2] != seeds[1]


@gpu
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_compiled_step_rounds_as_it_was_asked_to(precision, monkeypatch):
    seen = []
    fused = capture.fused
    monkeypatch.setattr(capture, "fused", lambda *a: seen.append(torch.backends.cuda.matmul.allow_tf32) or fused(*a))
    settings = {"steps": 30, "members": 2, "device": "cuda", "progress": False, "precision": precision}
    dubito.fit(network(), data(), "map", compiled=True, **settings)
    assert seen == [precision == "tf32"]
    assert not torch.backends.cuda.matmul.allow_tf32


@gpu
def test_noise_drawn_inside_a_compiled_step_has_the_right_moments(monkeypatch):
    monkeypatch.setattr(capture, "MANY", 1)
    x, y = torch.zeros(10, 40), torch.zeros(10, 20)
    before = torch.cuda.get_rng_state()
    chain = dubito.fit(
        nn.Linear(40, 20), (x, y), dubito.SGLD(step_size=0.5, burn_in=100, thin=20), steps=400, members=64,
        likelihood=dubito.Gaussian(std=1e6), prior=dubito.Normal(std=1.0), batch_size=10, compiled=True, device="cuda",
        progress=False,
    )  # fmt: skip
    theta = chain.thetas(len(chain)).double()
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert abs(float(theta.mean())) < 0.01
    assert float(theta.var()) == pytest.approx(1 / (1 - 0.5 / 4), rel=0.02)  # of the discretised diffusion
    assert abs(float(torch.corrcoef(torch.stack([theta[0::64].flatten(), theta[1::64].flatten()]))[0, 1])) < 0.05


class Alternating:
    """Every third step does something else."""

    device = torch.device("cuda")

    def __init__(self, why=None):
        self.why, self.steps = why, []

    def step(self, state, tick):
        self.steps.append(int(tick.step))
        return state, None

    def obstacle(self):
        return self.why

    def kind(self, state, step):
        return step % 3 == 2

    def ready(self, step):
        pass


class Nothing:
    def add(self, info, step):
        pass


class Recording:
    """In place of a graph: which steps of a kind it stands for."""

    made = ()

    def __init__(self, owner, subject, *rest):
        self.kind, self.steps, self.rest = subject.kind, [], rest
        type(self).made = (*type(self).made, self)

    def __call__(self, step):
        self.steps.append(step)


@pytest.fixture
def without_gpu(monkeypatch):
    """Takes steps as on a GPU, with nothing recorded in truth."""

    def taken(stepper, steps, **options):
        advance = capture.Advance(stepper, steps, 0, Nothing(), **options)
        for step in range(steps):
            advance(None, step)

    monkeypatch.setattr(capture, "Stream", lambda device: Stream(torch.device("cpu")))
    monkeypatch.setattr(capture, "TIMED", 0)
    for name in ("_Replay", "_Compiled"):
        monkeypatch.setattr(capture, name, type(name, (Recording,), {}))
    return taken


def test_each_kind_of_step_is_recorded_by_itself(without_gpu):
    stepper = Alternating()
    without_gpu(stepper, 60, compiled=False)
    usual, other = capture._Replay.made
    assert stepper.steps == [0, 1, 2, 3, 5, 8]
    assert usual.steps == [step for step in range(4, 60) if step % 3 < 2]
    assert other.steps == [step for step in range(9, 60) if step % 3 == 2]


def test_a_kind_that_comes_late_stays_eager(without_gpu):
    stepper = Alternating()
    without_gpu(stepper, capture.WORTH + 5, compiled=False)
    assert [recording.kind for recording in capture._Replay.made] == [False]


def test_each_kind_is_compiled_where_that_was_asked_for(without_gpu):
    without_gpu(Alternating(), 60, compiled=True)
    assert [recording.kind for recording in capture._Compiled.made] == [False, True]
    assert all(recording.steps for recording in capture._Compiled.made)
    assert not any(recording.steps for recording in capture._Replay.made)


def test_why_steps_are_not_recorded_is_said_once(without_gpu, capsys):
    stepper = Alternating("it must not")
    without_gpu(stepper, 60)
    assert stepper.steps == list(range(60))
    assert capsys.readouterr().err.count("it must not") == 1


def test_another_clock_has_its_own_numbers():
    def lessons(step):
        return step // 10

    eager = Tick.at(57, 100).on(lessons, 10)
    assert int(eager.step) == 5 and eager.number(lambda step, steps: step / steps) == 0.5
    numbers = Numbers(100, torch.device("cpu"))
    numbers.begin()
    recorded = Tick(numbers.step[0], 100, Rng(0), numbers).on(lessons, 10)
    recorded.number(lambda step, steps: step / steps)
    assert replayed(numbers, 57) == pytest.approx([5, 0.5])


def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 1, 8, 8, generator=g)
    return x, (x.mean((1, 2, 3)) > 0).long()


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 16), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(16, 2))


def answers(method, monkeypatch, recorded, prior=None, compiled=False):
    """What 100 steps lead to, as probabilities; two members."""
    monkeypatch.setattr(capture, "WORTH", 1 if recorded else 1 << 60)
    size = None if method.full_batch else 32
    steps = 12 if method.full_batch else 100  # trajectories blow up rounding
    settings = {"members": 2, "steps": steps, "batch_size": size, "device": "cuda", "progress": False}
    x, y = (t.double() if method.full_batch and t.is_floating_point() else t for t in data())
    net = network().to(x.dtype)
    made = dubito.fit(net, (x, y), method, prior=prior, compiled=compiled, **settings)
    return made.predict(x, draws=4).probs


METHODS = sorted(registry())


@gpu
@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_run_equals_the_eager_one(name, monkeypatch, capsys):
    cls = registry()[name]
    burns_in = issubclass(cls, Sampler) and not name.startswith("Cyclical")
    method = cls(burn_in=5, thin=7) if burns_in else cls()
    eager, replayed = (answers(method, monkeypatch, recorded) for recorded in (False, True))
    assert "cannot be" not in capsys.readouterr().err
    torch.testing.assert_close(replayed, eager, rtol=1e-3, atol=1e-4)


class Reading(dubito.Prior):
    """Reads a number back, which a recording forbids."""

    def log_prob(self, value):
        return dubito.Normal(1.0).log_prob(value) if float(value.detach().sum()) < 1e9 else value


@gpu
def test_a_run_whose_step_cannot_be_recorded_goes_on_eagerly(monkeypatch, capsys):
    method = dubito.SGLD(burn_in=5, thin=7)
    known, found = (answers(method, monkeypatch, recorded, Reading()) for recorded in (False, True))
    assert capsys.readouterr().err.count("cannot be recorded") == 1
    torch.testing.assert_close(found, known)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(3, device="cuda").shape == (3,)


@gpu
def test_long_trajectories_are_recorded_as_a_whole(monkeypatch, capsys):
    x = torch.linspace(-2, 2, 60, dtype=torch.float64).unsqueeze(1)
    found = []
    for worth in (1 << 60, 1):
        monkeypatch.setattr(capture, "WORTH", worth)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)).double()
        settings = {"likelihood": dubito.Gaussian(std=0.1), "steps": 9, "members": 4, "device": "cuda"}
        method = dubito.HMC(leapfrog=100, step_size=1e-4, burn_in=5)
        found.append(dubito.fit(net, (x, x.sin()), method, progress=False, **settings).predict(x, draws=16).mean)
    assert "cannot be" not in capsys.readouterr().err
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("estimator", ["local", "weights", "flipout"])
@pytest.mark.parametrize("draws", [1, 3])
def test_a_recorded_variational_run_equals_the_eager_one(estimator, draws, monkeypatch, capsys):
    method = dubito.Variational(estimator=estimator, draws=draws, kl="blundell", schedule="cosine")
    prior = dubito.ScaleMixture(0.25, 1.0, 0.01)
    eager, replayed = (answers(method, monkeypatch, recorded, prior) for recorded in (False, True))
    assert "cannot be" not in capsys.readouterr().err
    torch.testing.assert_close(replayed, eager, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("name", ["MAP", "SGLD", "Variational", "MCDropout", "SparseVD"])
def test_a_compiled_run_equals_the_eager_one(name, monkeypatch, capsys):
    method = registry()[name](**({"burn_in": 20, "thin": 10} if name == "SGLD" else {}))
    prior = None if name == "SGLD" else {"*bias": dubito.Point(), "*": dubito.FanIn()}
    eager = answers(method, monkeypatch, False, prior)
    fused = answers(method, monkeypatch, True, prior, compiled=True)
    assert "cannot be" not in capsys.readouterr().err
    torch.testing.assert_close(fused, eager, rtol=1e-3, atol=1e-4)


@gpu
def test_a_recorded_run_stops_when_it_diverges():
    with pytest.raises(Diverged):
        dubito.fit(network(), data(), dubito.SGLD(step_size=1e3, burn_in=0), steps=300, device="cuda", progress=False)


@gpu
def test_a_recorded_run_takes_augmented_rows():
    seen = []

    def augment(x, generator):
        seen.append(1)
        return x + torch.randn(x.shape, generator=generator, device=x.device)

    dubito.fit(network(), data(), "map", steps=50, device="cuda", progress=False, augment=augment)
    assert len(seen) >= 50


@gpu
def test_a_recorded_run_goes_on_where_it_stopped(tmp_path):
    method = dubito.SGLD(burn_in=0, thin=50)
    whole = dubito.fit(network(), data(), method, steps=200, device="cuda", progress=False, folder=tmp_path / "a")
    dubito.fit(network(), data(), method, steps=100, device="cuda", progress=False, folder=tmp_path / "b")
    parts = dubito.fit(network(), data(), method, steps=200, device="cuda", progress=False, folder=tmp_path / "b")
    for name, value in whole.sample(4).items():
        torch.testing.assert_close(parts.sample(4)[name], value, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_small_steps_do_not_round_to_nothing(precision):
    method = dubito.SGLD(step_size=1e-9, burn_in=0, thin=1)
    settings = {"steps": 30, "device": "cuda", "progress": False, "precision": precision}
    made = dubito.fit(network(), data(), method, prior=dubito.Normal(1.0), **settings)
    moved = torch.cat([v.flatten(1) for v in made.sample(30).values()], 1).diff(dim=0)
    assert made.about["precision"] == precision
    assert (moved != 0).float().mean() > 0.9
    assert abs(float(moved.std()) / 1e-9**0.5 - 1) < 0.1
