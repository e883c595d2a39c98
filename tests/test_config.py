import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from dubito import priors, schedules
from dubito.config import difference, dumps_toml, from_dict, loads_toml, snake, to_dict


@dataclass(frozen=True)
class Sampler:
    step_size: float
    burn_in: int = 500
    keep: int | None = None
    members: int | None = 4
    prior: object = priors.Normal()
    schedule: schedules.Schedule | str = "constant"
    betas: tuple[float, ...] = (0.9, 0.999)
    verbose: bool = False
    by_name: dict[str, object] = field(default_factory=dict)
    cache: object = field(default=None, compare=False)


@dataclass(frozen=True)
class Named:
    name: str = "x"


@dataclass(frozen=True)
class Unchecked:
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.floor < 0:
            raise ValueError


class Plain(priors.Prior):
    def log_prob(self, value):
        return -value.abs()


def double(x):
    return 2 * x


REGISTRY = {
    cls.__name__: cls
    for cls in (
        Sampler,
        Unchecked,
        Plain,
        priors.Normal,
        priors.Laplace,
        schedules.Cosine,
        schedules.WarmUp,
        schedules.Constant,
    )
}
EXAMPLES = [
    Sampler(1e-6),
    Sampler(1e-6, keep=3, members=None, verbose=True),
    Sampler(math.inf, prior=priors.Laplace(0.5), betas=()),
    Sampler(0.1, schedule=schedules.WarmUp(3, schedules.Cosine(0.1))),
    Sampler(0.1, by_name={"*.weight": priors.Normal(2.0), "head": priors.Laplace(1.0)}),
    Sampler(0.1, prior=(priors.Normal(2.0), None)),
]


@pytest.mark.parametrize("settings", EXAMPLES, ids=repr)
def test_settings_survive_dictionaries_json_and_toml(settings):
    described = to_dict(settings)
    assert from_dict(described, REGISTRY) == settings
    assert json.loads(json.dumps(described)) == described
    assert loads_toml(dumps_toml(described)) == described
    assert from_dict(loads_toml(dumps_toml(described)), REGISTRY) == settings


def test_the_shape_of_a_description():
    assert to_dict(Sampler(1e-6, cache=object())) == {
        "name": "Sampler",
        "step_size": 1e-6,
        "burn_in": 500,
        "members": 4,
        "prior": {"name": "Normal", "std": 1.0, "mean": 0.0},
        "schedule": "constant",
        "betas": [0.9, 0.999],
        "verbose": False,
        "by_name": {},
    }


def test_numpy_numbers_become_plain_ones():
    described = to_dict(Sampler(np.float32(0.5), burn_in=np.int64(3)))
    assert (type(described["step_size"]), type(described["burn_in"])) == (float, int)


def test_objects_without_fields_are_recorded_but_not_rebuilt():
    described = to_dict(Sampler(0.1, prior=Plain()))
    assert described["prior"]["name"] == "Plain"
    assert described == to_dict(Sampler(0.1, prior=Plain()))
    with pytest.raises(ValueError, match="Plain was recorded by its repr alone and cannot be rebuilt; pass the object"):
        from_dict(described, REGISTRY)
    assert to_dict(Sampler(0.1, prior=double))["prior"]["repr"].endswith("double")


def test_classes_are_found_by_snake_case_too():
    assert from_dict({"name": "sampler", "step_size": 0.1}, REGISTRY) == Sampler(0.1)


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        ({"name": "Sampler", "step_sise": 0.1}, r"Sampler has no setting 'step_sise'; did you mean 'step_size'\?"),
        ({"name": "Sampler", "zzz": 0.1}, r"no setting 'zzz'; known are step_size, burn_in"),
        ({"name": "Samplr", "step_size": 0.1}, r"no class is called 'Samplr'; did you mean 'Sampler'\?"),
        ({"name": "Q"}, r"no class is called 'Q'; known are Sampler, "),
        ({"name": "Sampler"}, r"Sampler needs a value for 'step_size'"),
        ({"step_size": 0.1}, r"lack a 'name'"),
        ({"name": "Unchecked", "floor": "low"}, r"Unchecked cannot take \{'floor': 'low'\}.*check the type"),
        ({"name": "Cosine", "floor": "low"}, "Cosine: floor is 'low'; it must lie in"),
        ({"name": "Normal", "std": -1.0}, r"Normal: std is -1.0"),
        ({"name": "Sampler", "step_size": 0.1, "cache": 1}, r"no setting 'cache'"),
    ],
)
def test_bad_descriptions_get_one_sentence(described, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        from_dict(described, REGISTRY)
    assert "\n" not in str(caught.value)


def test_a_field_called_name_is_refused():
    with pytest.raises(ValueError, match="Named has a field called 'name'"):
        to_dict(Named())


def test_broken_toml_names_the_place():
    with pytest.raises(ValueError, match=r"not valid TOML: .*line 2"):
        loads_toml("a = 1\nb = = 2\n")


def test_none_is_left_out_of_toml():
    assert loads_toml(dumps_toml({"a": None, "b": {"c": None, "d": [1]}})) == {"b": {"d": [1]}}


def test_differences_read_as_a_sentence():
    a, b = to_dict(Sampler(1e-6)), to_dict(Sampler(1e-5))
    assert difference(a, b) == ["step_size: 1e-06 here, 1e-05 there"]
    assert difference(a, a) == []


def test_differences_of_nested_settings():
    a = to_dict(Sampler(0.1, prior=priors.Normal(1.0), keep=3))
    b = to_dict(Sampler(0.1, prior=priors.Normal(2.0), members=None))
    assert difference(a, b) == [
        "keep: 3 here, missing there",
        "members: 4 here, None there",
        "prior.std: 1.0 here, 2.0 there",
    ]
    c = to_dict(Sampler(0.1, prior=priors.Laplace(2.0)))
    assert difference(c, b)[1:] == ["prior: Laplace(scale=2.0) here, Normal(std=2.0, mean=0.0) there"]


def test_differences_ignore_how_the_same_value_is_written():
    assert difference({"a": (1, 2), "b": math.nan, "c": 1}, {"a": [1, 2], "b": math.nan, "c": 1.0}) == []
    assert difference({"a": [{"name": "A", "x": 1}]}, {"a": [{"name": "A", "x": 2}]}) != []
    assert difference({}, {"seed": 0}) == ["seed: missing here, 0 there"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MCDropout", "mc_dropout"),
        ("SGLD", "sgld"),
        ("DeepEnsemble", "deep_ensemble"),
        ("CyclicalSGLD", "cyclical_sgld"),
        ("CyclicalSGHMC", "cyclical_sghmc"),
        ("PSGLD", "psgld"),
        ("SGHMC", "sghmc"),
        ("SparseVD", "sparse_vd"),
        ("MAP", "map"),
        ("HMC", "hmc"),
        ("AlphaDivergenceDropout", "alpha_divergence_dropout"),
    ],
)
def test_snake_case(name, expected):
    assert snake(name) == expected
