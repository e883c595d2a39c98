"""`dubito report`: results and run folders as one page."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dubito import metrics, plots
from dubito.cli.predicting import Predicted, Run, open_run, predict, scores
from dubito.cli.settings import DataSettings
from dubito.posteriors.base import Posterior
from dubito.results import Figure, Result, Table, environment
from dubito.runs import history

DIAGNOSED = 200  # rows whose predictions are diagnosed
CURVES = {"fit": "training", "validation": "validation", "complexity": "complexity (prior)"}


def collect(paths: Sequence[Path], data: DataSettings | None, draws: int, seed: int, device: str) -> list[Result]:
    """What each path holds: a result, a folder of results, or a run."""
    results: list[Result] = []
    for path in paths:
        if path.suffix == ".json":
            results.append(Result.load(path))
        elif (path / "run.json").is_file():
            results.append(run_result(path, data, draws, seed, device))
        else:
            results += _folder(path)
    return results


def _folder(path: Path) -> list[Result]:
    found = sorted(path.glob("*.json")) if path.is_dir() else []
    if not found:
        raise FileNotFoundError(f"{path} is neither a run, nor a result, nor a folder of results; check the path")
    return [Result.load(one) for one in found]


def run_result(folder: Path, data: DataSettings | None, draws: int, seed: int, device: str) -> Result:
    """A run as a result: how it went, whether its chains mixed and, with data, how good it is."""
    run = open_run(folder, device)
    records = history(folder)
    tables, figures, numbers = [], [_history_figure(records)] if len(records) > 1 else [], {}
    predicted = None
    if data is not None:
        predicted = predict(run, data, "test", draws, seed, progress=False)
        numbers = scores(run, predicted, data.source)
        tables.append(scores_table(numbers, data.source, predicted))
        figures += _prediction_figures(run, predicted)
    mixing, summary = _diagnosis(run.posterior, None if predicted is None else predicted.x[:DIAGNOSED])
    tables += mixing
    return Result(
        name=re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-") or "run",
        title=f"Run {folder.resolve().name}",
        summary=f"{_describe(run)} {summary}",
        numbers=numbers,
        tables=[*tables, *last_table(folder)],
        figures=figures,
        settings=dict(run.posterior.about),
        environment=environment(),
    )


def scores_table(found: Mapping[str, float], source: str, predicted: Predicted) -> Table:
    """Scores in one row."""
    prediction = predicted.prediction
    note = f"{len(prediction):,} rows; networks averaged: {prediction.n_draws:,}; nll in nats a row."
    return Table(f"On {Path(source).name if '.' in source else source}", tuple(found), [tuple(found.values())], note)


def _describe(run: Run) -> str:
    text = repr(run.posterior).strip("<>")
    return f"{text}, learnt from {run.settings.data.source}."


def _history_figure(records: Sequence[Mapping[str, Any]]) -> Figure:
    series = []
    for key, label in CURVES.items():
        points = [(record["step"], record[key]) for record in records if key in record]
        if points:
            x, y = zip(*points, strict=True)
            series.append(plots.Series(label, np.array(y), np.array(x)))
    return plots.lines("history", "How the run went", series, x_label="updates", y_label="nats per datum")


def last_table(folder: Path) -> list[Table]:
    """The last record of a run's history, if there is one."""
    records = history(folder)
    if not records:
        return []
    return [Table("At the end", tuple(records[-1]), [tuple(records[-1].values())], "Nats per datum.")]


def _diagnosis(posterior: Posterior, x: Tensor | None) -> tuple[list[Table], str]:
    """R-hat and effective sample sizes where there are chains, or the reason why not."""
    try:
        found = posterior.diagnose(x)
    except ValueError as error:
        return [], f"No diagnostics: {error}."
    rows = found.table()
    digits = dict.fromkeys(("min", "median", "max", "limit"), ".4g")
    table = Table("Mixing of the chains", tuple(rows[0]), [tuple(row.values()) for row in rows], formats=digits)
    return [table], "The chains have mixed." if found.ok else "The chains have not mixed well; see the table of mixing."


def _prediction_figures(run: Run, predicted: Predicted) -> list[Figure]:
    if predicted.y is None:
        return []
    prediction, y = predicted.prediction, run.encoding.targets(predicted.y, "the data")
    if prediction.kind == "classification":
        curve = metrics.reliability(prediction.probs, y)
        full = curve.count > 0
        one = plots.Series("this run", curve.accuracy[full], curve.confidence[full], weight=curve.count[full])
        return [plots.reliability("reliability", "Is it right as often as it claims?", [one])]
    mean = run.encoding.original(prediction.mean.cpu().numpy()).reshape(len(y), -1)
    true = np.asarray(predicted.y, dtype=np.float64).reshape(len(y), -1)
    if mean.shape != true.shape:
        return []
    one = plots.Series("one row", mean.ravel(), true.ravel())
    title = "Predicted against true"
    return [plots.scatter("predicted", title, [one], x_label="target", y_label="predicted mean", diagonal=True)]
