"""Ten lines: a network in, a posterior out, and predictions that say how sure they are."""

import torch

import dubito

train, test = dubito.data.load("digits").train, dubito.data.load("digits").test  # comes with scikit-learn
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))

method = dubito.DeepEnsemble(learning_rate=1e-2)  # or SGLD(), MCDropout(), ...: the rest stays as it is
posterior = dubito.fit(net, train, method, epochs=15, progress=False)
prediction = posterior.predict(test.x)

right = prediction.probs.argmax(1) == test.y
print(f"accuracy {right.float().mean():.3f}")
for name, doubt in (("entropy", prediction.entropy), ("BALD", prediction.bald)):
    print(f"{name:7} where right {doubt[right].mean():.2f}, where wrong {doubt[~right].mean():.2f}")
