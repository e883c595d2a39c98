"""The two networks of adversarial distillation, against autograd and against each other."""

import pytest
import torch

from dubito.distill.critic import Critic
from dubito.distill.game import Adversarial, Game
from dubito.distill.optimisers import Optimiser
from dubito.posteriors.generator import Generator
from dubito.rng import Rng
from dubito.tick import Tick

LIKE = torch.empty(0, dtype=torch.float64)


def test_slopes_are_those_of_autograd_and_so_are_their_gradients():
    critic, parameters = Critic(12, (7, 5)), {}
    parameters = {n: p.requires_grad_() for n, p in critic.init(Rng(0), LIKE).items()}
    x = Rng(1).normal_(torch.empty(9, 12, dtype=torch.float64), "x").requires_grad_()
    scores = critic.scores(parameters, critic.first(parameters, x))
    (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    slopes = critic.slopes(parameters, critic.first(parameters, x.detach()))
    torch.testing.assert_close(slopes, slope.norm(dim=1))
    weights = [p for n, p in parameters.items() if n.endswith("weight")]
    by_hand = torch.autograd.grad((slopes - 1).square().mean(), weights)
    by_double = torch.autograd.grad((slope.norm(dim=1) - 1).square().mean(), weights)
    for one, other in zip(by_hand, by_double, strict=True):
        torch.testing.assert_close(one, other)


def test_first_layer_of_a_mixture_is_the_mixture_of_first_layers():
    critic = Critic(6, (4,))
    parameters = critic.init(Rng(0), LIKE)
    a, b = Rng(1).normal_(torch.empty(2, 5, 6, dtype=torch.float64), "x")
    mixed = torch.lerp(critic.first(parameters, a), critic.first(parameters, b), 0.3)
    torch.testing.assert_close(mixed, critic.first(parameters, torch.lerp(a, b, 0.3)))


SHAPES = ((6, 5), (6,), (2, 6), (2,))


@pytest.mark.parametrize("rank", [None, 1, 2])
def test_a_generator_emits_vectors_of_the_layout(rank):
    generator = Generator(3, (8,), SHAPES, rank)
    parameters = generator.init(Rng(0), LIKE)
    out = generator(parameters, Rng(1).normal_(torch.empty(4, 3, dtype=torch.float64), "z"))
    assert out.shape == (4, 50)
    if rank is not None:
        first = out[:, :30].unflatten(1, (6, 5))
        assert torch.linalg.matrix_rank(first).tolist() == [rank] * 4
        assert len(parameters["head.0.bias"]) == 11 * rank


@pytest.mark.parametrize("rank", [None, 1])
def test_putting_standardised_weights_back(rank):
    generator = Generator(3, (8,), SHAPES, rank)
    parameters, z = generator.init(Rng(0), LIKE), torch.randn(4, 3, dtype=torch.float64)
    shift, scale = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    expected = shift + scale * generator(parameters, z)
    torch.testing.assert_close(generator(generator.standardised(parameters, shift, scale), z), expected)


def test_numbers_stored_are_those_of_the_paper():
    """z32-20-20-20-79,510 has the 1.67 million parameters of the paper's analysis."""
    generator = Generator(32, (20, 20, 20), ((100, 784), (100,), (10, 100), (10,)))
    assert sum(o * i + o for o, i in generator.layers.values()) == 1_671_210


@pytest.mark.parametrize("objective", ["wgan-gp", "wgan", "gan"])
def test_the_critic_learns_to_tell_apart_and_tensors_stay_where_they_are(objective):
    game = Game(
        Adversarial(objective=objective, noise=2, widths=(8,), optimiser=Optimiser("adam", 1e-2), schedule="linear"),
        ((3,),),
    )
    state = game.init(Rng(0), LIKE)
    real = torch.full((10, 3), 2.0, dtype=torch.float64)
    addresses = [p.data_ptr() for p in (*state.generator.values(), *state.critic.values())]
    infos = [
        game.step(state, lambda rows: real[rows % 10], game.inputs(Rng(0, i), 10, LIKE, Tick.at(i, 30)))
        for i in range(30)
    ]
    assert [p.data_ptr() for p in (*state.generator.values(), *state.critic.values())] == addresses
    assert all(torch.isfinite(torch.cat(list(info))).all() for info in infos)
    assert infos[0].estimate.shape == (1,) and float(infos[10].estimate) > float(infos[0].estimate)
    if objective == "wgan":
        assert max(float(p.abs().max()) for p in state.critic.values()) <= 0.01


def test_adam_and_rmsprop_are_those_of_torch():
    for kind, peer in (("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)):
        start = torch.tensor([1.0, -2.0, 3.0])
        ours, theirs = {"p": start.clone()}, torch.nn.Parameter(start.clone())
        optimiser = Optimiser(kind, 0.02, 0.5, 0.9)
        options = {"betas": (0.5, 0.9)} if kind == "adam" else {"alpha": 0.9}
        other, moments = peer([theirs], lr=0.01, eps=1e-8, **options), optimiser.init(ours)
        for _ in range(5):
            optimiser.descend_(ours, [2 * ours["p"]], moments, torch.tensor(0.5))
            theirs.grad = 2 * theirs.detach()
            other.step()
        torch.testing.assert_close(ours["p"], theirs.detach())


def test_adam_in_plain_operations_is_the_fused_one():
    optimiser, rate = Optimiser("adam", 0.02, 0.5, 0.9), torch.tensor(0.01)
    parts = [[torch.tensor([1.0, -2.0])], [torch.zeros(2)], [torch.zeros(2)]]
    other = [[t.clone() for t in part] for part in parts]
    for count in range(4):
        grads = [torch.tensor([0.3, -4.0]) * (count + 1)]
        optimiser._adam_(parts[0], grads, *parts[1:], torch.tensor(float(count)), rate)
        optimiser._fused_(other[0], grads, *other[1:], torch.tensor(float(count)), rate)
    torch.testing.assert_close(parts, other)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"objective": "vae"}, "unknown objective 'vae'"),
        ({"objective": ["gan"]}, r"unknown objective \['gan'\]"),
        ({"noise": 0}, "noise must be at least 1"),
        ({"widths": ()}, "widths is empty; give the width of each layer"),
        ({"critic_steps": 0}, "critic_steps must be at least 1"),
        ({"penalty": 0.0}, "penalty must be positive"),
    ],
)
def test_wrong_settings_say_so(wrong, said):
    with pytest.raises(ValueError, match=said):
        Adversarial(**wrong)


