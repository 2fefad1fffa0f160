"""Options of the file cache: arguments, config, environment."""

from __future__ import annotations

import getpass
import json
import math
import tempfile

import pytest

from headrace.errors import ConfigError
from headrace.files.cache.options import FileCacheOptions, expand_folder, parse_bytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_directory", "/a\0b"),
        ("cleanup_files_always_older_than_days", -1),
        ("cleanup_disk_usage_wanted_free_ratio", math.nan),
        ("cleanup_disk_usage_wanted_multiplier", 0.5),
        ("num_tries", 0),
        ("num_tries", True),
        ("max_bytes", "much"),
        ("max_bytes", "1 XB"),
        ("wait_seconds", -1),
        ("fetch", 3),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_when_built(name, value):
    with pytest.raises(ConfigError, match=name):
        FileCacheOptions(**{name: value})


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [(0, 0), ("5", 5), ("500 GB", 500 * 10**9), ("1.5k", 1500), ("2 MiB", 2 << 20), ("3tb", 3 * 10**12), ("7 B", 7)],
)
def test_sizes_are_numbers_or_texts_with_units(value, num_bytes):
    assert parse_bytes(value, "x") == FileCacheOptions(max_bytes=value).quota == num_bytes


def test_variables_of_the_folder_are_replaced_and_two_have_fall_backs(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/fast")
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("HOME", "/home/ann")
    assert expand_folder("$TMPDIR/$USER/x") == "/fast/ann/x"
    assert expand_folder("${TMPDIR}x") == "/fastx"
    assert expand_folder("~/x") == "/home/ann/x"
    monkeypatch.delenv("TMPDIR")
    monkeypatch.delenv("USER")
    monkeypatch.setattr(tempfile, "tempdir", None)
    user = getpass.getuser()
    assert FileCacheOptions().folder == f"{tempfile.gettempdir()}/{user}/headrace/file_cache"


@pytest.mark.parametrize("value", [None, ""])
def test_another_variable_that_is_not_set_is_refused(monkeypatch, value):
    monkeypatch.delenv("SCRATCH", raising=False)
    if value is not None:
        monkeypatch.setenv("SCRATCH", value)
    with pytest.raises(ConfigError, match=r"SCRATCH is not set(.|\n)*\$SCRATCH/x"):
        expand_folder("$SCRATCH/x")


def test_the_environment_goes_over_the_config_and_both_over_the_defaults(monkeypatch, tmp_path):
    config = {"file_cache_opts": {"cache_directory": str(tmp_path), "max_bytes": 5, "fetch": {"num_tries": 2}}}
    monkeypatch.delenv("HEADRACE_FILE_CACHE_OPTS", raising=False)
    assert FileCacheOptions.gather().quota is None
    assert FileCacheOptions.gather({"file_cache_opts": None}) == FileCacheOptions()
    assert FileCacheOptions.gather(config).quota == 5
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"max_bytes": "7 kB"}))
    options = FileCacheOptions.gather(config)
    assert (options.quota, options.cache_directory, options.fetch_options.num_tries) == (7000, str(tmp_path), 2)


@pytest.mark.parametrize(
    ("environment", "config", "message"),
    [
        ("{", {}, "not JSON"),
        ("[1]", {}, "a JSON object"),
        ('{"max_byte": 1}', {}, "did you mean 'max_bytes'"),
        ("", {"max_byte": 1}, "did you mean 'max_bytes'"),
        ("", {"fetch": {"num_try": 1}}, "did you mean 'num_tries'"),
        ("", [1], "file_cache_opts"),
    ],
)
def test_wrong_options_are_refused_with_where_they_stand(monkeypatch, environment, config, message):
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", environment)
    with pytest.raises(ConfigError, match=message):
        FileCacheOptions.gather({"file_cache_opts": config})
