import functools
import importlib
import re
from pathlib import Path

import pytest

import dubito


def test_every_public_name_is_there_once():
    public = importlib.import_module("dubito.public")
    assert {name for name in vars(public) if not name.startswith("_")} == set(dubito.__all__)
    assert len(set(dubito.__all__)) == len(dubito.__all__)
    for name in dubito.__all__:
        assert getattr(dubito, name) is getattr(public, name)
    assert set(dubito.__all__) <= set(dir(dubito))


@pytest.mark.parametrize("name", ["fit", "plan"])
def test_a_file_does_not_hide_the_function_of_its_name(name):
    module = importlib.import_module(f"dubito.{name}")
    setattr(dubito, name, module)  # as the import system does after a first import
    assert getattr(dubito, name) is getattr(module, name)


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match="module 'dubito' has no attribute 'sgld'"):
        _ = dubito.sgld


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_pages_call_is_there_after_import_dubito(page):
    """In Python blocks `dubito.a.b` must be found from `import dubito` alone."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if not line.startswith("from ")]
    for line in lines:
        for name in re.findall(r"\bdubito((?:\.[A-Za-z_]\w*)+)", line.partition("#")[0]):
            assert functools.reduce(getattr, name.split(".")[1:], dubito) is not None, name
