"""Run the benchmarks: `python -m benchmarks [NAME ...] [--device cuda] [--out FOLDER] [--peers FOLDER]`."""

import argparse
import importlib
import sys
from pathlib import Path

NAMES = (
    "sgld_steps",
    "predict_draws",
    "ensemble_side_by_side",
    "stored_chain",
    "estimator_gap",
    "variational_steps",
    "ood_evaluation",
)


def main() -> int:
    """Run all or some; the exit status says whether every claim held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=[], help="all when left out")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/measured"))
    parser.add_argument("--peers", type=Path, help="a folder of unpacked wheels to compare with")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(str(options.peers))
    held = [
        importlib.import_module(f"benchmarks.{name}").run(options.device, options.out)
        for name in options.names or NAMES
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
