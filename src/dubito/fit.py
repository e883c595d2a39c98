"""Net, data and method in; posterior out."""

import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito import differentiable, forward, methods, priors
from dubito.batches import Augment, Batches, Stream, is_stream
from dubito.config import to_dict, whole
from dubito.functions import widest
from dubito.initial import Initialiser, starting_points
from dubito.inputs import rows
from dubito.likelihoods import Likelihood, default_for
from dubito.loop import Record
from dubito.methods.base import Method, Sampler
from dubito.methods.collect import Collect
from dubito.net import Net
from dubito.nn.bayes import check_plain
from dubito.posteriors.base import Posterior
from dubito.priors import Assigned, PriorSpec
from dubito.rng import isolated_everywhere
from dubito.runs import carry_out
from dubito.runtime import Precision, check_precision, pick_device
from dubito.sources import Resident, Source, open_source
from dubito.target import Target, fixed_names
from dubito.training import Training

STREAM = "a stream, not checked and not bit-resumable"


def fit(
    net: nn.Module,
    data: Any,
    method: Method[Any] | str,
    *,
    likelihood: Likelihood | None = None,
    prior: PriorSpec | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    members: int | None = None,
    validation: Any = None,
    patience: int | None = None,
    temperature: float = 1.0,
    n_data: int | None = None,
    init: Initialiser | None = None,
    augment: Augment | None = None,
    callback: Callable[[Record], None] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    precision: Precision = "float32",
    compiled: bool | None = None,
    progress: bool = True,
) -> Posterior:
    """A posterior over the networks that explain the data, by the method given.

    net: any module; it is copied, never changed. data: (x, y) or (x, y, weight) as tensors or arrays, a Dataset or a
    DataLoader; several inputs as a tuple or a dict. steps or epochs: exactly one. members: chains or ensemble members
    side by side. validation: data like `data`; methods that optimise return their best state on it and stop after
    `patience` checks without progress. init: seed -> network, for members' starts. augment: (x, generator) -> x, on the
    device. callback: called with every history record. folder: where the run is kept; the same call resumes it.
    checkpoint_every: steps between checkpoints, half a minute by default. precision: how a GPU
    rounds in matrix products. compiled: whether a GPU's steps are fused by torch.compile, which takes some ten seconds;
    by default where it pays.
    """
    _check_trainable(net)
    check_precision(precision)
    seed, patience = whole("seed", seed), None if patience is None else whole("patience", patience)
    temperature = _real("temperature", temperature)
    chosen, where = methods.find(method), pick_device(device)
    assigned = priors.assign(prior, net)
    copied = _copied(net, assigned, where)
    feed = _feed(data, chosen, batch_size, n_data, seed, copied, augment)
    held = None if validation is None else open_source(validation, where, copied.dtype)
    prepared, resolved = _agreed(copied, chosen, assigned, likelihood, feed, held)
    total = feed.n if n_data is None else whole("n_data", n_data)
    thinned = _thinned(chosen.resolve(total))
    count, chains = _steps(steps, epochs, feed.per_epoch), _members(members, chosen)
    target = Target(prepared, resolved, assigned, total, temperature)
    settings = {
        "method": to_dict(_bare(thinned)),
        "likelihood": to_dict(resolved),
        "prior": _summary(prior),
        "n_data": total,
        "batch_size": feed.size,
        "members": chains,
        "temperature": temperature,
        "seed": seed,
        "patience": patience,
        "precision": precision,
        "layout": {n: list(s) for n, s in zip(target.layout.names, target.layout.shapes, strict=True)},
    }
    if progress:
        _announce(settings, count, where, STREAM if isinstance(feed, Stream) else "")
    training = Training(thinned, target, feed, count, settings, patience, held)
    start = target.start(starting_points(prepared, chains, seed, init))
    prints = _prints(feed, held, start, prepared, chosen.drops) if folder is not None else {}
    prints["augment"] = "none" if augment is None else to_dict(augment)
    state = training.begin(start, seed)
    return carry_out(training, state, prints, seed, folder, callback, checkpoint_every, progress, compiled)


