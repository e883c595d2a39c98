"""Runs that go on after a kill, and a person's labels, of which none is lost."""

import csv
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import dubito
from dubito.results import Result
from dubito.tasks import Active, Person, Waiting


def rows(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def refit(data, previous, seed) -> dubito.Posterior:
    assert previous is None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    return dubito.fit(net, data, "deep_ensemble", members=2, steps=8, seed=seed, device="cpu", progress=False)


def counting(stop_after: int) -> tuple[Callable[..., dubito.Posterior], list[int]]:
    """A refit that is killed after some calls."""
    seen: list[int] = []

    def killed(data, previous, seed) -> dubito.Posterior:
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(data[1]))
        return refit(data, previous, seed)

    return killed, seen


TASK = Active(acquisition="bald", batch=4, rounds=3, start=6, pool_subset=20, draws=2)
DATA = {"pool": rows(), "test": rows(30)}


def test_a_run_labels_what_it_chose_and_measures():
    result = TASK.run(refit, DATA)
    found = result.numbers
    assert found["labels"] == [6, 10, 14, 18] and len(found["accuracy"]) == 4
    chosen = [i for block in found["chosen"] for i in block]
    assert len(set(chosen)) == 18
    assert [y for block in found["answers"] for y in block] == rows()[1][chosen].tolist()
    assert set(found["labels needed"]) == {"0.1", "0.05"}


@pytest.mark.parametrize("acquisition", ["batch_bald", "random"])
@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_a_killed_run_goes_on_with_the_same_choices(tmp_path, acquisition, stop_after):
    task = Active(acquisition=acquisition, batch=3, rounds=3, start=6, draws=2, pool_subset=15)
    whole = task.run(refit, DATA).numbers
    killed, _ = counting(stop_after)
    with pytest.raises(KeyboardInterrupt):
        task.run(killed, DATA, folder=tmp_path)
    again, seen = counting(99)
    assert task.run(again, DATA, folder=tmp_path).numbers == whole
    assert len(seen) <= 4 - stop_after + 1
    finished, none = counting(0)
    assert task.run(finished, DATA, folder=tmp_path).numbers == whole and none == []


def going_on(data, previous, seed) -> dubito.Posterior:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = torch.nn.Linear(4, 3) if previous is None else previous.mean_network()
    return dubito.fit(net, data, "map", steps=8, seed=seed, device="cpu", progress=False)


WARM = Active(acquisition="entropy", batch=3, rounds=3, start=6, draws=1, warm_start=True)


def test_warm_starts_go_on_from_the_round_before():
    seen: list[dubito.Posterior | None] = []

    def noting(data, previous, seed) -> dubito.Posterior:
        if seen:
            torch.testing.assert_close(vector(previous), vector(seen[-1]), atol=0, rtol=0)
        seen.append(going_on(data, previous, seed))
        return seen[-1]

    def vector(posterior) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(posterior.mean_network().parameters())

    warm = WARM.run(noting, DATA).numbers
    assert len(seen) == 4 and warm["nll"] != replace(WARM, warm_start=False).run(going_on, DATA).numbers["nll"]


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_warm_starts_survive_a_kill(tmp_path, stop_after):
    whole, seen = WARM.run(going_on, DATA).numbers, []

    def killed(data, previous, seed) -> dubito.Posterior:
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(None)
        return going_on(data, previous, seed)

    with pytest.raises(KeyboardInterrupt):
        WARM.run(killed, DATA, folder=tmp_path)
    assert WARM.run(going_on, DATA, folder=tmp_path).numbers == whole
    finished, none = counting(0)
    assert WARM.run(finished, DATA, folder=tmp_path).numbers == whole and none == []


@pytest.mark.parametrize(("task", "method"), [(TASK, refit), (WARM, going_on)])
def test_a_run_ends_where_its_error_is_low_enough(tmp_path, task, method):
    whole = task.run(method, DATA).numbers
    enough = 1 - whole["accuracy"][2]
    end = next(i for i, right in enumerate(whole["accuracy"]) if 1 - right <= enough)
    early = replace(task, until=enough)
    found = early.run(method, DATA, folder=tmp_path).numbers
    assert found["accuracy"] == whole["accuracy"][: end + 1] and found["chosen"] == whole["chosen"][: end + 1]
    finished, none = counting(0)
    assert early.run(finished, DATA, folder=tmp_path).numbers == found and none == []
    assert task.run(method, DATA, folder=tmp_path).numbers == whole


def test_a_question_left_open_is_asked_before_earlier_fits_are_made_again(tmp_path):
    def away(rows, x, number):
        if number == 2:
            raise Waiting("nobody there")
        return DATA["pool"][1][rows]

    pool = {"pool": DATA["pool"][0]}
    with pytest.raises(Waiting):
        WARM.run(going_on, pool, folder=tmp_path, oracle=away)
    never, none = counting(0)
    with pytest.raises(Waiting):
        WARM.run(never, pool, folder=tmp_path, oracle=away)
    assert none == []


