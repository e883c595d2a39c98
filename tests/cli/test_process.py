"""The command line as its users run it: in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dubito as library

START = [sys.executable, "-m", "dubito"]
# The package under test, wherever a process is started.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(library.__file__).parents[1])}


def process(*arguments, start=START):
    command = [*start, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)


WITHOUT_TORCH = """
import sys
from dubito.cli import main

try:
    main()
except SystemExit as stop:
    status = stop.code
heavy = {"torch", "numpy", "matplotlib", "sklearn"} & set(sys.modules)
sys.exit(status or len(heavy))
"""


def test_help_and_version_do_without_torch():
    for arguments in (["--help"], ["fit", "--help"], ["--version"]):
        done = process(*arguments, start=[sys.executable, "-c", WITHOUT_TORCH])
        assert done.returncode == 0, done.stderr
        assert "dubito" in done.stdout


def test_a_net_of_ones_own_predicts_in_a_new_process(pets, in_folder, refused, monkeypatch):
    (in_folder / "own_nets.py").write_text(
        "from torch import nn\n\n\ndef make(width):\n"
        "    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))\n"
    )
    net = ["--net", "own_nets:make", "--net-args", '{"width": 4}']
    fitted = process("fit", "--data", "pets.csv", *net, "--method", "map", "--steps", "20", "--folder", "run")
    assert fitted.returncode == 0, fitted.stderr
    assert fitted.stderr.startswith("dubito: MAP(")
    done = process("predict", "run", "--data", "pets.csv", "--out", "p.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "p.csv: 60 rows; networks averaged: 1\n"
    (in_folder / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert "cannot import 'own_nets'" in refused("predict", "../run", "--data", "../pets.csv", "--out", "p.csv")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
def test_ctrl_c_says_where_to_go_on(pet_flags, dubito):
    flags = [*pet_flags, "--steps", "1000", "-q"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen([*START, *flags], env=ENVIRONMENT, **pipes)
    history = Path("run/history.jsonl")
    for _ in range(6000):
        if running.poll() is not None or (history.exists() and history.read_text().count("\n") > 1):
            break
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    output, said = running.communicate(timeout=60)
    assert (running.returncode, output) == (130, "")
    assert said.startswith("dubito: stopped by the user after ")
    assert said.endswith("of 1000 steps; to go on: dubito fit --config run/fit.toml\n")
    assert said.count("\n") == 1

    dubito("fit", "--config", "run/fit.toml", "-q")
    assert json.loads(Path("run/run.json").read_text())["finished"]
    dubito(*flags, "--folder", "whole")
    for folder in ("run", "whole"):
        dubito("predict", folder, "--data", "pets.csv", "--out", f"{folder}.csv", "-q")
    assert Path("run.csv").read_text() == Path("whole.csv").read_text()


def test_a_user_error_is_one_line():
    wrong = ["fit", "--data", "none.csv", "--net", "fcnn1", "--method", "map", "--steps", "1", "--folder", "run"]
    done = process(*wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dubito: there is no file none.csv: check the path.\n"
