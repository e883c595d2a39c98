"""Distillation while a sampler runs."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import dubito
from dubito import metrics
from dubito.distill import Adversarial, DarkKnowledge, Optimiser
from dubito.distill.frames import fit_, follow_
from dubito.distill.online import Due
from dubito.initial import starting_points
from dubito.posteriors.generator import GeneratorPosterior
from dubito.posteriors.student import StudentPosterior
from dubito.priors import assign
from dubito.rng import Prepared, Rng, Stream, derive
from dubito.target import Batch, Target
from dubito.tick import Tick

QUIET = {"progress": False, "device": "cpu"}
SAMPLER = dubito.SGLD(burn_in=20, thin=2)
SMALL = Adversarial(noise=4, widths=(16,), batch_size=16, optimiser=Optimiser("adam", 2e-3, 0.5, 0.9))
ALONG = replace(SMALL, directions=6)
METHODS = {
    "generator": dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, every=4, buffer=20, restart=30),
    "along": dubito.OnlineDistillation(sampler=SAMPLER, distiller=ALONG, every=4, buffer=20, restart=30),
    "student": dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(learning_rate=0.02), every=2),
}


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def numbers(posterior) -> torch.Tensor:
    return posterior.thetas(5)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_stopped_continues_to_the_same_bits_and_stores_no_chain(name, classifier, tmp_path):
    class Stop(Exception):
        pass

    def brake(record):
        if record["step"] >= 75:
            raise Stop

    _, x, y = classifier
    options = {"steps": 100, "batch_size": 20, "members": 2, "checkpoint_every": 30, **QUIET}
    options["validation"] = (x[:20], y[:20])
    whole = dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "parts", callback=brake, **options)
    parts = dubito.fit(net(), (x, y), METHODS[name], folder=tmp_path / "parts", **options)
    assert torch.equal(numbers(parts), numbers(whole))
    assert isinstance(parts, StudentPosterior if name == "student" else GeneratorPosterior)
    again = dubito.load(tmp_path / "parts", net(), device="cpu")
    assert torch.equal(numbers(again), numbers(whole)) and type(again) is type(whole)
    kept = sorted(p.name for p in (tmp_path / "parts" / "posterior").iterdir())
    assert sum(n.startswith("samples-") for n in kept) == (name == "student")
    records = [json.loads(line) for line in (tmp_path / "parts" / "history.jsonl").read_text().splitlines()]
    assert {"fit", "complexity", "learner", "validation"} <= set(records[-1])


STEPS = 50
THINNED = dubito.SGLD(burn_in=6, thin=3)
LINEAR = replace(SMALL, schedule="linear", critic_steps=2)
GAME = {"every": 6, "rounds": 2, "buffer": 10, "restart": 12}
PLAIN = DarkKnowledge(learning_rate=0.02, optimiser="sgd", schedule="cosine")  # Adam on the CPU reads its step
ALTERNATING = {
    "generator": dubito.OnlineDistillation(sampler=THINNED, distiller=LINEAR, **GAME),
    "along": dubito.OnlineDistillation(sampler=THINNED, distiller=replace(LINEAR, directions=4), **GAME),
    "student": dubito.OnlineDistillation(sampler=THINNED, distiller=PLAIN, every=3, rounds=2),
}


def begun(method, x, y, members):
    """A target, a state and the batch of a step."""
    target = Target(dubito.Net(net()), dubito.Categorical(), assign(None, net()), len(y))
    theta = target.start(starting_points(target.net, members, 0, None))
    state = method.init(theta, target, Tick.at(0, STEPS))

    def batch(step):
        rows = (torch.arange(20) + step) % len(y)
        return Batch(x[rows], y[rows], rows)

    return target, state, batch


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", ["generator", "along"])
def test_an_update_is_that_of_the_sampler_then_of_the_buffer_then_of_the_game(classifier, name, members):
    """The loop written out: the whole method must come to the same bits."""
    method, (_, x, y) = ALTERNATING[name], classifier
    target, state, batch = begun(method, x, y, members)
    chains, learner = tree_map(torch.clone, (state.chains, state.learner))
    settings, frame, game, entered, turns = method.distiller, learner.frame, method._game(target), 0, 0
    for step in range(STEPS):
        tick = Tick.at(step, STEPS)
        state, told = method.step(state, batch(step), target, tick)
        with torch.no_grad():
            chains, _ = THINNED.step(chains, batch(step), target, tick)
            if step + 1 > 6 and (step + 1) % 3 == 0:
                place, entered = entered, entered + members
                if place >= 10:
                    place = derive(0, "buffer", entered) % entered
                for number, theta in enumerate(chains[0] if place < 10 or entered - members < 10 else ()):
                    learner.buffer[(place + number) % 10] = theta
                    if frame.axes:
                        frame.axes.rows[(place + number) % 10] = frame.inward(chains[0])[number]
                if any(bound <= entered < bound + members for bound in (10, 20, 40)):
                    args = (learner.buffer, settings, tick.rng.child("directions"))
                    follow_(frame, learner.game, *args) if turns else fit_(frame, *args)
                    turns += 1
            if entered >= 10 and (step + 1) % 6 == 0:
                for number in range(2):
                    inputs = game.inputs(tick.rng.child(f"round {number}"), 10, learner.buffer, tick)
                    rows = frame.axes.rows if frame.axes else frame.inward(learner.buffer)
                    latest = game.step(learner.game, lambda index, rows=rows: rows[index], inputs)
                assert torch.equal(told.learner, latest.estimate.expand(members))
            if entered >= 10 and (step + 1) % 12 == 0:
                z = tick.rng.child("restart").normal_(torch.empty(1, members, 4), "z")[0]
                made = game.generator(learner.game.averaged, z)
                chains[0].copy_(frame.outward(made))
    assert entered >= 10 + members and turns >= 1 + (members == 3)
    ours, known = tree_leaves((state.chains, state.learner)), tree_leaves((chains, learner))
    assert all(torch.equal(a, b) for a, b in zip(ours, known, strict=True))


@pytest.mark.parametrize("chains", [1, 3])
def test_a_full_buffer_is_an_even_sample_of_all_that_came(chains):
    """By counting what is still there of each fifth, within four standard errors; chains stay and go together."""
    method, held = dubito.OnlineDistillation(buffer=4_200), {}
    for reached in range(chains, 60_000 + chains, chains):
        place = method._place(reached, chains)
        for i in range(chains if place is not None else 0):
            held[(place + i) % 4_200] = reached - chains + i
    assert sorted(held) == list(range(4_200)) and len(set(held.values())) == 4_200
    fifths = torch.histogram(torch.tensor([float(age) for age in held.values()]), bins=5, range=(0.0, 60_000.0)).hist
    assert float((fifths / 4_200 - 0.2).abs().max()) < 4 * (0.2 * 0.8 / (4_200 / chains)) ** 0.5


class Replays:
    """Steps as a GPU takes them: the first of a kind is traced, and others are that trace with their own numbers."""

    def __init__(self, method, target, state):
        self.method, self.target = method, target
        self.spec, self.traces = tree_flatten(state)[1], {}

    def __call__(self, state, batch, step):
        """What is told; the state changes in place."""
        kind, stream = self.method.kind(state, step, STEPS), Stream(torch.device("cpu"))
        rng = Rng(0, stream=stream).at(step)
        if kind not in self.traces:
            self.traces[kind] = self._trace(kind, tree_map(torch.clone, state), batch, step, rng)
        traced, rules, asked = self.traces[kind]
        numbers = [torch.tensor(float(rule(step, STEPS))) for rule in rules]
        rng.at(step)
        noise = [stream.draw(a.kind, torch.empty(a.shape, dtype=a.dtype)) for a in asked]
        return traced(tree_leaves(state), batch.x, batch.y, torch.tensor(step), numbers, noise)

    def _trace(self, kind, state, batch, step, rng):
        rules = []

        def recorder(rule):
            rules.append(rule)
            return torch.tensor(float(rule(step, STEPS)))

        self.method.step(tree_map(torch.clone, state), batch, self.target, Tick(None, STEPS, rng, recorder, kind))
        asked = list(rng.stream.asked)

        def pure(leaves, x, y, clock, numbers, noise):
            given, own = iter(numbers), replace(rng, stream=Prepared(noise))
            tick = Tick(clock, STEPS, own, lambda rule: next(given), kind)
            held = tree_unflatten(list(leaves), self.spec)
            return tuple(self.method.step(held, Batch(x, y, batch.rows), self.target, tick)[1])

        noise = [torch.rand(a.shape, dtype=a.dtype) for a in asked]
        numbers = [torch.tensor(float(rule(step, STEPS))) for rule in rules]
        traced = make_fx(pure)(tree_leaves(state), batch.x, batch.y, torch.tensor(step), numbers, noise)
        return traced, rules, asked


@pytest.mark.parametrize(("name", "members"), [("generator", 3), ("along", 3), ("student", 1), ("student", 3)])
def test_updates_of_a_kind_are_replays_of_one_another(name, members, classifier):
    """So a GPU may record one of each kind: nothing that changes with the step was read on the host."""
    method, (_, x, y) = ALTERNATING[name], classifier
    target, state, batch = begun(method, x, y, members)
    replayed = tree_map(torch.clone, state)
    replays = Replays(method, target, state)
    with torch.no_grad():
        for step in range(STEPS):
            rng = Rng(0, stream=Stream(torch.device("cpu"))).at(step)
            _, told = method.step(state, batch(step), target, Tick(torch.tensor(step), STEPS, rng))
            again = replays(replayed, batch(step), step)
            for ours, known in zip(again, told, strict=True):
                torch.testing.assert_close(ours, known)
    kinds = {method.kind(state, step, STEPS) for step in range(STEPS)}
    assert set(replays.traces) == kinds and len(kinds) >= (2 if name == "student" else 5)
    for ours, known in zip(tree_leaves(replayed), tree_leaves(state), strict=True):
        torch.testing.assert_close(ours, known, rtol=1e-4, atol=1e-5)


def test_the_kind_of_an_update_says_what_it_does(classifier):
    _, x, y = classifier
    method = ALTERNATING["generator"]
    _, state, _ = begun(method, x, y, 3)
    due = [method.kind(state, step, STEPS) for step in range(STEPS)]
    full, later = [9, 12, 15, 18], {3 * (k + 2): derive(0, "buffer", 3 * k) % (3 * k) < 10 for k in range(5, 15)}
    assert [step + 1 for step in range(48) if due[step].enters] == full + [step for step, lot in later.items() if lot]
    assert 0 < sum(later.values()) < 10
    assert {step + 1: due[step].turn for step in range(STEPS) if due[step].turn} == {18: 1, 27: 2, 48: 3}
    assert [step + 1 for step in range(30) if due[step].learns] == [18, 24, 30]
    assert [step + 1 for step in range(40) if due[step].restarts] == [24, 36]
    taught = ALTERNATING["student"]
    learns = [step + 1 for step in range(20) if taught.kind(state, step, STEPS) == Due(learns=True)]
    assert learns == [9, 12, 15, 18]


def test_an_online_student_predicts_like_the_chain(classifier):
    _, x, y = classifier
    sampler = dubito.SGLD(burn_in=100, thin=5)
    student = DarkKnowledge(learning_rate=0.01, schedule="cosine", noise=0.05)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=student, every=1)
    taught = dubito.fit(net(), (x, y), sampler, steps=600, members=4, **QUIET).predict(x)
    said = dubito.fit(net(), (x, y), method, steps=600, members=4, **QUIET).predict(x)
    assert metrics.total_variation(said.probs, taught.probs) < 0.06


def test_the_chains_are_those_of_the_sampler_alone(classifier):
    """Without restarts a learner changes nothing of what it learns from."""
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=10)
    found: list[torch.Tensor] = []
    for chosen in (method, SAMPLER):
        records: list[float] = []
        options = {"steps": 60, "batch_size": 20, "callback": lambda r, to=records: to.append(r["fit"]), **QUIET}
        dubito.fit(net(), (x, y), chosen, **options)
        found.append(torch.tensor(records))
    assert torch.equal(*found)


def held(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint.safetensors")


def test_the_buffer_holds_samples_of_the_chain_and_no_more(classifier, tmp_path):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=10)
    options = {"steps": 75, "batch_size": 20, "members": 2, **QUIET}
    chain = dubito.fit(net(), (x, y), SAMPLER, folder=tmp_path / "chain", **options)
    dubito.fit(net(), (x, y), method, folder=tmp_path / "online", **options)
    (buffer,) = (t for n, t in held(tmp_path / "online").items() if n.endswith("buffer"))
    stored = chain.samples.get(range(len(chain)))[0]
    assert len(stored) == 2 * ((75 - 20) // 2) and buffer.shape == (10, stored.shape[1])
    which = [(stored == row).all(1).nonzero().flatten().tolist() for row in buffer]
    assert all(len(one) == 1 for one in which) and len({one[0] for one in which}) == 10
    assert max(one[0] for one in which) >= 10


@pytest.mark.parametrize("restart", [None, 30])
def test_restarted_chains_stand_where_the_generator_put_them(classifier, tmp_path, restart):
    """A generator with one hidden unit emits a line; only chains that were just restarted lie on it."""
    _, x, y = classifier
    line = Adversarial(noise=2, widths=(1,), batch_size=8, averaging=0.0)
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=line, buffer=10, restart=restart)
    options = {"steps": 60, "batch_size": 20, "members": 2, "folder": tmp_path, **QUIET}
    made = dubito.fit(net(), (x, y), method, **options)
    theta = next(t for n, t in held(tmp_path).items() if n.endswith("theta"))
    along, start = made.parameters["head.0.weight"][:, 0], made.parameters["head.0.bias"]
    away = theta - start
    off = away - (away @ along / along.square().sum()).unsqueeze(1) * along
    assert (float(off.abs().max()) < 1e-5) == (restart is not None)


def test_an_online_regression_student_learns_mean_and_total_variance():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 40).unsqueeze(1)
    y = x[:, 0] + 0.3 * torch.randn(40, generator=generator)
    sampler = dubito.SGLD(burn_in=100, thin=5, step_size=2e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        student = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))
    settings = DarkKnowledge(student=student, learning_rate=0.02, schedule="cosine", noise=0.1)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=settings, every=2)
    options = {"likelihood": dubito.Gaussian(0.3), "steps": 900, "members": 4, "batch_size": 40, **QUIET}
    taught, said = (dubito.fit(nn.Linear(1, 1), (x, y), m, **options).predict(x) for m in (sampler, method))
    assert (said.mean - taught.mean).abs().max() < 0.15
    assert (said.std / taught.std - 1).abs().max() < 0.15
    with pytest.raises(dubito.Undefined, match="a student is one network"):
        _ = said.epistemic


def test_a_buffer_that_never_fills_is_an_error(classifier):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=SMALL, buffer=1000)
    with pytest.raises(ValueError, match="a buffer of 1000 does not fit a run that keeps 15 samples of 1 chains"):
        dubito.fit(net(), (x, y), method, steps=50, **QUIET)


@pytest.mark.parametrize(
    ("distiller", "every", "sentence"),
    [
        (SMALL, 60, "is full after the last round of the generator, which has one every 60 of 50 updates"),
        (SMALL, 26, "is full after the last round of the generator, which has one every 26 of 50 updates"),
        (DarkKnowledge(), 51, "a student learns nothing in 50 steps with a lesson every 51 after a burn-in of 20"),
    ],
)
def test_a_run_without_a_lesson_is_an_error(classifier, distiller, every, sentence):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=distiller, every=every, buffer=15)
    with pytest.raises(ValueError, match=sentence):
        dubito.fit(net(), (x, y), method, steps=50, **QUIET)


def test_a_student_with_other_outputs_is_refused(classifier):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(student=nn.Linear(3, 5)), every=2)
    with pytest.raises(ValueError, match=r"outputs of \(5,\) where its teacher's ask for \(2,\)"):
        dubito.fit(net(), (x, y), method, steps=30, **QUIET)


@pytest.mark.parametrize("student", [nn.Linear(4, 2), nn.Linear(3, 2).double(), nn.Linear(3, 5), nn.LSTM(3, 2)])
def test_a_student_that_does_not_fit_is_refused_before_the_first_update(student, classifier):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=SAMPLER, distiller=DarkKnowledge(student=student), every=2)
    with pytest.raises(ValueError, match=r"the student (does not accept its teacher's inputs|has outputs of)"):
        dubito.fit(net(), (x, y), method, steps=30, callback=lambda _: pytest.fail("it has begun"), **QUIET)


def test_wrong_settings_say_so():
    with pytest.raises(ValueError, match="every must be at least 1"):
        dubito.OnlineDistillation(every=0)
    with pytest.raises(ValueError, match="restart needs a generator"):
        dubito.OnlineDistillation(distiller=DarkKnowledge(), restart=10)
    with pytest.raises(ValueError, match="CyclicalSGLD explores in between; use SGLD or SGHMC"):
        dubito.OnlineDistillation(sampler=dubito.CyclicalSGLD())


def test_a_sampler_that_needs_all_rows_gets_them(classifier):
    _, x, y = classifier
    method = dubito.OnlineDistillation(sampler=dubito.HMC(burn_in=2, leapfrog=2), distiller=SMALL, every=2, buffer=4)
    assert dubito.fit(net(), (x, y), method, steps=8, **QUIET).about["batch_size"] == len(x)
    with pytest.raises(ValueError, match=f"uses all {len(x)} rows at every step; leave batch_size out"):
        dubito.fit(net(), (x, y), method, steps=8, batch_size=5, **QUIET)


def test_a_buffer_of_one_has_no_spread_and_is_no_reason_to_warn():
    method = dubito.OnlineDistillation(sampler=dubito.SGLD(burn_in=2, thin=1), distiller=SMALL, every=2, buffer=1)
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    made = dubito.fit(net(), (x, (x[:, 0] > 0).long()), method, steps=6, **QUIET)
    assert bool(torch.isfinite(made.predict(x).probs).all())
