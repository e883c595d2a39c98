"""Networks as users name them: one of `dubito.nn`, or `package.module:factory` of their own."""

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubito.cli.settings import NetSettings
from dubito.config import suggestion
from dubito.nn import build as build_named
from dubito.nn import names


def build(net: NetSettings, seed: int) -> nn.Module:
    """The network, its starting weights a function of the seed; the global generator is left alone."""
    make = _factory(net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _made(make, net)
    if not isinstance(module, nn.Module):
        raise ValueError(f"{net.name} returned a {type(module).__name__}, not a torch.nn.Module; return the network")
    return module


def outputs(net: nn.Module, name: str, x: Tensor) -> Tensor:
    """What the network makes of one row, or one sentence why it cannot take it."""
    module = copy.deepcopy(net).eval()
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    row = x[:1].to(dtype) if x.is_floating_point() else x[:1]
    try:
        with torch.no_grad():
            made = module(row)
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"the network {name} cannot take a row of shape {tuple(x.shape[1:])} ({why}); give it such inputs by "
            "--net-args, or take another --net"
        ) from error
    if not isinstance(made, Tensor):
        raise ValueError(f"the network {name} returned a {type(made).__name__}; return one tensor, rows first")
    return made


def _made(make: Callable[[], Any], net: NetSettings) -> Any:
    try:
        return make()
    except ValueError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{net.name} fails with the arguments {dict(net.arguments)} ({why}); correct --net-args, "
                         "or the factory") from error  # fmt: skip


def _factory(net: NetSettings) -> Callable[[], Any]:
    if ":" in net.name:
        found = _imported(net.name)
        try:
            inspect.signature(found).bind(**net.arguments)
        except TypeError as error:
            raise ValueError(
                f"the arguments {dict(net.arguments)} do not fit {net.name} ({error}); correct --net-args"
            ) from error
        return lambda: found(**net.arguments)
    if net.name not in names():
        cure = suggestion(net.name, names())
        raise ValueError(f"there is no network {net.name!r} in dubito.nn ({cure}); your own is package.module:factory")
    return lambda: build_named({"name": net.name, "arguments": net.arguments})


def _imported(name: str) -> Callable[..., Any]:
    """The factory behind `package.module:factory`; modules in the current folder count as installed."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"cannot import {module_name!r} ({why}); run where it lies, or install it") from error
    found = getattr(module, attribute, None)
    if found is None:
        public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"{module_name} has no {attribute!r}; {suggestion(attribute, public)}")
    if isinstance(found, nn.Module) or not callable(found):
        raise ValueError(f"{name} is a {type(found).__name__}; give a function that returns a new network")
    factory: Callable[..., Any] = found
    return factory