def _check_trainable(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise ValueError(f"net must be an nn.Module, got {net!r}; wrap a function in a module, or call the class")
    if isinstance(net, torch.jit.ScriptModule):
        raise ValueError("a TorchScript module hides its layers; give the Python module it was made from")
    if torch.is_inference_mode_enabled():
        raise ValueError("fit needs gradients; call it outside torch.inference_mode()")
    check_plain(net)


def _copied(net: nn.Module, assigned: Mapping[str, Assigned], where: torch.device) -> Net:
    copied = Net(net, fixed_names(assigned)).to(where)
    if not copied.layout.size:
        raise ValueError("the network has no free parameters, so there is nothing to infer; give some a prior")
    return copied


def _agreed(
    net: Net,
    method: Method[Any],
    assigned: Mapping[str, Assigned],
    likelihood: Likelihood | None,
    feed: "Batches | Stream",
    held: Source | None,
) -> tuple[Net, Likelihood]:
    """The network as the method wants it and the likelihood, once they fit each other and every label there is."""
    first = feed(0)
    example = rows(first.x, slice(0, 1))
    outputs = _outputs(net, example)
    differentiable.check(net, example)
    prepared = method.prepare(net, example)
    resolved = _likelihood(likelihood, outputs, feed.labels(first))
    method.check(prepared, assigned, resolved)
    for part in (feed, held) if held is not None else (feed,):
        part.verify(lambda y: resolved.resolve(outputs.expand(len(y), *outputs.shape[1:]), y))
    return prepared, resolved


def _feed(
    data: Any,
    method: Method[Any],
    batch_size: int | None,
    n_data: int | None,
    seed: int,
    net: Net,
    augment: Augment | None,
) -> "Batches | Stream":
    if is_stream(data):
        n = _streamed(method, n_data)
        own = getattr(data, "batch_size", None)
        size = _batch_size(own if batch_size is None else batch_size, n, method)
        return Stream(data, size, n, seed, torch.empty(0, device=net.device, dtype=net.dtype), augment)
    source = open_source(data, net.device, net.dtype)
    if method.needs_index and n_data not in (None, source.n):
        raise ValueError(f"{method!r} resamples the {source.n} rows there are; leave n_data={n_data} out")
    return Batches(source, _batch_size(batch_size, source.n, method), seed, net.device, augment)


def _streamed(method: Method[Any], n_data: int | None) -> int:
    """How many rows a stream stands for; refused where that is not known, or where a method needs the rows at hand."""
    if n_data is None:
        raise ValueError("an IterableDataset does not know its size; tell fit with n_data=")
    if method.needs_index or method.needs_all_rows:
        need = "to know which rows it sees" if method.needs_index else "all rows at every step"
        raise ValueError(f"{method!r} needs {need}, and an IterableDataset does not tell; give tensors or a Dataset")
    return whole("n_data", n_data)


def _batch_size(given: int | None, n: int, method: Method[Any]) -> int:
    if method.needs_all_rows:
        if given not in (None, n):
            raise ValueError(f"{type(method).__name__} uses all {n} rows at every step; leave batch_size out")
        return n
    if given is None:
        return min(100, n)
    size = whole("batch_size", given)
    if not 1 <= size <= n:
        raise ValueError(f"batch_size is {size} but the data have {n} rows; choose between 1 and {n}")
    return size


def _outputs(net: Net, x: Any) -> Tensor:
    """The outputs of one row."""
    with torch.no_grad(), isolated_everywhere("example"):
        widest(net, x)
        outputs = net(net.theta(), x)
    if len(outputs) != 1:
        raise ValueError(
            f"the network turned 1 row into outputs of shape {tuple(outputs.shape)}; the first axis must be the batch"
        )
    return outputs


def _likelihood(given: Likelihood | None, outputs: Tensor, y: Tensor) -> Likelihood:
    if isinstance(given, type) or (given is not None and not isinstance(given, Likelihood)):
        raise ValueError(f"likelihood must be an instance such as dubito.Categorical(), got {given!r}")
    likelihood = given or default_for(y)
    return likelihood.resolve(outputs.expand(len(y), *outputs.shape[1:]), y)


def _thinned(method: Method[Any]) -> Method[Any]:
    return Collect.of(method) if isinstance(method, Sampler) else method


def _bare(method: Method[Any]) -> Method[Any]:
    return method.method if isinstance(method, Collect) else method


def _steps(steps: int | None, epochs: int | None, per_epoch: int) -> int:
    if (steps is None) == (epochs is None):
        raise ValueError(f"give exactly one of steps= and epochs=, got steps={steps} and epochs={epochs}")
    count = whole("steps", steps) if steps is not None else whole("epochs", epochs) * per_epoch
    if count < 1:
        raise ValueError(f"there is nothing to do in {count} steps; ask for at least one")
    return count


def _members(given: int | None, method: Method[Any]) -> int:
    if given is not None and whole("members", given) < 1:
        raise ValueError(f"members must be at least 1, got {given}")
    return int(given or method.default_members)


def _real(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def _summary(prior: PriorSpec | None) -> Any:
    if prior is None:
        return to_dict(priors.FanIn())
    if isinstance(prior, Mapping):
        return {k if isinstance(k, str) else k.__name__: to_dict(p) for k, p in prior.items()}
    return to_dict(prior)


def _prints(
    feed: "Batches | Stream", validation: Source | None, start: Tensor, net: Net, drops: bool
) -> dict[str, Any]:
    """What tells a run from others whose settings read the same."""
    held = {"data": STREAM, "start": Resident(start, start[:, 0], None).fingerprint()}
    if validation is not None:
        held["validation"] = validation.fingerprint()
    if isinstance(feed, Stream):  # its first rows may be others every time
        return {"fingerprints": held}
    held["data"] = feed.source.fingerprint()
    x, _, _ = feed.source.take(torch.arange(min(feed.n, forward.ROWS)))
    rates = [site.rate for site in net.sites(x)] if drops else []
    return {"fingerprints": held, "dropout": rates, "forward": {"net": forward.outputs(net, x)}}


def _announce(settings: Mapping[str, Any], steps: int, device: torch.device, remark: str) -> None:
    shown = {k: v for k, v in settings["method"].items() if k != "name"}
    fields = ", ".join(f"{k}={v}" for k, v in shown.items())
    print(
        f"dubito: {settings['method']['name']}({fields}); likelihood {settings['likelihood']['name']}, "
        f"prior {_short(settings['prior'])}; N = {settings['n_data']}, batch {settings['batch_size']}, "
        f"{settings['members']} member(s), {steps} steps on {device}{remark and '; '}{remark}",
        file=sys.stderr,
    )


def _short(prior: Any) -> str:
    if "name" in prior:
        rest = ", ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in prior.items() if k != "name"
        )
        return f"{prior['name']}({rest})"
    return "{" + ", ".join(f"{k}: {_short(v)}" for k, v in prior.items()) + "}"
