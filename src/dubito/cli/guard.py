"""Errors as people should see them: one line on standard error and an exit status, a traceback only with --debug."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

USER_ERROR, STOPPED = 2, 130
_EXPECTED = (ValueError, OSError, ArithmeticError, ImportError, RuntimeError)  # torch complains by RuntimeError


class Guard(TyperGroup):
    """The group of all commands; whatever one of them raises ends here."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with one_line(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command; none at all asks for help."""
        if not args:
            return super().parse_args(ctx, args)
        with one_line(debug=False):
            return super().parse_args(ctx, args)


@contextmanager
def one_line(debug: bool) -> Iterator[None]:
    """Turn what a user can cause into one sentence; what only a bug can cause keeps its traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt as stop:
        _say(str(stop) or "stopped by the user")
        raise typer.Exit(STOPPED) from stop
    except Exception as error:
        wrong_usage = hasattr(error, "format_message")
        if not wrong_usage and (debug or not isinstance(error, _EXPECTED)):
            raise
        _say(_usage(error) if wrong_usage else _sentence(error))
        raise typer.Exit(USER_ERROR) from error


@contextmanager
def begun_again(kept: Path | None = None) -> Iterator[None]:
    """Work whose own words on Ctrl-C are for Python: here the same command goes on or begins again."""
    try:
        yield
    except KeyboardInterrupt as stop:
        further = f", which goes on from what is kept in {kept}" if kept is not None and kept.is_dir() else ""
        raise KeyboardInterrupt(f"stopped by the user; run the same command again{further}") from stop


def _say(text: str) -> None:
    print("dubito: " + " ".join(text.split()), file=sys.stderr)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = "dubito" if context is None else context.command_path
    return f"{error.format_message()} (see {command} --help)"


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if isinstance(error, RuntimeError) else " ".join(lines)
