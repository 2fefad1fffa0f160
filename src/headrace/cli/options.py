"""Options and arguments that several commands have, with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="TOML, JSON, a Python literal, or a .py program.", show_default=False)
]
DATA_FILES_HELP = "Also patterns in quotes ('train-*.tar', '{train,dev}.hdf'), folders and URLs (s3://, https://)."
Callables = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-callables", metavar="MODULE", help="Module whose functions the config may refer to; repeatable."
    ),
]
DatasetSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override an option of the dataset.")
]
SourceClass = Annotated[
    str | None, typer.Option("--from", metavar="CLASS", help="Source class or format; default: detected.")
]
SourceSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the source.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
