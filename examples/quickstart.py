"""Ten lines: a network in, a posterior out, and predictions that say how sure they are."""

import torch

import dubito

digits = dubito.data.load("digits")  # comes with scikit-learn
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))

posterior = dubito.fit(net, digits.train, dubito.SGLD(burn_in=500, thin=10), steps=1500, members=2, progress=False)
prediction = posterior.predict(digits.test.x, draws=100)

right = prediction.probs.argmax(1) == digits.test.y
print(f"accuracy {right.float().mean():.3f}")
print(f"entropy where right {prediction.entropy[right].mean():.2f}, where wrong {prediction.entropy[~right].mean():.2f}")
print(f"BALD    where right {prediction.bald[right].mean():.2f}, where wrong {prediction.bald[~right].mean():.2f}")
