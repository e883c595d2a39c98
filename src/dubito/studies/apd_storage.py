"""What a posterior costs to keep: stored samples, mixtures and generators at equal bytes.

One SGLD chain of fcNN1, 2,000 samples as in the paper's analysis; generators of last width h cost about as much as
h + 1 networks, mixtures of K diagonal Gaussians as much as 2 K.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import numpy as np

import dubito
from dubito import plots
from dubito.distill import Adversarial, Mixture, adversarial, mixture
from dubito.posteriors.base import Posterior
from dubito.posteriors.samples import SamplesPosterior
from dubito.posteriors.storage import MemorySamples
from dubito.results import Figure, Result, Table
from dubito.rng import choose
from dubito.studies import digits
from dubito.studies.base import Plan, Settings, Study, against_published
from dubito.studies.digits import Held, Quality

SAMPLES = (2, 6, 11, 21, 51, 101)
COMPONENTS = (1, 3, 5, 10, 25, 50, 60)
WIDTHS = (5, 10, 20, 50, 100)
STEPS, GENERATOR_STEPS, DRAWS = 200_000, 16_000, 100
MEASURES = {
    "accuracy": "accuracy",
    "nll": "NLL, nats a row",
    "variation": "total variation to the teacher",
    "bald_auroc": "AUROC of BALD",
}
PUBLISHED = {"60 Gaussians": 0.993, "width 20": 0.998}  # accuracy as a share of SGLD's


def run(settings: Settings) -> Result:
    """Everything at every size against the whole chain."""
    held = digits.load(settings)
    steps = 200 if settings.quick else STEPS
    chain = digits.chain("fcNN1", held, settings, steps, 5 if settings.quick else 100)
    taught = chain.predict(held.test.x, draws=200)
    found: dict[str, dict[str, Quality]] = {"chain": {"all": digits.quality(chain, held, 200)}}
    for family, name, posterior in _all(chain, held, settings):
        quality = digits.quality(posterior, held, DRAWS, taught, settings.seed)
        found.setdefault(family, {})[name] = quality
    families = {family: members for family, members in found.items() if family != "chain"}
    return Result(
        STUDY.name,
        STUDY.title,
        summary=" ".join(filter(None, (_verdict(families), held.note))),
        numbers={family: {n: asdict(q) for n, q in members.items()} for family, members in found.items()},
        tables=[_published(found), _table(found)],
        figures=[_figure(measure, families) for measure in MEASURES if _has(measure, families)],
        settings={"steps": steps, "generator steps": GENERATOR_STEPS, "draws": DRAWS},
    )


def _all(chain: Posterior, held: Held, settings: Settings) -> Iterator[tuple[str, str, Posterior]]:
    """Family, name and posterior of all that is compared; the sizes of a quick run are the first two."""
    most = 2 if settings.quick else len(COMPONENTS)
    options, games = digits.options(settings), 3 if settings.quick else GENERATOR_STEPS
    yield "single network", "SGD", _single(held, settings)
    for count in SAMPLES[:most]:
        yield "samples", f"{count} samples", _some(chain, count, settings.seed)
    for count in COMPONENTS[:most]:
        name = "1 Gaussian" if count == 1 else f"{count} Gaussians"
        yield "mixtures", name, mixture(chain, Mixture(components=count), **options)
    for width in WIDTHS[:most]:
        distiller = Adversarial(widths=(width, width, width), critic_widths=(100, 100, 100))
        yield "generators", f"width {width}", adversarial(chain, distiller, steps=games, **options)


def _some(chain: Posterior, count: int, seed: int) -> SamplesPosterior:
    if not isinstance(chain, SamplesPosterior):
        raise ValueError(f"{chain!r} holds no samples to choose from")
    theta, _ = chain.samples.get(choose(len(chain), count, seed))
    return replace(chain, samples=MemorySamples(theta.unsqueeze(1)))


def _single(held: Held, settings: Settings) -> Posterior:
    method = dubito.MAP(learning_rate=digits.RATE, optimiser="sgd", momentum=0.0)
    plan = Plan(method, digits.network("fcNN1", settings), 100 if settings.quick else STEPS, batch_size=100)
    prior = digits.paper_prior(len(held.train.y))
    return plan.fit(held.train, settings, dubito.Categorical(), prior, held.validation)


def _published(found: Mapping[str, Mapping[str, Quality]]) -> Table:
    whole = found["chain"]["all"].accuracy
    named = {name: quality for members in found.values() for name, quality in members.items()}
    rows = [
        (f"{name}, accuracy / SGLD's", old, named[name].accuracy / whole if name in named else None, "")
        for name, old in PUBLISHED.items()
    ]
    return against_published("The paper's analysis", rows)


def _table(found: Mapping[str, Mapping[str, Quality]]) -> Table:
    columns = ("family", "posterior", "bytes", "accuracy", "nll", "total variation", "AUROC entropy", "AUROC BALD")
    rows = [
        (family, name, q.bytes, q.accuracy, q.nll, q.variation, q.entropy_auroc, q.bald_auroc)
        for family, members in found.items()
        for name, q in members.items()
    ]
    note = f"Up to {DRAWS} networks drawn of each, 200 of the chain."
    return Table("Quality and bytes", columns, rows, note, {"bytes": ",d", "accuracy": ".4f"})


def _verdict(families: Mapping[str, Mapping[str, Quality]]) -> str:
    """At each size of a generator: which family is nearest to the teacher for at most as many bytes."""
    parts = []
    for name, one in families["generators"].items():
        limit = 1.02 * one.bytes  # a generator of width h is a little more than h + 1 networks
        best = {
            family: min((q.variation or 0.0 for q in members.values() if q.bytes <= limit), default=float("inf"))
            for family, members in families.items()
        }
        winner = min(best, key=lambda family: best[family])
        parts.append(f"{one.bytes / 1e6:.3g} MB ({name}): {winner} ({best[winner]:.4f})")
    return "Least total variation to the chain for at most as many bytes: " + "; ".join(parts) + "."


def _has(measure: str, families: Mapping[str, Mapping[str, Quality]]) -> bool:
    return any(getattr(q, measure) is not None for members in families.values() for q in members.values())


def _figure(measure: str, families: Mapping[str, Mapping[str, Quality]]) -> Figure:
    series = []
    for family, members in families.items():
        points = [(q.bytes, getattr(q, measure)) for q in members.values() if getattr(q, measure) is not None]
        if points:
            x, y = zip(*sorted(points), strict=True)
            single = len(points) == 1
            series.append(plots.Series(family, np.array(y), np.array(x), style="points" if single else "line"))
    label = MEASURES[measure]
    return plots.lines(measure, f"{label} over bytes", series, x_label="bytes", y_label=label, log_x=True)


STUDY = Study(
    "apd-storage",
    "Samples, mixtures and generators at equal bytes",
    "Wang et al. (ICML 2018, arXiv 1806.10317): 60 Gaussians (9.54 M numbers) reach 99.3 % of SGLD's accuracy, a "
    "generator of width 20 (1.67 M) 99.8 %.",
    "which representation of a posterior is best at which size",
    run,
)
