"""`python -m dubito.demo [FOLDER]` runs the demo; with `--picture FILE` only the picture of the README is made."""

import argparse
import sys
from pathlib import Path

from dubito.demo import draw_picture, run


def main(arguments: list[str]) -> None:
    """Read the command line and obey."""
    parser = argparse.ArgumentParser(prog="python -m dubito.demo", description=run.__doc__)
    parser.add_argument("folder", nargs="?", default="demo", help="where the report goes")
    parser.add_argument("--quick", action="store_true", help="runs of a few steps, whose numbers mean nothing")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the doubt of each method on a map as PNG")
    given = parser.parse_args(arguments)
    if given.picture is None:
        run(given.folder, given.quick)
    else:
        draw_picture(given.picture, given.quick)


if __name__ == "__main__":
    main(sys.argv[1:])
