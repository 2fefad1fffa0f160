"""The options of a file cache: by arguments, by config, by environment.

All are checked when built. The names and the defaults of the clean-up are RETURNN's; the default folder is not, because
the files in it differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pwd
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from string import Template
from typing import Any

from headrace.errors import ConfigError, did_you_mean

from ..fetch import FetchOptions, check_number

DEFAULT_FOLDER = "$TMPDIR/$USER/headrace/file_cache"
CONFIG_KEY = "file_cache_opts"
ENVIRONMENT_KEY = "HEADRACE_FILE_CACHE_OPTS"

_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp])?(i)?b?)?\s*", re.IGNORECASE)
_NUM_ZEROS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCacheOptions:
    """How a file cache behaves.

    Attributes:
        cache_directory: The folder. `$NAME`, `${NAME}` and `~` are replaced; `$TMPDIR` and `$USER` are known also where
            they are not set.
        cleanup_files_always_older_than_days: A copy that was not used for this long is removed in any case.
        cleanup_files_wanted_older_than_days: A copy that was not used for this long is removed if less is free on the
            disk than it should be.
        cleanup_disk_usage_wanted_free_ratio: The part of the disk that should be free.
        cleanup_disk_usage_wanted_multiplier: How many times the size of a new file should be free, at least 1. Prefetch
            fetches only what leaves this much free.
        num_tries: How often a copy is tried if the disk gets full during it; room is made before each try.
        max_bytes: The most bytes that the copies in the folder may take, unfinished ones included; None: the disk is
            the limit. A number, or a text such as `"500 GB"`. If processes that share a folder disagree, each applies
            its own.
        wait_seconds: How long to wait for another process that makes a copy, without a sign of life from it. Arriving
            bytes are a sign of life.
        fetch: How files are fetched: `FetchOptions`, or a dict of them.

    Raises:
        ConfigError: A value is out of its range, or of the wrong type.

    Examples:
        >>> import headrace as hr
        >>> from headrace.files import FileCacheOptions
        >>> options = FileCacheOptions(cache_directory="/tmp/headrace", max_bytes="500 GB")
    """

    cache_directory: str | os.PathLike[str] = DEFAULT_FOLDER
    cleanup_files_always_older_than_days: float = 31.0
    cleanup_files_wanted_older_than_days: float = 1.0
    cleanup_disk_usage_wanted_free_ratio: float = 0.2
    cleanup_disk_usage_wanted_multiplier: float = 2.0
    num_tries: int = 3
    max_bytes: int | str | None = None
    wait_seconds: float = 600.0
    fetch: FetchOptions | Mapping[str, Any] = field(default_factory=FetchOptions)

    def __post_init__(self) -> None:
        """Check and normalize each value."""
        if isinstance(self.cache_directory, os.PathLike):
            object.__setattr__(self, "cache_directory", os.fspath(self.cache_directory))
        if not isinstance(self.cache_directory, str) or not self.cache_directory or "\0" in self.cache_directory:
            raise _wrong("cache_directory", self.cache_directory, "a path")
        for name, kind, least, most in (
            ("cleanup_files_always_older_than_days", float, 0, math.inf),
            ("cleanup_files_wanted_older_than_days", float, 0, math.inf),
            ("cleanup_disk_usage_wanted_free_ratio", float, 0, 1),
            ("cleanup_disk_usage_wanted_multiplier", float, 1, math.inf),
            ("num_tries", int, 1, math.inf),
            ("wait_seconds", float, 0, math.inf),
        ):
            check_number("FileCache", name, getattr(self, name), kind, least, most)
        if self.max_bytes is not None:
            object.__setattr__(self, "max_bytes", parse_bytes(self.max_bytes, "max_bytes"))
        if isinstance(self.fetch, Mapping):
            object.__setattr__(self, "fetch", _from_mapping(FetchOptions, self.fetch, "the options of `fetch`"))
        if not isinstance(self.fetch, FetchOptions):
            raise _wrong("fetch", self.fetch, "FetchOptions, or a dict of them")

    @property
    def quota(self) -> int | None:
        """`max_bytes` as a number."""
        return None if self.max_bytes is None else int(self.max_bytes)

    @property
    def fetch_options(self) -> FetchOptions:
        """`fetch` as an object."""
        assert isinstance(self.fetch, FetchOptions)
        return self.fetch

    @property
    def folder(self) -> str:
        """`cache_directory` with all variables replaced, absolute.

        Raises:
            ConfigError: A variable is not set.
        """
        return expand_folder(str(self.cache_directory))

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> FileCacheOptions:
        """Build options from a mapping.

        Args:
            values: Name -> value.
            where: Name of the mapping in errors.

        Raises:
            ConfigError: An unknown name, or a wrong value.
        """
        options: FileCacheOptions = _from_mapping(cls, values, where)
        return options

    @classmethod
    def gather(cls, config: Mapping[str, Any] | None = None) -> FileCacheOptions:
        """Return the options of this process: those of the environment override those of a config.

        Args:
            config: May have a dict under `file_cache_opts`.

        Raises:
            ConfigError: An unknown name, a wrong value, or an environment variable that is not a JSON object.
        """
        options = (config or {}).get(CONFIG_KEY) or {}
        if not isinstance(options, Mapping):
            raise _wrong(CONFIG_KEY, options, "a dict")
        text = os.environ.get(ENVIRONMENT_KEY)
        if not text:
            return cls.of(options, CONFIG_KEY)
        try:
            over = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = f"the environment variable is not JSON: {error}"
            raise ConfigError(what, where=ENVIRONMENT_KEY, fix='write {"max_bytes": "500 GB"}') from error
        if not isinstance(over, dict):
            raise _wrong(ENVIRONMENT_KEY, over, "a JSON object")
        return cls.of({**options, **over}, f"{ENVIRONMENT_KEY} and {CONFIG_KEY}" if options else ENVIRONMENT_KEY)

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments that build the same options, for pickling."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


def parse_bytes(value: int | str, where: str) -> int:
    """Return a number of bytes; `"10 GB"` has decimal units, `"10 GiB"` binary ones.

    >>> parse_bytes("1.5 GB", ""), parse_bytes("2 MiB", ""), parse_bytes(7, "")
    (1500000000, 2097152, 7)

    Raises:
        ConfigError: It is neither, or negative.
    """
    if isinstance(value, str):
        match = _BYTES.fullmatch(value)
        if match is not None:
            zeros = _NUM_ZEROS[(match[2] or "").lower()]
            return int(float(match[1]) * (1024 if match[3] else 1000) ** zeros)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    expected = 'a number of bytes, such as 500_000_000_000 or "500 GB"'
    if where.startswith("--"):
        raise ConfigError(f"{where} is {value!r}: it must be a number of bytes", fix="for example 500GB or 1GiB")
    raise _wrong(where, value, expected)


def expand_folder(text: str) -> str:
    """Return a path with `$NAME`, `${NAME}` and a leading `~` replaced, absolute.

    `$TMPDIR` is the system's folder for temporary files and `$USER` the user's name also where they are not set.

    Raises:
        ConfigError: Another variable is not set, or is empty.
    """
    known = {"TMPDIR": tempfile.gettempdir(), "USER": _user_name()} | {
        key: text for key, text in os.environ.items() if text
    }
    try:
        return os.path.abspath(os.path.expanduser(Template(text).substitute(known)))
    except (KeyError, ValueError) as error:
        what = f"the environment variable {error.args[0]} is not set"
        fix = "set it, or choose another cache_directory"
        raise ConfigError(what, where=f"cache_directory={text!r}", fix=fix) from error


def _user_name() -> str:
    with contextlib.suppress(KeyError):  # no such user: a container that was given only a number
        return pwd.getpwuid(os.getuid()).pw_name
    return f"user-{os.getuid()}"


def _from_mapping(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    names = [option.name for option in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            raise ConfigError(f"there is no option {name!r}", where=where, fix=did_you_mean(str(name), names))
    return cls(**values)


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}: it must be {expected}", where="FileCache")
