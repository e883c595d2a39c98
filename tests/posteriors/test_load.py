"""Posterior folders: saving, loading, merging, and every way in which a folder can be wrong."""

import json
import os
import shutil

import pytest
import torch
from torch import nn

import dubito
from dubito.posteriors import files
from dubito.posteriors.storage import Damaged

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(2, (30,), generator=torch.Generator().manual_seed(1))


def net(width: int = 4, activation: type = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), activation(), nn.Linear(width, 2))


def fit(seed: int = 0, steps: int = 12, module: nn.Module | None = None, **settings):
    method = dubito.SGLD(burn_in=0, thin=3)
    data = settings.pop("data", (X, Y))
    return dubito.fit(module or net(), data, method, steps=steps, seed=seed, progress=False, device="cpu", **settings)


@pytest.fixture
def folder(tmp_path):
    fit().save(tmp_path / "p")
    return tmp_path / "p"


def manifest(folder) -> dict:
    return json.loads((folder / "posterior.json").read_text())


def rewrite(folder, **changes) -> None:
    (folder / "posterior.json").write_text(json.dumps({**manifest(folder), **changes}))


def test_a_posterior_is_a_folder_of_json_and_safetensors(folder):
    assert sorted(os.listdir(folder)) == ["constants.safetensors", "posterior.json", "samples-00000.safetensors"]
    held = manifest(folder)
    assert held["format"] == 1 and held["kind"] == "samples" and held["rows"] == 4
    assert held["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_loading_gives_the_same_posterior(folder):
    made, again = fit(), dubito.load(folder, net(), device="cpu")
    assert torch.equal(again.predict(X).draws, made.predict(X).draws)
    assert (len(again), repr(again)) == (len(made), repr(made))
    assert again.likelihood == made.likelihood and again.about == json.loads(json.dumps(made.about))
    again.save(folder.parent / "copy")
    third = dubito.load(folder.parent / "copy", net(), device="cpu")
    assert torch.equal(third.thetas(9), made.thetas(9))


def test_a_network_of_the_house_needs_no_module(tmp_path):
    module = dubito.nn.build({"name": "mlp", "arguments": {"sizes": [3, 4, 2]}})
    fit(module=module).save(tmp_path / "p")
    assert torch.equal(dubito.load(tmp_path / "p").predict(X).probs, fit(module=module).predict(X).probs)


def test_a_network_that_is_rebuilt_leaves_the_global_generator_alone(tmp_path):
    fit(module=dubito.nn.mlp([3, 4, 2])).save(tmp_path / "p")
    before = torch.get_rng_state()
    dubito.load(tmp_path / "p")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_of_ones_own_must_be_given(folder):
    with pytest.raises(ValueError, match=r"made from your own module; load it with dubito\.load\(path, net\)"):
        dubito.load(folder)


def test_saving_over_a_posterior_is_refused_and_over_itself_nothing(folder):
    with pytest.raises(FileExistsError, match="already holds a posterior; choose another folder or remove it first"):
        fit().save(folder)
    before = (folder / "posterior.json").stat().st_mtime_ns
    dubito.load(folder, net()).save(folder)
    assert (folder / "posterior.json").stat().st_mtime_ns == before


def test_an_interrupted_save_is_no_posterior_and_can_be_repeated(tmp_path, monkeypatch):
    made = fit()
    real = files.SampleFolder.append

    def stop(self, theta, buffers):
        real(self, theta, buffers)
        if self.rows == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(files.SampleFolder, "append", stop)
    with pytest.raises(KeyboardInterrupt):
        made.save(tmp_path / "p")
    with pytest.raises(FileNotFoundError, match="holds no posterior"):
        dubito.load(tmp_path / "p", net())
    monkeypatch.undo()
    made.save(tmp_path / "p")
    assert len(dubito.load(tmp_path / "p", net())) == 4


# -- folders that are wrong ------------------------------------------------------------------------------------


def test_a_folder_without_a_posterior_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no posterior: there is no posterior\.json in it; give"):
        dubito.load(tmp_path, net())
    with pytest.raises(FileNotFoundError, match=r"nowhere holds no posterior: there is no such folder; check the path"):
        dubito.load(tmp_path / "nowhere", net())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no sample has been kept yet; let its run go on"):
        dubito.load(tmp_path, net())


def test_another_network_is_refused_by_the_first_parameter_that_differs(folder):
    with pytest.raises(
        ValueError, match=r"belongs to another network: '0.weight' is of shape \(4, 3\) there and of shape \(5, 3\)"
    ):
        dubito.load(folder, net(5))
    with pytest.raises(
        ValueError, match=r"belongs to another network: '2.weight' is of shape \(2, 4\) there and absent here"
    ):
        dubito.load(folder, nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ValueError, match=r"belongs to another network: '3.running_mean' is absent there"):
        dubito.load(folder, nn.Sequential(*net(), nn.BatchNorm1d(2, affine=False)))
    with pytest.raises(ValueError, match=r"holds float32 weights but the network is torch.float64"):
        dubito.load(folder, net().double())


def test_a_newer_format_wants_a_newer_dubito(folder):
    rewrite(folder, format=99)
    with pytest.raises(Damaged, match="has format 99 but this dubito reads up to 1; install a newer dubito"):
        dubito.load(folder, net())


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"format": "x"}', "\udcff"])
def test_a_manifest_that_is_no_manifest_is_damaged(folder, text):
    (folder / "posterior.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Damaged, match=r"posterior\.json is damaged .*restore it or fit again"):
        dubito.load(folder, net())


@pytest.mark.parametrize(
    "change",
    [{"kind": "unheard of"}, {"names": None}, {"shapes": [1, 2, 3, 4]}, {"likelihood": "Categorical"}, {"fixed": None}],
)
def test_a_manifest_with_nonsense_is_damaged(folder, change):
    rewrite(folder, **change)
    with pytest.raises(Damaged, match="restore it or fit again"):
        dubito.load(folder, net())


@pytest.mark.parametrize("key", ["kind", "names", "rows", "chains", "tensors", "likelihood", "form"])
def test_a_manifest_with_a_gap_is_damaged(folder, key):
    held = manifest(folder)
    del held[key]
    (folder / "posterior.json").write_text(json.dumps(held))
    with pytest.raises(Damaged, match=f"lacks or does not know '{key}'"):
        dubito.load(folder, net())


@pytest.mark.parametrize("name", ["samples-00000.safetensors", "constants.safetensors"])
def test_missing_and_cut_files_are_named(folder, name):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(Damaged, match=name):
        dubito.load(folder, net())
    (folder / name).unlink()
    with pytest.raises(Damaged, match=f"{name} is missing"):
        dubito.load(folder, net())
    (folder / name).write_bytes(data)
    assert len(dubito.load(folder, net())) == 4


def test_an_own_likelihood_must_be_given_again(tmp_path):
    class Own(dubito.Likelihood):
        def log_prob(self, outputs, y):
            return -(outputs - y).square().sum(-1)

    fit(likelihood=Own(), data=(X, X[:, :2])).save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"made with Own, a likelihood of your own; give it as .*likelihood=\.\.\."):
        dubito.load(tmp_path / "p", net())
    assert len(dubito.load(tmp_path / "p", net(), likelihood=Own()).predict(X)) == 30
    with pytest.raises(Damaged, match=r"theta is \[4, 1, 26\] where \[4, 1, 27\] was expected"):
        dubito.load(tmp_path / "p", net(), likelihood=dubito.Gaussian.learned())


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write to .*; choose a folder you may write to"):
        fit().save(tmp_path / "file" / "p")
    with pytest.raises(OSError, match=r"cannot write to .*; choose a folder you may write to"):
        fit(folder=tmp_path / "file" / "run")


