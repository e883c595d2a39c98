"""Distillation killed with SIGKILL and called again ends with the bits of an uninterrupted one."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import dubito
from dubito.distill import Adversarial, adversarial

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
STEPS = 150
SMALL = Adversarial(noise=4, widths=(8,), batch_size=16)
OPTIONS = {"checkpoint_every": 10, "progress": False, "device": "cpu"}


def offline(classifier, folder):
    return adversarial(classifier[0], SMALL, steps=STEPS, folder=folder, **OPTIONS)


def online(classifier, folder, distiller=SMALL):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    sampler = dubito.SGLD(burn_in=20, thin=2)
    method = dubito.OnlineDistillation(sampler=sampler, distiller=distiller, every=4, buffer=20, restart=50)
    return dubito.fit(net, classifier[1:], method, steps=2 * STEPS, members=2, batch_size=20, folder=folder, **OPTIONS)


def child(work, classifier, folder):
    torch.set_num_threads(1)
    work(classifier, folder)
    os._exit(0)


def along(classifier, folder):
    settings = replace(SMALL, directions=5)
    return adversarial(classifier[0], settings, steps=STEPS, folder=folder, **OPTIONS)


def online_along(classifier, folder):
    return online(classifier, folder, replace(SMALL, directions=5))


@pytest.mark.parametrize("work", [offline, along, online, online_along])
def test_a_kill_changes_no_bit(work, classifier, tmp_path):
    whole = work(classifier, tmp_path / "whole")
    process = multiprocessing.get_context("fork").Process(target=child, args=(work, classifier, tmp_path / "broken"))
    process.start()
    end = time.monotonic() + 60
    while not (tmp_path / "broken" / "checkpoint.safetensors").exists() and time.monotonic() < end:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    again = work(classifier, tmp_path / "broken")
    assert torch.equal(again.thetas(5), whole.thetas(5))
    for name in ("checkpoint.safetensors", "posterior/generator.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
