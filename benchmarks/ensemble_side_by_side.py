"""A five-member ensemble trained side by side against the same five trained one after another."""

from statistics import median

import dubito
from benchmarks.common import Claim, Where, fcnn2, images, report, take_turns
from dubito.nn import mlp

MEMBERS, ROWS = 5, 5_000


def run(where: Where) -> bool:
    """Never slower, for a small network and for a wide one."""
    device, steps, rounds = where.device, where.pick(50, 2), where.pick(5, 1)
    x, y = images(where.pick(ROWS, 200), device)
    values, claims = {}, []
    for label, net in {"784-32-10": mlp([784, 32, 10]), "784-400-400-10": fcnn2()}.items():

        def fit(members: int, net=net) -> None:  # type: ignore[no-untyped-def]
            dubito.fit(net, (x, y), dubito.MAP(), steps=steps, members=members, device=device, progress=False)

        seconds = take_turns({f"one after another, {label}": lambda f=fit: [f(1) for _ in range(MEMBERS)],
                              f"side by side, {label}": lambda f=fit: f(MEMBERS)}, rounds, device)  # fmt: skip
        values.update(seconds)
        apart, together = (median(s) for s in seconds.values())
        claims.append(Claim(f"{label}: side by side against one after another", apart / together, 1.0))
    return report(where, "ensemble-side-by-side", f"Ensemble of {MEMBERS}, {steps} steps", "s", values, claims)