# -- a full disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 5, 8])
def test_a_full_disk_leaves_what_was_drawn_and_the_run_goes_on_later(tmp_path, monkeypatch, after):
    run, real, calls = tmp_path / "run", os.pwrite, []

    def full(descriptor, data, at):
        calls.append(at)
        if len(calls) > after:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(
        OSError, match=r"the disk is full; what was written before in .* stays readable: free some space and"
    ):
        fit(steps=30, folder=run, checkpoint_every=5)
    monkeypatch.undo()
    kept = max(0, after - 1)
    if kept:
        held = dubito.load(run, net(), device="cpu")
        assert len(held) == kept and torch.equal(held.thetas(99), fit(steps=30).thetas(99)[:kept])
    assert torch.equal(fit(steps=30, folder=run).thetas(99), fit(steps=30).thetas(99))


@pytest.mark.parametrize("victim", ["posterior.json", "checkpoint.safetensors", "run.json"])
def test_a_full_disk_at_any_file_is_the_same_story(tmp_path, monkeypatch, victim):
    run, real, seen = tmp_path / "run", os.replace, []

    def full(source, goal):
        seen.append(os.path.basename(goal))
        if seen.count(victim) == 2:
            raise OSError(28, "No space left on device")
        return real(source, goal)

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(type(tmp_path), "replace", lambda self, goal: full(self, goal))
    with pytest.raises(OSError, match="the disk is full"):
        fit(steps=30, folder=run, checkpoint_every=5)
    monkeypatch.undo()
    assert not list(run.rglob(f"{victim}.partial"))
    assert torch.equal(fit(steps=30, folder=run).thetas(99), fit(steps=30).thetas(99))


