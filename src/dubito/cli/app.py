"""The commands and their options; each imports what it needs when it runs, so that --help answers at once."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dubito import __version__
from dubito.cli.guard import Guard, begun_again

if TYPE_CHECKING:
    from dubito.cli.rows import Part
    from dubito.cli.settings import DataSettings
    from dubito.posteriors.base import Posterior

app = typer.Typer(
    cls=Guard,
    help="Networks that know when they do not know.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(help="Folder of a run of dubito fit.")]
Source = Annotated[str, typer.Option("--data", help="A .csv or .npz file, or the name of a set (see dubito data).")]
Train = Annotated[bool, typer.Option("--train", help="Of a named set, the training and not the test part.")]
Split = Annotated[int | None, typer.Option(help="Which standard split of a UCI set.")]
Folders = Annotated[list[Path], typer.Argument(help="A run of dubito fit, then other runs or distilled posteriors.")]
Draws = Annotated[int, typer.Option(help="Networks to average over.")]
Seed = Annotated[int, typer.Option(help="Which of them.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Rounding = Annotated[str, typer.Option(help="Of a GPU's products: float32, tf32 or bf16.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")]
NoBar = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


def _version(value: bool) -> None:
    if value:
        print(f"dubito {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Networks that know when they do not know."""


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps only: the page, not the numbers.")] = False,
    quiet: NoBar = False,
) -> None:
    """Show what doubt is good for, on embedded data."""
    from dubito import demo

    with begun_again():
        demo.run(folder, quick=quick, progress=not quiet)


