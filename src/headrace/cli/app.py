"""The command `headrace`: its sub-commands, and how an error becomes a paragraph and an exit code.

Exit codes: 0 all is well; 1 the run failed (data, files, user code); 2 the command line or a config is wrong;
130 Ctrl-C; 141 the reader of the output closed it, as for a program that SIGPIPE ended.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from headrace.errors import ConfigError, HeadraceError, NotCarriedOverError
from headrace.version import __version__

from .cache import cache
from .console import ReaderGoneError, open_messages, open_output
from .convert.command import convert
from .index import index
from .inspect import inspect
from .plan.command import plan
from .run import run

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141
_DEBUG = "--debug"
_TRACEBACK_OF_WORKER = "\nThe worker's traceback:\n"  # what follows it in a note is for --debug
_FRAME_IN_TEXT = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


class _ErrorBoundary(TyperGroup):
    """Runs a sub-command and reports an error as one paragraph on stderr; usage errors are left to typer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug anywhere: a user adds it to the end of the command that failed."""
        if _DEBUG in args:
            args = [_DEBUG, *(arg for arg in args if arg != _DEBUG)]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command.

        Raises:
            typer.Exit: It failed; the error has been printed.
        """
        debug, messages = bool(ctx.params.get("debug")), open_messages()
        try:
            with warnings.catch_warnings():
                if not debug:
                    warnings.showwarning = lambda message, *_args, **_kwargs: messages.print(f"warning: {message}")
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            messages.print(" ".join(["interrupted", *getattr(error, "__notes__", [])]))
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except ReaderGoneError:
            # What is still buffered has no reader; without this the interpreter would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except (HeadraceError, OSError) as error:
            _tell(messages, _describe(error), error, debug=debug)
            raise typer.Exit(
                EXIT_USAGE if isinstance(error, ConfigError | NotCarriedOverError) else EXIT_FAILED
            ) from None
        except Exception as error:
            if _is_usage_error(error):
                raise
            _tell(messages, _describe_unexpected(error), error, debug=debug)
            raise typer.Exit(EXIT_FAILED) from None


class _Command(TyperCommand):
    """A sub-command that says which of its arguments is missing: the first one that nothing was written for.

    Where any number of files comes before another argument, typer gives what was written to the last, and misses the
    files.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line.

        Raises:
            ConfigError: An argument is missing.
        """
        written = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            wanted = [param for param in self.params if param.param_type_name == "argument"]
            if type(error).__name__ != "MissingParameter" or getattr(error, "param", None) not in wanted:
                raise
        values, _, _ = self.make_parser(ctx).parse_args(args=written)
        found = [values.get(str(param.name)) for param in wanted]
        given = [name for value in found if value for name in ([value] if isinstance(value, str) else value)]
        names = [str(param.metavar or param.name).upper() for param in wanted]
        missing = names[min(len(given), len(names) - 1)]
        raise ConfigError(
            f"{missing} is missing" + (f": there is only {' '.join(given)}" if given else ""),
            where=ctx.command_path,
            fix=f"write {' '.join([ctx.command_path, *given, *names[len(given) :]])}; --help says what they are",
        )


def _tell(messages: Console, text: str, error: BaseException, *, debug: bool) -> None:
    if debug:
        messages.print("".join(traceback.format_exception(error)), end="")
    messages.print(f"error: {text}")


def _describe(error: HeadraceError | OSError) -> str:
    return "\n".join([str(error), *_notes_of(error)])


def _describe_unexpected(error: Exception) -> str:
    lines = [f"unexpected {type(error).__name__}: {error}", *_notes_of(error)]
    frames = traceback.extract_tb(error.__traceback__)
    in_worker = _FRAME_IN_TEXT.findall("\n".join(getattr(error, "__notes__", [])))
    if in_worker:  # Headrace's own frames only show that a worker's error was passed on
        lines.append("  where: {}, line {}, in {}".format(*in_worker[-1]))
    elif frames:
        lines.append(f"  where: {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}")
    lines.append("  fix: if that is not your own code, please report it; --debug shows the traceback")
    return "\n".join(lines)


def _notes_of(error: BaseException) -> list[str]:
    """Return the notes of an error, without the traceback that a worker put into one of them."""
    return [f"  {note.partition(_TRACEBACK_OF_WORKER)[0]}" for note in getattr(error, "__notes__", [])]


def _is_usage_error(error: Exception) -> bool:
    """Whether typer itself raised it, to print or to exit by its own rules (all of its errors know their exit code)."""
    return hasattr(error, "exit_code")


app = typer.Typer(
    cls=_ErrorBoundary,
    name="headrace",
    help="Brings sequence data to a training run: deterministic, resumable, fast.",
    epilog="Exit codes: 0 all is well, 1 the run failed, 2 the command line or a config is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(is_given: bool) -> None:
    if is_given:
        open_output().print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error. Allowed anywhere.")] = False,
) -> None:
    """Options of every command; read by the error boundary."""


for _command in (run, inspect, plan, index, convert):
    app.command(cls=_Command)(_command)
app.add_typer(cache)


def main() -> None:
    """Run the command line with the arguments of this process, then exit."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that knows no Unicode shows "?", not a crash
    app(prog_name="headrace")
