"""Opening posterior folders, and joining chains of several runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dubito import likelihoods
from dubito.config import from_dict, to_dict
from dubito.likelihoods import Likelihood
from dubito.net import Net
from dubito.nn import build
from dubito.posteriors import dropout, files, gaussian, generator, mixture, samples, sparse, student
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import Form, SamplesPosterior
from dubito.posteriors.storage import Damaged, JoinedSamples
from dubito.rng import isolated
from dubito.runtime import pick_device

OPENERS: dict[str, Callable[[Path, Mapping[str, Any], Net, Likelihood], Posterior]] = {
    "samples": samples.stored,
    "dropout": dropout.stored,
    "gaussian": gaussian.stored,
    "sparse": sparse.stored,
    "mixture": mixture.stored,
    "generator": generator.stored,
    "student": student.stored,
}


def load(
    path: str | Path, net: nn.Module | None = None, *, likelihood: Likelihood | None = None, device: str = "auto"
) -> Posterior:
    """Open a posterior folder, or the folder of a run; `net` may be left out for nets of `dubito.nn`."""
    folder, manifest = files.read_manifest(path)
    try:
        opener = OPENERS[manifest["kind"]]
        prepared = _net(folder, manifest, net).to(pick_device(device))
        return opener(folder, manifest, prepared, likelihood or _likelihood(manifest))
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / files.MANIFEST} lacks or does not know {error}; restore it or fit again") from error


def merge(posteriors: Sequence[Posterior]) -> SamplesPosterior:
    """Chains from separate runs of one network as one posterior, cut to the shortest."""
    if not posteriors:
        raise ValueError("there is nothing to merge; give at least one posterior")
    chains = [p for p in posteriors if isinstance(p, SamplesPosterior)]
    if len(chains) < len(posteriors):
        raise ValueError("only posteriors made of stored networks can be merged; MC dropout keeps masks, not samples")
    first = chains[0]
    for other in chains[1:]:
        if other.net.layout != first.net.layout or to_dict(other.likelihood) != to_dict(first.likelihood):
            raise ValueError(
                f"{other!r} and {first!r} are posteriors of different networks or likelihoods; merge those of one"
            )
        _check_constants(other, first)
    form: Form = "chains" if all(p.form == "chains" for p in chains) else "ensemble"
    return replace(first, samples=JoinedSamples([p.samples for p in chains]), form=form)


def _check_constants(one: SamplesPosterior, other: SamplesPosterior) -> None:
    """Merged networks share what the samples do not hold: fixed parameters and resting buffers."""
    ours, theirs = _constants(one), _constants(other)
    for name in [*ours, *theirs]:
        if name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name]):
            raise ValueError(
                f"the posteriors differ in {name!r}, which is no part of their samples; fit both from the same network"
            )


def _constants(posterior: SamplesPosterior) -> dict[str, Tensor]:
    moving = posterior.samples.get([0])[1]
    held = posterior.net.constants() | dict(posterior.net.module.named_buffers())
    return {n: t.cpu() for n, t in held.items() if n not in moving}


def _net(folder: Path, manifest: Mapping[str, Any], module: nn.Module | None) -> Net:
    if module is None and manifest["net"] is None:
        raise ValueError(f"{folder} was made from your own module; load it with dubito.load(path, net)")
    module = _rebuilt(manifest["net"]) if module is None else module
    net = Net(module, manifest["fixed"])
    _check_layout(folder, manifest, net)
    _fill(folder, net)
    return net


def _rebuilt(made: Mapping[str, Any]) -> nn.Module:
    """The net of a recipe; its fresh weights, which are written over, do not move the global generator."""
    with isolated("rebuilt"):
        return build(made)


def _check_layout(folder: Path, manifest: Mapping[str, Any], net: Net) -> None:
    stored = dict(zip(manifest["names"], (tuple(s) for s in manifest["shapes"]), strict=True))
    given = dict(zip(net.layout.names, net.layout.shapes, strict=True))
    for name in [*stored, *given]:
        if stored.get(name) != given.get(name):
            raise ValueError(
                f"{folder} belongs to another network: {name!r} is {_say(stored.get(name))} there and "
                f"{_say(given.get(name))} here; give the network it was made from"
            )
    if manifest["dtype"] != str(net.dtype).removeprefix("torch."):
        raise ValueError(
            f"{folder} holds {manifest['dtype']} weights but the network is {net.dtype}; convert it with .to()"
        )


def _say(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"


def _fill(folder: Path, net: Net) -> None:
    """Put the stored constants into the private copy."""
    try:
        held = load_file(folder / files.CONSTANTS)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{folder / files.CONSTANTS} is missing or damaged; restore it or fit again") from error
    own: dict[str, Tensor] = {f"parameter/{n}": p for n, p in net.module.named_parameters()}
    own |= {f"buffer/{n}": b for n, b in net.module.named_buffers()}
    for name in [*held, *(n for n in own if n.startswith("buffer/"))]:
        shapes = [None if name not in d else tuple(d[name].shape) for d in (held, own)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{folder} belongs to another network: {name.partition('/')[2]!r} is {_say(shapes[0])} there and "
                f"{_say(shapes[1])} here; give the network it was made from"
            )
    with torch.no_grad():
        for name, value in held.items():
            own[name].copy_(value)


def _likelihood(manifest: Mapping[str, Any]) -> Likelihood:
    known = {n: c for n, c in vars(likelihoods).items() if isinstance(c, type) and issubclass(c, Likelihood)}
    made = manifest["likelihood"]
    if made.get("name") not in known:
        raise ValueError(
            f"the posterior was made with {made.get('name')}, a likelihood of your own; give it as "
            "dubito.load(path, net, likelihood=...)"
        )
    likelihood: Likelihood = from_dict(made, known)
    return likelihood
