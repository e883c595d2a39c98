"""Run the benchmarks: `python -m benchmarks [NAME ...] [--device cuda] [--out FOLDER] [--peers FOLDER] [--quick]`.

Each device has claims of its own, in `benchmarks/` for the CPU and in `benchmarks/gpu/` for a GPU.
"""

import argparse
import gc
import importlib
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.common import Claim, Where, explained, path_of, write

NAMES = {
    "cpu": {
        "sgld_steps": "benchmarks.sgld_steps",
        "predict_draws": "benchmarks.predict_draws",
        "ensemble_side_by_side": "benchmarks.ensemble_side_by_side",
        "stored_chain": "benchmarks.stored_chain",
        "distilled_chain": "benchmarks.distilled_chain",
        "estimator_gap": "benchmarks.estimator_gap",
        "variational_steps": "benchmarks.variational_steps",
        "ood_evaluation": "benchmarks.ood_evaluation",
        "growth": "benchmarks.growth",
    },
    "cuda": {
        "predict_draws": "benchmarks.gpu.predict_draws",
        "sgld_steps": "benchmarks.gpu.sgld_steps",
        "variational_steps": "benchmarks.gpu.variational_steps",
        "ensemble": "benchmarks.gpu.ensemble",
        "distillation": "benchmarks.gpu.distillation",
        "sparse_vd": "benchmarks.gpu.sparse_vd",
        "growth": "benchmarks.growth",
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Run all or some; the exit status says whether every claim held."""
    options = _parser().parse_args(arguments)
    if options.peers:
        sys.path.append(str(options.peers))
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here; use --device cpu")
        return 2
    modules = NAMES[options.device]
    if strange := set(options.names) - set(modules):
        print(f"no benchmark {', '.join(sorted(strange))} for {options.device}; there are {', '.join(modules)}")
        return 2
    folder = options.out / "quick" if options.quick else options.out  # quick results never overwrite full ones
    where = Where(options.device, folder, options.quick)
    chosen = options.names or list(modules)
    held = [_tried(name, modules[name], where) for name in chosen]
    _summarise(chosen, where)
    return 0 if all(held) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="all of the device's when left out")
    parser.add_argument("--device", default="cpu", choices=list(NAMES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/measured"))
    parser.add_argument("--peers", type=Path, help="a folder of unpacked wheels to compare with")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which try the code and measure nothing")
    return parser


def _tried(name: str, module: str, where: Where) -> bool:
    """Whether a benchmark's claims hold; one that breaks off is reported and the others go on."""
    print(f"\n{name} on {where.device}", flush=True)
    start = time.perf_counter()
    try:
        held = bool(importlib.import_module(module).run(where))
    except Exception as error:
        print(f"  {name} broke off: {explained(error)}", flush=True)
        write(where, name, {"title": name, "broke off": explained(error)})
        held = False
    if where.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    print(f"  {name} took {time.perf_counter() - start:.0f} s", flush=True)
    return held


def _summarise(names: list[str], where: Where) -> None:
    """Every claim with a limit, once more, at the end."""
    print(f"\nClaims on {where.device}")
    for name in names:
        record = json.loads(path_of(where, name).read_text())
        if "broke off" in record:
            print(f"  {name} broke off: {record['broke off']}")
        for claim in (Claim(c["what"], c["measured"], c["least"], c["most"]) for c in record.get("claims", ())):
            if claim.limited:
                print(f"  {name}: {claim}")


if __name__ == "__main__":
    raise SystemExit(main())
