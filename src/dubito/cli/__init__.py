"""The command line: every command in `app`, their work in the files beside it."""

from dubito.cli.app import app


def main() -> None:
    """The console script `dubito`."""
    app(prog_name="dubito")
