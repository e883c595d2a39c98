"""A chain of networks made small: a mixture, a generator of networks and two students, side by side."""

from dataclasses import replace

import torch

import dubito
from dubito import distill
from dubito.data import toys
from dubito.report import print_result

train, fresh = toys.blobs(per_class=20), toys.blobs(per_class=200, seed=1)
far = 6 * toys.blobs(per_class=100, seed=2).x.flip(1) * fresh.x.new_tensor([1.0, -1.0])  # where no data ever were

everywhere = 30 * torch.rand(1000, 2) - 15  # a student must see where it will be asked

net = dubito.nn.mlp([2, 10, 2])
chain = dubito.fit(net, train, dubito.SGLD(burn_in=500, thin=10), steps=1500, progress=False)

quick = distill.Optimiser("adam", learning_rate=2e-3, first_decay=0.5, second_decay=0.9)
game = distill.Adversarial(noise=8, widths=(16, 16), optimiser=quick, schedule="linear")
pupil = distill.DarkKnowledge(student=dubito.nn.mlp([2, 64, 2]), draws=8, learning_rate=0.03, schedule="cosine")
second = replace(pupil, head="dirichlet")

posteriors = {
    "chain": chain,
    "mixture": distill.mixture(chain, distill.Mixture(components=2), progress=False),
    "generator": distill.adversarial(chain, game, steps=150, progress=False),
    "student": distill.dark_knowledge(chain, everywhere, pupil, steps=400, progress=False),
    "Dirichlet student": distill.dark_knowledge(chain, everywhere, second, steps=400, progress=False),
}
result = dubito.compare(posteriors, fresh, outside=far, timed_rows=200)
print_result(result)

try:
    print(posteriors["student"].predict(far).bald)
except dubito.Undefined as why:
    print(why)
