"""The parts by hand: a method's init and step inside a loop of one's own."""

import torch

import dubito
from dubito import priors
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples
from dubito.target import Batch

STEPS, BURN_IN, THIN, CHAINS, BATCH = 1500, 500, 10, 3, 50

x, y = dubito.data.toys.blobs(per_class=100)
module = dubito.nn.mlp([2, 10, 2])

# The target is the log-posterior: a net as a function of one flat vector, a likelihood, a prior, and N.
net = dubito.Net(module)
target = dubito.Target(net, dubito.Categorical(), priors.assign(dubito.Normal(std=1.0), module), n_data=len(y))

# A method is settings and pure functions; its state holds all chains side by side, (chains, weights).
method = dubito.SGLD(step_size=1e-3)
start = net.theta() + 0.1 * torch.randn(CHAINS, net.layout.size, generator=torch.Generator().manual_seed(0))
state = method.init(start, target, dubito.Tick.at(0, STEPS))

kept, order = [], torch.Generator().manual_seed(1)
for step in range(STEPS):
    rows = torch.randperm(len(y), generator=order)[:BATCH]
    state, info = method.step(state, Batch(x[rows], y[rows], rows), target, dubito.Tick.at(step, STEPS, seed=0))
    if step >= BURN_IN and step % THIN == 0:
        kept.append(state.theta.clone())  # a step works in place: copy what is to stay
    if step % 500 == 0:
        print(f"step {step:4}: fit {info.fit.mean():.4f}, complexity {info.complexity.mean():.4f} nats per datum")

# What was kept is a posterior like any other.
posterior = SamplesPosterior(net, target.likelihood, MemorySamples(torch.stack(kept)))
print(posterior)
for point in ([2.0, 2.0], [0.0, 0.0], [5.0, -5.0]):
    prediction = posterior.predict(torch.tensor([point]))
    print(f"at {point}: p = {prediction.probs[0, 1]:.2f}, entropy {prediction.entropy[0]:.2f}, BALD {prediction.bald[0]:.2f}")
