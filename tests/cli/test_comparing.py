import json

import dubito as library
from dubito.distill import Mixture


def test_runs_and_distilled_posteriors_side_by_side(dubito, table, in_folder):
    rows = [[i / 10, (i * 7 % 10) / 10, i % 2] for i in range(40)]
    table("a.csv", ["u", "v", "class"], rows)
    table("far.csv", ["u", "v"], [[9 + i, -9 - i] for i in range(10)])
    fit = ["fit", "--data", "a.csv", "--net", "mlp", "--net-args", '{"sizes": [2, 4, 2]}', "--device", "cpu", "-q"]
    dubito(*fit, "--method", "sgld", "--set", "burn_in=20", "--steps", "200", "--folder", "chain")
    dubito(*fit, "--method", "map", "--steps", "20", "--folder", "point")
    chain = library.load("chain", device="cpu")
    library.distill.mixture(chain, Mixture(components=2), progress=False, device="cpu").save("mixture")
    shown = dubito(
        "compare", "chain", "mixture", "point", "--data", "a.csv", "--outside", "far.csv", "--draws", "9", "--out", "c",
        "--device", "cpu",
    ).stdout  # fmt: skip
    assert "Cost and quality" in shown and "mixture" in shown
    found = json.loads((in_folder / "c" / "comparison.json").read_text())["numbers"]
    assert list(found) == ["chain", "mixture", "point"] and found["point"]["detection"]["bald"] is None
    assert found["point"]["bytes"] == 22 * 4 and (in_folder / "c" / "comparison-bytes-nll.png").exists()


def test_the_first_folder_must_be_a_run(refused, table):
    table("a.csv", ["u", "class"], [[1, 0]])
    assert "there is no folder nowhere" in refused("compare", "nowhere", "--data", "a.csv")


def test_runs_that_see_other_numbers_are_refused(dubito, refused, pet_flags):
    dubito(*pet_flags, "-q")
    dubito(*pet_flags[:-1], "raw", "--no-standardise", "-q")
    assert "raw encodes its rows otherwise than run" in refused("compare", "run", "raw", "--data", "pets.csv")
    assert "given twice" in refused("compare", "run", "run", "--data", "pets.csv")


def test_the_units_of_a_regression_are_told(dubito, table):
    table("r.csv", ["u", "y"], [[i / 10, 100 * (i % 4) + 0.5] for i in range(20)])
    fit = ["fit", "--data", "r.csv", "--net", "mlp", "--net-args", '{"sizes": [1, 4, 1]}', "--device", "cpu", "-q"]
    dubito(*fit, "--method", "map", "--steps", "5", "--folder", "line")
    shown = dubito("compare", "line", "--data", "r.csv", "--draws", "2", "--device", "cpu").stdout
    assert "in units of the 111.8 by which training divided them" in " ".join(shown.split())
