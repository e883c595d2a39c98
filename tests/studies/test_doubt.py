"""Quick runs of the studies about what doubt is for: every line runs, on data that need no files."""

import pytest
import torch

from dubito import studies
from dubito.studies import apd_ood


@pytest.fixture
def quick(tmp_path):
    return lambda name: studies.run(name, quick=True, device="cpu", folder=tmp_path, progress=False)


def test_apd_ood(quick):
    result = quick("apd-ood")
    assert set(result.numbers["detection"]) >= {"Gaussian", "Uniform", "Gaussian ×5", "Uniform ×5"}
    assert set(result.numbers["detection"]["Gaussian"]) == {"SGD", "MC dropout", "SGLD"}
    assert len(result.tables[0].rows) == len(result.tables[1].rows) == 40
    bald = [row for row in result.tables[0].rows if row[0] == "BALD" and row[1] == "Gaussian"]
    assert bald[0][3:] == (None,) * 9 and bald[3][3] == 100.0 and bald[3][4] is None
    assert "neighbours apart" in result.summary


def test_bytes_times_5_wrap_around():
    x = torch.tensor([-1.0, 1.0, 2 * 60 / 255 - 1])
    plain, wrapped = apd_ood.as_released(x).values()
    assert plain.tolist() == [0, 255, 60] and wrapped.tolist() == [0, (255 * 5) % 256, 300 % 256]
