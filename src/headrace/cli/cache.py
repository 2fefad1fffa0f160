"""`headrace cache`: what the file cache holds, and taking care of it. Safe while training runs."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import CacheError
from headrace.files.cache_folder import CacheFolder
from headrace.files.cache_options import FileCacheOptions, parse_bytes
from headrace.files.cache_room import CacheRoom

from .cache_work import Cleaned, Wish, clean_folder, describe_entries, verify_entries
from .console import bold, open_messages, open_output, print_json
from .drawing import format_bytes, format_count, format_seconds

_FOLDER = typer.Option(
    help="The folder of the cache. Default: HEADRACE_FILE_CACHE_OPTS, else the one of this user.", show_default=False
)
_JSON = typer.Option("--json", help="Print one JSON object on stdout, nothing else.")

cache = typer.Typer(
    name="cache",
    help="Look at the file cache, clean it up, verify its copies. Safe while training runs.",
    no_args_is_help=True,
)


@cache.command()
def ls(
    cache_directory: Annotated[Path | None, _FOLDER] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """List the copies, last used first: size, last use, source, and who uses them."""
    options = _options(cache_directory)
    folder = _open(options)
    entries = [] if folder is None else describe_entries(folder)
    if as_json:
        print_json({**_totals(options, folder), "entries": entries})
        return
    screen, now = open_output(), time.time()
    _print_totals(options, folder)
    for entry in entries:
        age = format_seconds(max(0.0, now - entry["last_use"]))
        source = entry["source"] or f"{entry['key']} (no whole copy)"
        screen.print(f"{format_bytes(entry['bytes']):>10}  {age:>11} ago  {source}{_use_text(entry)}")


@cache.command()
def clean(
    everything: Annotated[bool, typer.Option("--all", help="Remove all that nobody uses at the moment.")] = False,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove what was not used for so long.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help='Remove until the copies have no more, such as "500 GB".')
    ] = None,
    free: Annotated[str | None, typer.Option(metavar="SIZE", help="Remove until so much is free on the disk.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    cache_directory: Annotated[Path | None, _FOLDER] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Remove what is old and what dead processes left; more, if it is asked for. What is in use stays.

    First goes what no running process has planned to read, longest unused first; then what is needed last.
    """
    options = _options(cache_directory)
    folder = _open(options)
    wish = Wish(
        everything=everything,
        older_than_days=math.inf if older_than is None else older_than,
        max_bytes=math.inf if max_bytes is None else parse_bytes(max_bytes, "--max-bytes"),
        free_bytes=0 if free is None else parse_bytes(free, "--free"),
    )
    cleaned = Cleaned() if folder is None else clean_folder(folder, options, wish, dry_run=dry_run)
    if as_json:
        num_removed = len(cleaned.removed)
        print_json({**_totals(options, folder), "dry_run": dry_run, "num_removed": num_removed, **vars(cleaned)})
    else:
        screen = open_output()
        for source in cleaned.removed:
            screen.print(f"  {source}")
        verb = "would be removed" if dry_run else "removed"
        screen.print(bold(f"{format_count(len(cleaned.removed))} files {verb}, {format_bytes(cleaned.bytes_removed)}"))
        if cleaned.num_in_use:
            stay = f"{format_count(cleaned.num_in_use)} files stay, {format_bytes(cleaned.bytes_in_use)}"
            screen.print(f"  {stay}: they are in use")
        _print_totals(options, folder)
    if folder is not None and not dry_run:
        wish.check(folder)


@cache.command()
def verify(
    source: Annotated[bool, typer.Option("--source", help="Also ask each source whether it has changed.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is damaged or no whole copy.")] = False,
    cache_directory: Annotated[Path | None, _FOLDER] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Check each copy: size, time, and the checksum if one was recorded (`fetch={"checksum": "xxh3"}`)."""
    options = _options(cache_directory)
    folder = _open(options)
    with _teller() as tell:
        verdicts = [] if folder is None else list(verify_entries(folder, ask_source=source, tell=tell))
    damaged = [verdict for verdict in verdicts if verdict.is_damaged]
    num_removed = 0
    if remove and folder is not None:
        room = CacheRoom(folder, options)
        num_removed = sum(room.remove(verdict.state) for verdict in damaged)
    if as_json:
        files = [{"file": verdict.source, "verdict": verdict.text} for verdict in verdicts]
        counts = {"num_damaged": len(damaged), "num_removed": num_removed}
        print_json({**_totals(options, folder), **counts, "files": files})
    else:
        screen = open_output()
        for verdict in verdicts:
            if verdict.is_worth_a_line:
                screen.print(f"  {verdict.text}: {verdict.source}")
        for text, count in sorted(Counter(verdict.text for verdict in verdicts).items()):
            screen.print(bold(f"{format_count(count)} files"), text)
        if num_removed:
            screen.print(f"{format_count(num_removed)} files removed")
        _print_totals(options, folder)
    if len(damaged) > num_removed:
        fix = "they are in use: see headrace cache ls" if remove else "headrace cache verify --remove"
        raise CacheError(f"{len(damaged) - num_removed} copies are damaged", where=options.folder, fix=fix)


def _options(cache_directory: Path | None) -> FileCacheOptions:
    given = {} if cache_directory is None else {"cache_directory": str(cache_directory)}
    return FileCacheOptions.of({**FileCacheOptions.gather().to_arguments(), **given}, "the command line")


def _open(options: FileCacheOptions) -> CacheFolder | None:
    """Return the folder, or None if it is none of a cache: looking at one must not make one."""
    if not os.path.isfile(os.path.join(options.folder, "room.lock")):
        return None
    return CacheFolder(options.folder, trusted=options.trusted_folder)


def _totals(options: FileCacheOptions, folder: CacheFolder | None) -> dict[str, Any]:
    if folder is None:
        return {"folder": options.folder, "exists": False, "bytes": 0, "max_bytes": options.quota}
    numbers = CacheRoom(folder, options).numbers()
    return {
        "folder": folder.root,
        "exists": True,
        "bytes": numbers.used_bytes,
        "max_bytes": options.quota,
        "disk_free": numbers.disk.free,
        "disk_total": numbers.disk.total,
    }


def _print_totals(options: FileCacheOptions, folder: CacheFolder | None) -> None:
    totals, screen = _totals(options, folder), open_output()
    if folder is None:
        screen.print(f"{totals['folder']}: there is no file cache here yet")
        return
    quota = "" if options.quota is None else f" of {format_bytes(options.quota)}"
    disk = f"the disk has {format_bytes(totals['disk_free'])} free of {format_bytes(totals['disk_total'])}"
    screen.print(bold(str(totals["folder"])), f"{format_bytes(totals['bytes'])}{quota}; {disk}")


def _use_text(entry: dict[str, Any]) -> str:
    if entry["used_by"]:
        return f"  ({'in use' if entry['is_whole'] else 'being made'} by {entry['used_by']})"
    return "" if entry["is_whole"] else "  (left by a process that is gone)"


@contextmanager
def _teller() -> Iterator[Callable[[str], None]]:
    """Yield a function that tells on a terminal what is being done, and elsewhere nothing."""
    messages = open_messages()
    if not messages.is_terminal:
        yield lambda _text: None
        return
    with messages.status("") as status:
        yield status.update