def test_an_error_to_end_at_is_refused_where_there_is_none():
    for wrong in (-0.1, 1, math.nan, "low"):
        with pytest.raises(ValueError, match="until="):
            replace(TASK, until=wrong)
    with pytest.raises(ValueError, match=r"until=0\.1 is an error on test rows"):
        replace(TASK, until=0.1).run(refit, {"pool": DATA["pool"]})

    def numbers(data, previous, seed) -> dubito.Posterior:
        target = data[1].float()
        return dubito.fit(torch.nn.Linear(4, 1), (data[0], target), "map", steps=2, device="cpu", progress=False)

    with pytest.raises(ValueError, match="this posterior names none"):
        replace(TASK, acquisition="random", until=0.1).run(numbers, DATA)


def slowly(data, previous, seed) -> dubito.Posterior:
    time.sleep(0.05)
    return refit(data, previous, seed)


def child(folder) -> None:
    torch.set_num_threads(1)
    TASK.run(slowly, DATA, folder=folder)
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_run_killed_by_the_system_goes_on_with_the_same_choices(tmp_path, blocks):
    whole = TASK.run(refit, DATA).numbers
    process = multiprocessing.get_context("fork").Process(target=child, args=(tmp_path,))
    process.start()
    journal, end = tmp_path / "active.json", time.monotonic() + 60
    while time.monotonic() < end:
        if journal.exists() and len(json.loads(journal.read_text())["blocks"]) >= blocks:
            break
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert TASK.run(refit, DATA, folder=tmp_path).numbers == whole


def test_wrong_answers_of_an_oracle_are_not_noted(tmp_path):
    task = Active(acquisition="random", batch=2, rounds=1, start=3)
    for wrong in ([0], ["a", "b", "c"], [0, 1, -1], [0.5, 1.0, 2.0]):
        with pytest.raises(ValueError, match="the oracle answered"):
            task.run(refit, {"pool": rows()[0]}, folder=tmp_path, oracle=lambda i, x, n, said=wrong: said)
    y = rows()[1]
    found = task.run(refit, {"pool": rows()[0]}, folder=tmp_path, oracle=lambda i, x, n: y[i])
    assert found.numbers["answers"] == [y[i].tolist() for i in found.numbers["chosen"]]


def test_more_rounds_extend_a_run_and_other_settings_are_refused(tmp_path):
    short = TASK.run(refit, DATA, folder=tmp_path).numbers
    longer = replace(TASK, rounds=4).run(refit, DATA, folder=tmp_path).numbers
    assert longer["chosen"][:4] == short["chosen"] and len(longer["chosen"]) == 5
    assert longer == replace(TASK, rounds=4).run(refit, DATA).numbers
    with pytest.raises(ValueError, match="batch: 4 here, 5 there"):
        replace(TASK, batch=5).run(refit, DATA, folder=tmp_path)
    (tmp_path / "active.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        TASK.run(refit, DATA, folder=tmp_path)


def test_a_run_does_not_go_on_with_other_labels(tmp_path):
    before = TASK.run(refit, DATA, folder=tmp_path).numbers
    x, y = DATA["pool"]
    with pytest.raises(ValueError, match=r"but the folder's run was told [012]; give the same"):
        TASK.run(refit, {**DATA, "pool": (x, (y + 1) % 3)}, folder=tmp_path)
    assert TASK.run(refit, DATA, folder=tmp_path).numbers == before


@pytest.mark.parametrize("before", [{}, {"test": rows(31)}])
def test_other_test_rows_are_scored_in_every_round(tmp_path, before):
    pool = {"pool": DATA["pool"]}
    TASK.run(refit, {**pool, **before}, folder=tmp_path)
    more = replace(TASK, rounds=4)
    whole = more.run(refit, DATA).numbers
    assert more.run(refit, DATA, folder=tmp_path).numbers == whole
    finished, none = counting(0)
    assert more.run(finished, DATA, folder=tmp_path).numbers == whole and none == []


def test_a_run_that_goes_on_without_test_rows_keeps_its_scores(tmp_path):
    TASK.run(refit, DATA, folder=tmp_path)
    more, pool = replace(TASK, rounds=4), {"pool": DATA["pool"]}
    assert "accuracy" not in more.run(refit, pool, folder=tmp_path).numbers
    again, seen = counting(99)
    assert more.run(again, DATA, folder=tmp_path).numbers == more.run(refit, DATA).numbers and len(seen) == 1


def fill(table, labels: dict[int, object]) -> None:
    """A person writes some labels."""
    with table.open(newline="") as file:
        records = list(csv.DictReader(file))
    for record in records:
        record["label"] = labels.get(int(record["row"]), record["label"])
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def test_a_person_labels_images_and_nothing_is_lost(tmp_path):
    from PIL import Image

    x = torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0.5).long()
    task = Active(acquisition="random", batch=2, rounds=1, start=4)

    def fitted(data, previous, seed):
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
        return dubito.fit(net, data, "map", steps=3, seed=seed, device="cpu", progress=False)

    def go() -> Result:
        return task.run(fitted, {"pool": x}, folder=tmp_path, oracle=Person(tmp_path, ["dark", "bright"]))

    with pytest.raises(Waiting, match="4 of 4 labels are missing"):
        go()
    table = tmp_path / "to-label-000.csv"
    with table.open(newline="") as file:
        asked = {int(record["row"]): record["image"] for record in csv.DictReader(file)}
    for image in asked.values():
        with Image.open(tmp_path / image) as opened:
            assert opened.size[0] >= 140
    some = dict(list({i: int(y[i]) for i in asked}.items())[:2])
    fill(table, some)
    before = table.read_bytes()
    with pytest.raises(Waiting, match="2 of 4 labels are missing"):
        go()
    assert table.read_bytes() == before  # what was written stays
    fill(table, {i: ["dark", "bright"][int(y[i])] for i in asked})
    with pytest.raises(Waiting, match="to-label-001"):
        go()
    assert json.loads((tmp_path / "active.json").read_text())["blocks"][0]["labels"] == [int(y[i]) for i in asked]
    table.unlink()  # labels once read are kept in the journal
    second = tmp_path / "to-label-001.csv"
    with second.open(newline="") as file:
        rest = [int(record["row"]) for record in csv.DictReader(file)]
    fill(second, {rest[0]: "grey"})
    with pytest.raises(ValueError, match=r"line 2 of .* has the label 'grey'; write one of dark, bright"):
        go()
    fill(second, {i: int(y[i]) for i in rest})
    answers = go().numbers["answers"]
    assert answers == [[int(y[i]) for i in asked], [int(y[i]) for i in rest]]


