"""`headrace cache`: what the file cache holds, and cleaning it. Safe while training runs.

What is found and done is plain data that knows nothing of terminals (`describe_entries`, `clean_folder`); the commands
below it print that.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import CacheError
from headrace.files.cache.entry import EntryRecord
from headrace.files.cache.folder import DAY_SECONDS, CacheFolder, EntryState
from headrace.files.cache.options import FileCacheOptions, parse_bytes
from headrace.files.locations import shown_url
from headrace.show.drawing import format_bytes, format_count, format_seconds

from .console import bold, open_output, print_json
from .options import AsJson


@dataclass(frozen=True)
class CacheRequest:
    """What to remove, beyond copies that are old.

    Attributes:
        everything: All copies that are not in use.
        older_than_days: Copies not used for this long.
        max_bytes: Remove until the copies take at most this.
        free_bytes: Remove until this much is free on the disk.
    """

    everything: bool
    older_than_days: float
    max_bytes: float
    free_bytes: int

    def asks_for(self, state: EntryState, now: float) -> bool:
        """Whether a copy is to be removed regardless of the sizes."""
        return self.everything or now - state.last_use > self.older_than_days * DAY_SECONDS

    def check(self, folder: CacheFolder) -> None:
        """Check that the sizes were reached.

        Raises:
            CacheError: They were not: too much is in use.
        """
        used, free = folder.used_bytes(), folder.disk_space()[0]
        if used > self.max_bytes:
            what = f"the copies take {format_bytes(used)}, and at most {format_bytes(self.max_bytes)} was asked for"
        elif free < self.free_bytes:
            what = f"the disk has {format_bytes(free)} free, and {format_bytes(self.free_bytes)} was asked for"
        else:
            return
        fix = "headrace cache ls shows who uses the rest"
        raise CacheError(f"{what}: nothing more can be removed", where=folder.root, fix=fix)


@dataclass
class Cleaned:
    """What a cleanup removed, or would remove.

    Attributes:
        removed: Sources, as they may be printed; the key where there is no record.
        bytes_removed: Their bytes.
        num_in_use: Files that were kept only because they are in use.
        bytes_in_use: Their bytes.
    """

    removed: list[str] = field(default_factory=list)
    bytes_removed: int = 0
    num_in_use: int = 0
    bytes_in_use: int = 0


def describe_entries(folder: CacheFolder) -> list[dict[str, Any]]:
    """Return a description of each file as plain JSON data, last used first."""
    described = [_describe(folder, state) for state in folder.survey() if state.num_bytes or state.is_whole]
    return sorted(described, key=lambda entry: -float(entry["last_use"]))


def clean_folder(folder: CacheFolder, options: FileCacheOptions, request: CacheRequest, *, dry_run: bool) -> Cleaned:
    """Remove old and requested copies, those used longest ago first; those in use stay."""
    now, cleaned, used = time.time(), Cleaned(), folder.used_bytes()
    free, total = folder.disk_space()
    for state in folder.survey():
        is_short = used > request.max_bytes or free < request.free_bytes
        wants_room = free < options.cleanup_disk_usage_wanted_free_ratio * total
        if not (is_short or state.is_due(options, now, wants_room=wants_room) or request.asks_for(state, now)):
            continue
        source = _shown(state, folder.read_record(state.key))
        is_gone = folder.find_users(state.key) is None if dry_run else folder.try_remove(state)
        if not (state.num_bytes or state.is_whole):
            continue  # only a lock
        if is_gone:
            cleaned.removed.append(source)
            cleaned.bytes_removed += state.num_bytes
            used, free = used - state.num_bytes, free + state.num_bytes
        else:
            cleaned.num_in_use += 1
            cleaned.bytes_in_use += state.num_bytes
    return cleaned


def _describe(folder: CacheFolder, state: EntryState) -> dict[str, Any]:
    record = folder.read_record(state.key)
    described: dict[str, Any] = {
        "key": state.key.text,
        "source": None,
        "bytes": state.num_bytes,
        "last_use": state.last_use,
        "is_whole": record is not None,
        "used_by": folder.find_users(state.key),
    }
    if record is not None:
        described.update(
            source=_shown(state, record),
            path=_printable(folder.data_path(state.key, record.source)),
            version=_printable(record.version),
            copied_at=record.copied_at,
        )
    return described


def _shown(state: EntryState, record: EntryRecord | None) -> str:
    """Return the source of a copy in printable form: without secrets of a URL, non-text bytes escaped."""
    return _printable(state.key.text if record is None else shown_url(record.source))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


_Folder = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the cache. Default: from HEADRACE_FILE_CACHE_OPTS, else the user's.", show_default=False
    ),
]

cache = typer.Typer(
    name="cache",
    help="List the file cache, clean it. Safe while training runs.",
    no_args_is_help=True,
)


@cache.command()
def ls(
    cache_directory: _Folder = None,
    as_json: AsJson = False,
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
    everything: Annotated[bool, typer.Option("--all", help="Remove every copy that is not in use.")] = False,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Remove copies not used for this many days.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help='Remove until the copies take at most this, e.g. "500 GB".')
    ] = None,
    free: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove until this much is free on the disk.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    cache_directory: _Folder = None,
    as_json: AsJson = False,
) -> None:
    """Remove old copies and leftovers of dead processes, and more on request. Copies in use stay.

    What was used longest ago goes first. A file that a running process will read soon counts as used.
    """
    options = _options(cache_directory)
    folder = _open(options)
    request = CacheRequest(
        everything=everything,
        older_than_days=math.inf if older_than is None else older_than,
        max_bytes=math.inf if max_bytes is None else parse_bytes(max_bytes, "--max-bytes"),
        free_bytes=0 if free is None else parse_bytes(free, "--free"),
    )
    cleaned = Cleaned() if folder is None else clean_folder(folder, options, request, dry_run=dry_run)
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
        request.check(folder)


def _options(cache_directory: Path | None) -> FileCacheOptions:
    given = {} if cache_directory is None else {"cache_directory": str(cache_directory)}
    return FileCacheOptions.of({**FileCacheOptions.gather().to_arguments(), **given}, "the command line")


def _open(options: FileCacheOptions) -> CacheFolder | None:
    """Return the folder, or None if it is not a cache: listing must not create one."""
    if not os.path.isfile(os.path.join(options.folder, "room.lock")):
        return None
    return CacheFolder(options)


def _totals(options: FileCacheOptions, folder: CacheFolder | None) -> dict[str, Any]:
    if folder is None:
        return {"folder": options.folder, "exists": False, "bytes": 0, "max_bytes": options.quota}
    free, total = folder.disk_space()
    return {
        "folder": folder.root,
        "exists": True,
        "bytes": folder.used_bytes(),
        "max_bytes": options.quota,
        "disk_free": free,
        "disk_total": total,
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
