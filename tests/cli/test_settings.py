from pathlib import Path

import pytest

import dubito as library
from dubito.cli import settings
from dubito.schedules import Polynomial


def document(**more):
    base = {
        "folder": "run",
        "steps": 10,
        "data": {"source": "pets.csv"},
        "net": {"name": "mlp", "arguments": {"sizes": [2, 3]}},
        "method": {"name": "sgld"},
    }
    return {**base, **more}


def assigned(*assignments, **more):
    made = document(**more)
    for one in assignments:
        settings.assign(made, one)
    return settings.parse(made)


def test_values_are_read_in_the_types_of_the_fields():
    method = assigned("step_size=1e-6", "burn_in=1e3", "keep=none", "thin=5").method
    assert method == library.SGLD(step_size=1e-6, burn_in=1000, keep=None, thin=5)
    assert isinstance(method.burn_in, int)
    bootstrap = assigned("bootstrap=true", method={"name": "deep_ensemble"}).method
    assert bootstrap == library.DeepEnsemble(bootstrap=True)


def test_a_whole_number_is_good_where_a_number_is_wanted():
    method = assigned("step_size=1").method
    assert method.step_size == 1.0
    assert isinstance(method.step_size, float)


def test_priors_likelihoods_and_schedules_are_set_by_their_prefix():
    made = assigned(
        "prior.std=0.5",
        "likelihood.std=0.1",
        "schedule.name=polynomial",
        "schedule.b=100",
        prior={"name": "normal"},
        likelihood={"name": "gaussian"},
    )
    assert made.prior == library.Normal(std=0.5)
    assert made.likelihood == library.Gaussian(std=0.1)
    assert made.method.schedule == Polynomial(b=100)


@pytest.mark.parametrize("name", ["gaussian.learned", "learned_gaussian", "LearnedGaussian"])
def test_likelihoods_go_by_several_names(name):
    assert settings.parse(document(likelihood={"name": name})).likelihood == library.Gaussian.learned()


def test_priors_by_pattern():
    prior = settings.parse(document(prior={"*.bias": {"name": "normal", "std": 10.0}, "*": {"name": "laplace"}})).prior
    assert prior == {"*.bias": library.Normal(10.0), "*": library.Laplace()}


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("stepsize=1", "SGLD has no setting 'stepsize'; did you mean 'step_size'?"),
        ("step_size=small", "SGLD: step_size wants a number or none, got 'small'"),
        ("burn_in=1.5", "SGLD: burn_in wants a whole number, got 1.5"),
        ("burn_in=true", "SGLD: burn_in wants a whole number, got True"),
        ("burn_in=none", "SGLD: burn_in wants a whole number"),
        ("thin", "--set wants name=value"),
        ("=3", "--set wants name=value"),
        ("prior.std=1", "prior has settings but no name"),
        ("thin=0", "SGLD: thin must be at least 1, got 0"),
        ("schedule=polynomail", "no schedule is called 'polynomail'"),
    ],
)
def test_a_wrong_assignment_is_named(assignment, sentence):
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        assigned(assignment)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": {"name": "sgdl"}}, "no method is called 'sgdl'; did you mean 'sgld'"),
        ({"prior": {"name": "nromal"}}, "no prior is called 'nromal'; did you mean 'normal'"),
        ({"likelihood": {"name": "poison"}}, "no likelihood is called 'poison'; did you mean 'poisson'"),
        ({"likelihood": {"name": "gaussian"}}, "Gaussian needs a value for 'std'; give it with --set likelihood.std="),
        ({"stpes": 3}, "there is no setting 'stpes'; did you mean 'steps'"),
        ({"steps": "many"}, "fit: steps wants a whole number or none, got 'many'"),
        ({"data": {"source": "a.csv", "traget": "y"}}, "data has no setting 'traget'; did you mean 'target'"),
        ({"data": {"target": "y"}}, "data needs a value for 'source'"),
        ({"net": {"arguments": {}}}, "net needs a value for 'name'"),
        ({"net": {"name": "mlp", "arguments": [1]}}, "net: arguments wants a mapping"),
        ({"net": 3}, "net must be a table"),
        ({"validation": 1.5}, "between 0 and 1, got 1.5"),
    ],
)
def test_a_wrong_setting_is_named(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings.parse(document(**change))


@pytest.mark.parametrize("missing", ["data", "net", "method", "folder"])
def test_what_is_needed_is_asked_for(missing):
    made = document()
    del made[missing]
    with pytest.raises(ValueError, match=f"{missing} is missing; say .*--{missing}"):
        settings.parse(made)


def test_settings_survive_toml():
    made = assigned(
        "schedule.name=polynomial",
        "schedule.b=100",
        "step_size=1e-5",
        prior={
            "*.bias": {"name": "normal", "std": 10.0},
            "*": {"name": "scale_mixture", "pi": 0.5, "std1": 1, "std2": 0.1},
        },
        likelihood={"name": "gaussian", "std": 0.25},
        validation=0.25,
        temperature=0.5,
    )
    folder = Path("run").absolute()
    folder.mkdir()
    (folder / "fit.toml").write_text(made.toml(folder, standardise=True))
    again = settings.parse(settings.read(folder / "fit.toml"))
    assert again.method == made.method
    assert again.prior == made.prior
    assert again.likelihood == made.likelihood
    assert again.net == made.net
    assert again.run == settings.RunSettings(**{**vars(made.run), "folder": str(folder)})
    assert again.data == settings.DataSettings(source=str(Path("pets.csv").absolute()), standardise=True)


def test_paths_in_a_file_are_relative_to_it(in_folder):
    (in_folder / "deep").mkdir()
    (in_folder / "deep" / "a.toml").write_text('data = "../pets.csv"\nnet = "fcnn1"\nmethod = "map"\nfolder = "run"\n')
    made = settings.parse(settings.read(Path("deep/a.toml")))
    assert (made.data.source, made.run.folder) == ("pets.csv", "deep/run")
    (in_folder / "deep" / "b.toml").write_text('data = "uci/yacht"\nnet = "fcnn1"\nmethod = "map"\nfolder = "run"\n')
    assert settings.parse(settings.read(Path("deep/b.toml"))).data.source == "uci/yacht"


def test_a_file_may_begin_with_a_byte_order_mark(in_folder):
    path = in_folder / "fit.toml"
    path.write_text("steps = 3", encoding="utf-8-sig")
    assert settings.read(path)["steps"] == 3


def test_flags_go_before_the_file():
    made = document(steps=10, method={"name": "sgld", "thin": 3})
    settings.choose(made, "method", "sgld")
    settings.override(made, {"epochs": 4, "steps": None, "seed": 7, "data.target": "kind"})
    parsed = settings.parse(made)
    assert (parsed.run.epochs, parsed.run.steps, parsed.run.seed) == (4, None, 7)
    assert parsed.data.target == "kind"
    assert parsed.method.thin == 3
    settings.choose(made, "method", "sghmc")
    assert settings.parse(made).method == library.SGHMC()


def test_a_file_that_is_no_toml(in_folder):
    (in_folder / "a.toml").write_text("steps = = 3")
    with pytest.raises(ValueError, match=r"a.toml: the settings are not valid TOML"):
        settings.read(Path("a.toml"))
    (in_folder / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is no text file"):
        settings.read(Path("b.toml"))