def test_rows_that_are_no_images_are_written_as_numbers(tmp_path):
    with pytest.raises(Waiting, match="0 to 2"):
        Person(tmp_path, 3)([5, 7], torch.tensor([[1.5, 2.0, 3.0], [4.0, 5.0, 6.0]]), 0)
    lines = (tmp_path / "to-label-000.csv").read_text().splitlines()
    assert lines == ["row,label,x0,x1,x2", "5,,1.5,2,3", "7,,4,5,6"]
    for written in ("row,label\n5,1\n7,2\n", "\ufeffrow;label;x0\r\n7;2;4,5\r\n5; 1;1,5\r\n"):  # by a spreadsheet
        (tmp_path / "to-label-000.csv").write_text(written, encoding="utf-8")
        assert Person(tmp_path, 3)([5, 7], torch.zeros(2, 3), 0) == [1, 2]
    (tmp_path / "to-label-000.csv").write_text("row,label\n9,1\n")
    with pytest.raises(ValueError, match="row '9', which was not asked for"):
        Person(tmp_path, 3)([5, 7], torch.zeros(2, 3), 0)


@pytest.mark.parametrize(
    ("settings", "data", "says"),
    [
        ({"acquisition": "balt"}, DATA, "did you mean 'bald'"),
        ({"batch": 0}, DATA, "batch must be at least 1, got 0"),
        ({"draws": 0}, DATA, "draws must be at least 1, got 0"),
        ({"pool_subset": 5}, DATA, "holds no batch of 10"),
        ({"pool_subset": 20.5}, DATA, "pool_subset must be a whole number, got 20.5"),
        ({"sharpness": 0.0}, DATA, "sharpness=0.0 must be positive"),
        ({"sharpness": math.inf}, DATA, "sharpness=inf must be positive and finite"),
        ({}, {"poll": rows()}, "did you mean 'pool'"),
        ({"acquisition": "random", "sharpness": 1.0}, DATA, "leave it out"),
        ({}, {"pool": rows()[0]}, "nobody knows the labels"),
        ({"rounds": 100}, DATA, "the pool has 60 rows"),
    ],
)
def test_bad_arguments_are_one_sentence(settings, data, says):
    with pytest.raises(ValueError, match=says):
        Active(**settings).run(refit, data)


def test_one_network_cannot_disagree_with_itself():
    def single(data, previous, seed):
        return dubito.fit(torch.nn.Linear(4, 3), data, "map", steps=2, seed=seed, device="cpu", progress=False)

    for name in ("bald", "mean_std", "batch_bald"):
        with pytest.raises(dubito.Undefined, match="several networks"):
            Active(acquisition=name, rounds=1).run(single, DATA)
