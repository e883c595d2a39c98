"""Regression with error bars that grow where there were no data, split into noise and ignorance."""

import torch

import dubito
from dubito import plots, report
from dubito.results import Result

data = dubito.data.toys.clusters(n=20, noise_std=0.15)  # two groups of points with a gap between them
net = dubito.nn.mlp([1, 50, 1], activation="tanh")
x = torch.linspace(-4, 4, 81)[:, None]

# HMC sees all data at every step and is the reference; SGLD, ensembles and dropout answer the same calls.
posterior = dubito.fit(
    net,
    data,
    dubito.HMC(leapfrog=20, burn_in=40),
    likelihood=dubito.Gaussian(std=0.15),  # or Gaussian.learned() where the noise is unknown
    steps=80,
    members=4,
    progress=False,
)
prediction = posterior.predict(x, draws=100)

print("     x    mean   noise  ignorance  90% interval")
low, high = prediction.interval(0.9)
for i in range(0, len(x), 10):
    noise, ignorance = prediction.aleatoric[i].sqrt().item(), prediction.epistemic[i].sqrt().item()
    print(f"{x[i].item():6.1f} {prediction.mean[i].item():7.2f} {noise:7.2f} {ignorance:10.2f}", end="  ")
    print(f"[{low[i].item():.2f}, {high[i].item():.2f}]")

figure = plots.bands(
    "bands",
    "What twenty points say about the rest of the line",
    x[:, 0].numpy(),
    prediction.mean[:, 0].numpy(),
    [plots.Band("90%", low[:, 0].numpy(), high[:, 0].numpy())],
    points=plots.Series("data", data.y.numpy(), data.x[:, 0].numpy()),
)
page = report.write_html([Result("bands", figure.title, figures=[figure])], "bands.html", "Error bars")
print(f"drawn in {page}")