def textbook_critic_loss(objective, game, parameters, real, fake, share):
    """Losses as the papers write them, with slopes at mixed vectors by autograd."""

    def score(x):
        return game.critic.scores(parameters, game.critic.first(parameters, x))

    if objective == "gan":
        ones, zeros = torch.ones(len(real), dtype=real.dtype), torch.zeros(len(fake), dtype=fake.dtype)
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return entropy(score(real), ones) + entropy(score(fake), zeros)
    loss = score(fake).mean() - score(real).mean()
    if objective == "wgan-gp":
        mixed = ((1 - share) * real + share * fake).requires_grad_()
        (slope,) = torch.autograd.grad(score(mixed).sum(), mixed, create_graph=True)
        loss = loss + 10 * (slope.norm(dim=1) - 1).square().mean()
    return loss


@pytest.mark.parametrize("objective", ["wgan-gp", "wgan", "gan"])
def test_one_round_by_the_textbook(objective):
    """A step of the critic and one of the generator, by torch's optimisers on losses written out in weight space."""
    settings = Adversarial(objective=objective, noise=3, widths=(6, 5), batch_size=7, critic_steps=1, averaging=0.0)
    game = Game(settings, ((2, 3), (4,)))
    state = game.init(Rng(0), LIKE)
    inputs = game.inputs(Rng(1), 20, LIKE, Tick(torch.tensor(0), 10, Rng(1)))
    rows = Rng(2).normal_(torch.empty(20, 10, dtype=torch.float64), "rows")
    critic, generator = ({n: p.clone().requires_grad_() for n, p in s.items()} for s in (state.critic, state.generator))
    by = torch.optim.RMSprop if objective == "wgan" else torch.optim.Adam
    rates = {"wgan-gp": (1e-4, (0.5, 0.9)), "wgan": (5e-5, None), "gan": (2e-4, (0.5, 0.999))}
    rate, betas = rates[objective]
    options = {"lr": rate, "eps": 1e-8} | ({"alpha": 0.99} if betas is None else {"betas": betas})
    for_critic, for_generator = by(critic.values(), **options), by(generator.values(), **options)

    fake = game.generator(state.generator, inputs.z[0])
    textbook_critic_loss(objective, game, critic, rows[inputs.rows[0]], fake, inputs.share[0]).backward()
    for_critic.step()
    with torch.no_grad():
        for p in critic.values() if objective == "wgan" else ():
            p.clamp_(-0.01, 0.01)
    made = game.generator(generator, inputs.z[1])
    scores = game.critic.scores(critic, game.critic.first(critic, made))
    (-scores.sigmoid().log().mean() if objective == "gan" else -scores.mean()).backward()
    for_generator.step()

    game.step(state, lambda index: rows[index], inputs)
    for found, expected in ((state.critic, critic), (state.generator, generator), (state.averaged, generator)):
        for name, p in expected.items():
            torch.testing.assert_close(found[name], p.detach(), rtol=1e-9, atol=1e-10)
