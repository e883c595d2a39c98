import json

import numpy as np
import pytest
import torch

import dubito as library
from dubito.cli import rows
from dubito.cli.settings import DataSettings
from dubito.data import Table


def opened(source, like=None):
    return rows.open_rows(DataSettings(source=str(source)), "train", like)


def learned(found, outputs=2, likelihood=None, standardise=None, flatten=False):
    encoding = rows.learn(found, standardise, flatten)
    return rows.learn_targets(encoding, found.y, torch.zeros(1, outputs), likelihood)


def test_a_table_is_standardised_and_comes_back_from_its_file(pets, in_folder):
    found = opened(pets)
    encoding = learned(found)
    x = encoding.inputs(found.x, "pets.csv")
    assert torch.allclose(x.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(x.std(0, correction=0), torch.ones(2), atol=1e-5)
    encoding.save(in_folder)
    again = rows.Encoding.load(in_folder)
    assert again == encoding
    assert torch.equal(again.inputs(found.x, "pets.csv"), x)
    assert again.class_names(2) == ["cat", "dog"]


def test_a_column_that_never_changes_is_only_centred():
    found = rows.Rows(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([0, 1]), Table())
    assert learned(found).inputs(found.x, "x").tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_images_stay_as_they_are_and_are_flattened_for_an_mlp():
    found = rows.Rows(torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]), Table())
    assert torch.equal(learned(found).inputs(found.x, "x"), found.x)
    assert torch.equal(learned(found, flatten=True).inputs(found.x, "x"), found.x.flatten(1))
    scaled = learned(found, standardise=True).inputs(found.x, "x")
    assert torch.allclose(scaled.mean(0), torch.zeros(1, 2, 2), atol=1e-6)


def test_whole_numbers_as_inputs_are_not_standardised():
    found = rows.Rows(torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1]), Table())
    assert torch.equal(learned(found).inputs(found.x, "x"), found.x)
    with pytest.raises(ValueError, match="cannot be standardised"):
        learned(found, standardise=True)


def test_targets_are_scaled_where_the_noise_is_found(prices):
    found = opened(prices)
    encoding = learned(found, outputs=1)
    y = encoding.targets(found.y, "prices.csv")
    assert float(y.mean()) == pytest.approx(0, abs=1e-4)
    assert float(y.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert np.allclose(encoding.original(y.numpy()), found.y.numpy(), rtol=1e-5)
    known = learned(found, outputs=1, likelihood=library.Gaussian(std=30.0))
    assert torch.equal(known.targets(found.y, "prices.csv"), found.y)
    plain = learned(found, outputs=1, standardise=False)
    assert torch.equal(plain.targets(found.y, "prices.csv"), found.y)


def test_several_targets_share_one_scale():
    y = torch.tensor([[0.0, 100.0], [2.0, 104.0]])
    found = rows.Rows(torch.rand(2, 3), y, Table())
    encoding = learned(found, outputs=2)
    assert encoding.y_scale == pytest.approx(((1 + 4) / 2) ** 0.5)
    assert encoding.y_mean == [1.0, 102.0]
    assert np.allclose(encoding.original(encoding.targets(y, "x").numpy()), y.numpy())


def test_whole_numbers_are_numbers_under_a_gaussian():
    found = rows.Rows(torch.rand(3, 2), torch.tensor([3, 8, 4]), Table())
    encoding = learned(found, outputs=1, likelihood=library.Gaussian.learned())
    assert not encoding.labels
    assert encoding.targets(found.y, "x").is_floating_point()


def test_labels_that_do_not_count_from_0_become_classes():
    found = rows.Rows(torch.rand(4, 2), torch.tensor([30, 10, 20, 10]), Table())
    encoding = learned(found, outputs=3)
    assert encoding.targets(found.y, "x").tolist() == [2, 0, 1, 0]
    assert encoding.class_names(3) == ["10", "20", "30"]
    with pytest.raises(ValueError, match=r"new.csv has the label 15, unseen in training \(10, 20, 30\); correct it"):
        encoding.targets(torch.tensor([10, 15]), "new.csv")


def test_labels_that_fit_the_outputs_stay():
    found = rows.Rows(torch.rand(3, 2), torch.tensor([0, 5, 9]), Table())
    encoding = learned(found, outputs=10)
    assert encoding.targets(found.y, "x").tolist() == [0, 5, 9]
    assert encoding.class_names(10)[5] == "5"
    with pytest.raises(ValueError, match="3 classes but the network only 2 outputs"):
        learned(found, outputs=2)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (["weight", "tail"], "it lacks 'ear' and has 'tail', which training did not"),
        (["weight"], "it lacks 'ear'; make them the same$"),
        (["weight", "ear", "id"], "it has 'id', which training did not"),
    ],
)
def test_other_columns_are_refused(pets, table, header, sentence):
    encoding = learned(opened(pets))
    new = table("new.csv", header, [[1.0] * len(header)])
    with pytest.raises(ValueError, match=sentence):
        opened(new, encoding)


def test_columns_in_any_order_and_without_the_target(pets, table):
    encoding = learned(opened(pets))
    new = table("new.csv", ["ear", "weight"], [[0.01, 4.0]])
    found = opened(new, encoding)
    assert found.y is None
    assert found.x.tolist() == [pytest.approx([4.0, 0.01])]
    new.write_text("\n" + new.read_text())
    assert opened(new, encoding).x.tolist() == found.x.tolist()


def test_rows_of_another_shape_are_refused(pets):
    encoding = learned(opened(pets))
    with pytest.raises(ValueError, match=r"a row of new has shape \(3,\), but .* trained on \(2,\); give such"):
        encoding.inputs(torch.rand(1, 3), "new")


def test_a_damaged_or_missing_note(pets, in_folder):
    with pytest.raises(ValueError, match=r"has no data.json, so it was not made by dubito fit"):
        rows.Encoding.load(in_folder)
    learned(opened(pets)).save(in_folder)
    record = json.loads((in_folder / "data.json").read_text())
    for damage in ("{", "[]", json.dumps({**record, "format": 99}), json.dumps({"format": 1})):
        (in_folder / "data.json").write_text(damage)
        with pytest.raises(ValueError, match=r"data.json cannot be read"):
            rows.Encoding.load(in_folder)
