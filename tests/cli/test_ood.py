"""`dubito ood`: runs side by side on rows of training's kind and others."""

from dubito.results import Result


def test_two_runs_are_compared_on_the_same_rows(dubito, pet_flags, table):
    dubito(*pet_flags, "-q")
    dubito(*pet_flags[:-1], "many", "--method", "deep_ensemble", "--members", "2", "-q")
    table("odd.csv", ["weight", "ear"], [[300 + i, -0.2] for i in range(8)])
    shown = dubito(
        "ood", "run", "many", "--data", "pets.csv", "--outside", "odd.csv", "--scale", 1, "--scale", 2, "--limit", 20
    )
    assert "Against odd.csv ×2" in shown.stdout and "BALD needs several networks" in " ".join(shown.stdout.split())
    found = Result.load("ood/ood.json")
    assert found.settings["inside"] == 20 and found.settings["outside"] == {"odd.csv": 8, "odd.csv ×2": 8}
    assert set(found.numbers["detection"]["odd.csv"]) == {"run", "many"}
    assert set(found.numbers["accuracy"]) == {"run", "many"}


def test_runs_with_other_encodings_are_refused(dubito, refused, pet_flags, table):
    dubito(*pet_flags, "-q")
    dubito(*pet_flags[:-1], "raw", "--no-standardise", "-q")
    said = refused("ood", "run", "raw", "--data", "pets.csv", "--outside", "pets.csv")
    assert "raw encodes its rows otherwise than run" in said


def test_a_distilled_posterior_stands_beside_its_run(dubito, refused, pet_flags):
    import dubito as library
    from dubito.distill import Mixture

    dubito(*pet_flags[:-1], "many", "--method", "deep_ensemble", "--members", "3", "-q")
    run = library.load("many", device="cpu")
    library.distill.mixture(run, Mixture(components=2), progress=False, device="cpu").save("small")
    dubito("ood", "many", "small", "--data", "pets.csv", "--outside", "pets.csv", "--draws", 5, "--limit", 9, "-q")
    assert set(Result.load("ood/ood.json").numbers["accuracy"]) == {"many", "small"}
    assert "not made by dubito fit" in refused("ood", "small", "many", "--data", "pets.csv", "--outside", "pets.csv")
    assert "given twice" in refused("ood", "many", "./many", "--data", "pets.csv", "--outside", "pets.csv")


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(dubito, refused, pet_flags, in_folder):
    dubito(*pet_flags, "-q")
    (in_folder / "file").write_text("")
    for command in (["ood", "run", "--outside", "pets.csv"], ["compare", "run"]):
        said = refused(*command, "--data", "nowhere.csv", "--out", "file/out")
        assert "cannot write to file/out" in said and "choose a folder you may write to" in said
