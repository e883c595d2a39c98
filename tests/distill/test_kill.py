"""Adversarial training killed with SIGKILL and called again ends with the bits of an uninterrupted one."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from dubito.distill import Adversarial, adversarial

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
STEPS = 150
SMALL = Adversarial(noise=4, widths=(8,), batch_size=16)


def work(posterior, folder):
    torch.set_num_threads(1)
    return adversarial(
        posterior, SMALL, steps=STEPS, folder=folder, checkpoint_every=10, progress=False, device="cpu"
    )  # fmt: skip


def child(posterior, folder):
    work(posterior, folder)
    os._exit(0)


def test_a_kill_changes_no_bit(classifier, tmp_path):
    whole = work(classifier[0], tmp_path / "whole")
    process = multiprocessing.get_context("fork").Process(target=child, args=(classifier[0], tmp_path / "broken"))
    process.start()
    end = time.monotonic() + 60
    while not (tmp_path / "broken" / "checkpoint.safetensors").exists() and time.monotonic() < end:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    again = work(classifier[0], tmp_path / "broken")
    assert torch.equal(again.thetas(5), whole.thetas(5))
    for name in ("checkpoint.safetensors", "posterior/generator.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