# -- merging ---------------------------------------------------------------------------------------------------


def test_chains_of_separate_runs_become_one_posterior(tmp_path):
    parts = [fit(seed=s, steps=12 + 3 * s, members=m) for s, m in ((0, 1), (1, 2))]
    for i, part in enumerate(parts):
        part.save(tmp_path / str(i))
    merged = dubito.merge([parts[0], dubito.load(tmp_path / "1", net(), device="cpu")])
    assert (merged.samples.rows, merged.samples.chains, len(merged)) == (4, 3, 12)
    paths = merged.samples.coordinates(range(26))
    assert torch.equal(paths[0], parts[0].samples.theta[:, 0])
    assert torch.equal(paths[1:], parts[1].samples.theta[:4].transpose(0, 1))
    merged.save(tmp_path / "merged")
    again = dubito.load(tmp_path / "merged", net(), device="cpu")
    assert torch.equal(again.predict(X).draws, merged.predict(X).draws)
    assert merged.diagnose().weights is not None
    with pytest.raises(dubito.Undefined, match="several chains"):
        merged.mean_network()


def test_what_does_not_belong_together_is_not_merged():
    with pytest.raises(ValueError, match="nothing to merge"):
        dubito.merge([])
    with pytest.raises(ValueError, match="different networks or likelihoods"):
        dubito.merge([fit(), fit(module=net(5))])
    with pytest.raises(ValueError, match="different networks or likelihoods"):
        dubito.merge([fit(), fit(likelihood=dubito.Categorical(ignore_index=-1))])
    dropped = dubito.fit(net(), (X, Y), "mc_dropout", steps=2, progress=False)
    with pytest.raises(ValueError, match="MC dropout keeps masks, not samples"):
        dubito.merge([fit(), dropped])
    other = net()
    nn.init.ones_(other[0].bias)
    rule = {"0.bias": dubito.Fixed(), "*": dubito.Normal()}
    with pytest.raises(ValueError, match=r"differ in '0\.bias', which is no part of their samples"):
        dubito.merge([fit(prior=rule), fit(prior=rule, module=other)])


def test_own_likelihoods_of_one_kind_merge():
    class Own(dubito.Likelihood):
        def log_prob(self, outputs, y):
            return -(outputs - y).square().sum(-1)

    parts = [fit(seed=s, likelihood=Own(), data=(X, X[:, :2])) for s in (0, 1)]
    assert len(dubito.merge(parts)) == 8


def test_a_posterior_can_be_moved_as_a_folder(folder, tmp_path):
    before = dubito.load(folder, net()).predict(X).probs
    shutil.move(folder, tmp_path / "elsewhere")
    assert torch.equal(dubito.load(tmp_path / "elsewhere", net()).predict(X).probs, before)
