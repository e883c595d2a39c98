"""A chain that is kept on disk while it runs: stop it, go on, open it elsewhere, and ask whether it has converged."""

from pathlib import Path

import dubito

digits = dubito.data.load("digits")
x, y = digits.train.x.flatten(1), digits.train.y
net = dubito.nn.mlp([64, 20, 10])  # a net of dubito.nn is stored by name, so that loading needs no code


def sample(steps: int) -> dubito.Posterior:
    """Call it again with the same settings and it resumes, or with more steps and it goes on."""
    method = dubito.SGLD(step_size=1e-4, burn_in=200, thin=10)
    return dubito.fit(net, (x, y), method, steps=steps, members=2, seed=0, folder="runs/chain", progress=False)


print(sample(steps=600))
posterior = sample(steps=1000)  # the first 600 steps are not run again
print(posterior)

folder = Path("runs/chain")
print("in the folder:", ", ".join(sorted(path.name for path in folder.iterdir())))
print("last lines of its history:", *(folder / "history.jsonl").read_text().splitlines()[-2:], sep="\n  ")

reopened = dubito.load(folder / "posterior")  # memory-mapped: samples are read when they are asked for
prediction = reopened.predict(digits.test.x.flatten(1), draws=50)
print("test scores:", {name: round(value, 3) for name, value in dubito.metrics.evaluate(prediction, digits.test.y).items()})

print(reopened.diagnose(digits.test.x[:5].flatten(1)))  # of the weights, and of the predictions on five digits