@app.command()
def fit(
    config: Annotated[Path | None, typer.Option(help="Settings as TOML; flags override them.")] = None,
    folder: Annotated[str | None, typer.Option(help="Where the run is kept; the same again resumes it.")] = None,
    data: Annotated[str | None, typer.Option(help="A .csv or .npz file, or a named set (see dubito data).")] = None,
    target: Annotated[str | None, typer.Option(help="CSV column to predict [default: the last].")] = None,
    split: Split = None,
    validation: Annotated[float | None, typer.Option(help="Share of the rows held out.")] = None,
    standardise: Annotated[bool | None, typer.Option(help="[default: tables yes, images no]")] = None,
    net: Annotated[str | None, typer.Option(help="A name of dubito.nn, or package.module:factory.")] = None,
    net_args: Annotated[str | None, typer.Option(help="Its arguments as JSON.")] = None,
    method: Annotated[str | None, typer.Option(help="How to infer (see dubito methods).")] = None,
    likelihood: Annotated[str | None, typer.Option(help="[default: by the type of the target]")] = None,
    prior: Annotated[str | None, typer.Option(help="[default: fan_in]")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Of the method; prior.NAME=, likelihood.NAME= of the others."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, burn-in included.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="[default: 100, or all rows if fewer]")] = None,
    members: Annotated[int | None, typer.Option(help="Chains or networks [default: the method's own].")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many checks without progress.")] = None,
    temperature: Annotated[float | None, typer.Option(help="[default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="[default: 0]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [default: auto].")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps [default: every half minute].")] = None,
    precision: Annotated[str | None, typer.Option(help="Of a GPU's products: float32, tf32 or bf16.")] = None,
    quiet: Quiet = False,
) -> None:
    """Fit a posterior and keep it in a folder, or resume a run."""
    from dubito.cli import fitting, settings

    document = {} if config is None else settings.read(config)
    chosen = {"data": data, "net": net, "method": method, "likelihood": likelihood, "prior": prior}
    for table, name in chosen.items():
        settings.choose(document, table, name)
    flags: dict[str, Any] = {
        "data.target": target,
        "data.split": split,
        "data.standardise": standardise,
        "net.arguments": None if net_args is None else _json(net_args),
        "folder": folder,
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "members": members,
        "validation": validation,
        "patience": patience,
        "temperature": temperature,
        "seed": seed,
        "device": device,
        "checkpoint_every": checkpoint_every,
        "precision": precision,
    }
    settings.override(document, flags)
    for assignment in set_ or ():
        settings.assign(document, assignment)
    asked = settings.parse(document)
    began = time.monotonic()
    posterior = fitting.fit(asked, progress=not quiet)
    if not quiet:
        _print_fit(posterior, asked.run.folder, time.monotonic() - began)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"--net-args is no JSON ({error}); write it like '{{\"sizes\": [4, 50, 3]}}'") from error


def _print_fit(posterior: "Posterior", folder: str, seconds: float) -> None:
    """What was made, how it went, and what to do with it; lines to copy are not broken."""
    from rich.console import Console

    from dubito.cli.reporting import last_table
    from dubito.report.terminal import print_table

    console = Console()
    console.print(repr(posterior).strip("<>"), style="bold", markup=False, highlight=False, soft_wrap=True)
    for table in last_table(Path(folder)):
        print_table(table, console)
    following = f"dubito predict {folder} --data NEW --out predictions.csv"
    kept = f"kept in {folder} after {seconds:.1f} s; next: {following}"
    console.print(kept, markup=False, highlight=False, soft_wrap=True)


@app.command()
def predict(
    folder: Folder,
    data: Source,
    out: Annotated[Path, typer.Option(help="Where predictions go: a .csv or an .npz file.")],
    draws: Draws = 100,
    seed: Seed = 0,
    train: Train = False,
    split: Split = None,
    device: Device = "auto",
    precision: Rounding = "float32",
    quiet: Quiet = False,
) -> None:
    """Predict new rows, with every uncertainty."""
    from dubito.cli import predicting

    predicting.check_out(out)
    run = predicting.open_run(folder, device)
    part: Part = "train" if train else "test"
    found = predicting.predict(run, _source(data, split), part, draws, seed, precision, progress=not quiet)
    rows = predicting.write(out, predicting.arrays(run, found.prediction))
    if not quiet:
        print(f"{out}: {rows:,} rows; networks averaged: {found.prediction.n_draws:,}")


@app.command()
def evaluate(
    folder: Folder,
    data: Source,
    draws: Draws = 100,
    seed: Seed = 0,
    train: Train = False,
    split: Split = None,
    device: Device = "auto",
    precision: Rounding = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: NoBar = False,
) -> None:
    """Score a run on rows whose targets are known."""
    from dubito.cli import predicting, reporting
    from dubito.report import print_result
    from dubito.results import Result

    run = predicting.open_run(folder, device)
    part: Part = "train" if train else "test"
    found = predicting.predict(run, _source(data, split), part, draws, seed, precision, progress=not quiet)
    scores = predicting.scores(run, found, data)
    if as_json:
        print(json.dumps({**scores, "rows": len(found.prediction), "networks": found.prediction.n_draws}))
    else:
        title = repr(run.posterior).strip("<>")
        print_result(Result("evaluation", title, tables=[reporting.scores_table(scores, data, found)]))


@app.command()
def ood(
    folders: Folders,
    data: Source,
    outside: Annotated[list[str], typer.Option(help="What the runs were not trained for; may be repeated.")],
    scale: Annotated[
        list[float] | None, typer.Option(help="Multiply outside inputs; may be repeated [default: 1, as they are].")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows of each set, chosen by the seed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result, its figures and a page.")] = Path("ood"),
    draws: Draws = 100,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: NoBar = False,
) -> None:
    """Tell strange inputs and wrong answers by a run's doubt."""
    from dubito.cli import detecting
    from dubito.posteriors.files import make_folder
    from dubito.report import print_result
    from dubito.tasks import OOD

    make_folder(out)
    task = OOD(draws=draws, seed=seed, scales=tuple(scale or (1.0,)), progress=not quiet)
    found = detecting.detect(folders, data, outside, limit, device, task)
    print_result(found)
    print("\nWritten:", *detecting.write(found, out), sep="\n  ")


@app.command()
def active(
    config: Annotated[Path, typer.Option(help="Settings of dubito fit as TOML: data are the pool.")],
    folder: Annotated[str, typer.Option(help="Where labels are kept; the same again goes on.")],
    acquisition: Annotated[
        str, typer.Option(help="entropy, bald, variation_ratio, mean_std, random or batch_bald.")
    ] = "bald",
    batch: Annotated[int, typer.Option(help="Labels a round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Times that labels are asked for after the first.")] = 10,
    until: Annotated[float | None, typer.Option(help="Test error that ends it before all rounds are over.")] = None,
    start: Annotated[int, typer.Option(help="Labels before the first choice.")] = 20,
    pool_subset: Annotated[int | None, typer.Option(help="Rows to choose among, drawn anew each round.")] = None,
    sharpness: Annotated[float | None, typer.Option(help="Choose at random, by score to this power.")] = None,
    person: Annotated[bool, typer.Option("--person", help="You answer, in a table beside the images.")] = False,
    test: Annotated[str | None, typer.Option(help="Rows to be judged by [default: a named set's test part].")] = None,
    draws: Draws = 100,
    seed: Seed = 0,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [default: as in the settings].")] = None,
    quiet: NoBar = False,
) -> None:
    """Learn from few labels, chosen by doubt; stopped or waiting, the same command goes on."""
    from dubito.cli import detecting, learning, settings
    from dubito.report import print_result
    from dubito.tasks import Active, Waiting

    document = settings.read(config)
    settings.override(document, {"folder": folder, "device": device})
    task = Active(
        acquisition=acquisition,  # type: ignore[arg-type]
        batch=batch,
        rounds=rounds,
        until=until,
        start=start,
        pool_subset=pool_subset,
        sharpness=sharpness,
        draws=draws,
        seed=seed,
        progress=not quiet,
    )
    try:
        found = learning.learn(settings.parse(document), task, test, person)
    except Waiting as question:
        print(question)
        return
    print_result(found)
    print("\nWritten:", *detecting.write(found, Path(folder) / "result"), sep="\n  ")


@app.command()
def compare(
    folders: Folders,
    data: Source,
    outside: Annotated[str | None, typer.Option(help="Rows of another kind, to tell apart by doubt.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where JSON and figures go: a folder.")] = None,
    draws: Draws = 100,
    seed: Seed = 0,
    split: Split = None,
    device: Device = "auto",
) -> None:
    """Put posteriors side by side: bytes, seconds, quality, and nearness to the first."""
    from dubito.cli import comparing
    from dubito.posteriors.files import make_folder
    from dubito.report import print_result, write_figures

    if out is not None:
        make_folder(out)
    beyond = None if outside is None else _source(outside, None)
    found = comparing.run(folders, _source(data, split), beyond, draws, seed, device)
    print_result(found)
    if out is not None:
        print("\nWritten:", found.save(out / "comparison.json"), *write_figures(found, out), sep="\n  ")


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Runs, results (.json) or folders of results.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    data: Annotated[str | None, typer.Option(help="Rows to score runs on: a file, or a named set's test part.")] = None,
    split: Split = None,
    draws: Draws = 100,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Write one self-contained page from results and runs."""
    from dubito.cli import reporting
    from dubito.report import write_html

    source = None if data is None else _source(data, split)
    results = reporting.collect(paths, source, draws, seed, device)
    title = results[0].title if len(results) == 1 else "Report"
    print(f"wrote {write_html(results, out, title)}")


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="One of them, in detail.")] = None) -> None:
    """List the methods, or the settings of one."""
    from dubito.cli import listing
    from dubito.report import print_result

    print_result(listing.methods_result() if name is None else listing.method_result(name))


@app.command("data")
def data_sets() -> None:
    """List the named data sets and which of them are here."""
    from dubito.cli import listing
    from dubito.report import print_result

    print_result(listing.data_result())


@app.command()
def study(
    names: Annotated[list[str] | None, typer.Argument(help="Which ones; without any, they are listed.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest version that runs every line.")] = False,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of the data and the chains.")] = 0,
    folder: Annotated[Path, typer.Option(help="Where results and figures go.")] = Path("results"),
    workers: Annotated[int, typer.Option(help="Processes for a study made of independent pieces.")] = 1,
    quiet: NoBar = False,
) -> None:
    """Run published experiments, or list them."""
    from dubito import studies
    from dubito.cli import listing
    from dubito.report import print_result

    named = [studies.find(name).name for name in names or ()]
    chosen = studies.names() if every else named
    with begun_again(None if quick else folder / studies.RUNS):
        for name in chosen:
            studies.run(name, quick=quick, device=device, folder=folder, seed=seed, progress=not quiet, workers=workers)
    if not chosen:
        print_result(listing.studies_result())


@app.command()
def selfcheck(
    quick: Annotated[bool, typer.Option("--quick", help="Shorter runs, under two minutes.")] = False,
    quiet: NoBar = False,
) -> None:
    """Check every method against posteriors that are known."""
    from dubito import selfcheck
    from dubito.report import print_result

    found = selfcheck.run(quick=quick, progress=not quiet, workers=os.cpu_count() or 1)
    print_result(found)
    if not found.numbers["passed"]:
        raise typer.Exit(1)


def _source(data: str, split: int | None) -> "DataSettings":
    from dubito.cli.settings import DataSettings

    return DataSettings(source=data, split=split)
