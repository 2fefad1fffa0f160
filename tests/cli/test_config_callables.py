"""Configs that are data may not choose what is run: only modules that the user allowed, or that lie beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.cli.configs import load_job
from headrace.errors import ConfigError
from headrace.sources.naming import NAMING_OPTIONS, check_callables, resolve_named

STATIC = {"class": "StaticDataset", "data": [{"data": [1]}]}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `canary_module` that is installed somewhere, and leaves a mark when it is imported or called."""
    folder = tmp_path / "site"
    folder.mkdir()
    mark = tmp_path / "mark"
    (folder / "canary_module.py").write_text(
        f"from pathlib import Path\nimport os\nPath({str(mark)!r}).touch()\n"
        "def call(*args, **options):\n    return {}\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield mark
    sys.modules.pop("canary_module", None)


def nested(option: str, name: str, path: list[str]) -> dict[str, Any]:
    """Return a config in which an option has a name, below keys and lists."""
    value: Any = {**STATIC, option: name}
    for step in path:
        value = [value] if step == "list" else {**STATIC, step: value}
    return value if isinstance(value, dict) else {**STATIC, "datasets": value}


@examples(60)
@given(
    option=st.sampled_from(sorted(NAMING_OPTIONS)),
    path=st.lists(st.sampled_from(["dataset", "datasets", "list", "map_seq", "source", "any thing"]), max_size=4),
    name=st.sampled_from(
        ["canary_module:call", "subprocess:run", "os:system", "builtins:exec", "canary_module:os.system"]
    ),
    form=st.sampled_from(["json", "literal", "text"]),
)
def test_what_nobody_allowed_is_refused_and_not_even_imported(
    installed: Path, tmp_path: Path, option: str, path: list[str], name: str, form: str
) -> None:
    config = nested(option, name, path)
    file = tmp_path / ("config.json" if form == "json" else "config")
    file.write_text(json.dumps(config) if form == "json" else repr(config))
    with pytest.raises(ConfigError, match=rf"names '{name}'.*a config is data"):
        hr.init_dataset(repr(config)) if form == "text" else load_job(file)
    assert not installed.exists()


def test_what_an_option_may_name_is_looked_at_where_a_config_is_checked() -> None:
    with pytest.raises(AssertionError):
        resolve_named("another_option", "os:system")


def test_a_module_that_was_allowed_may_be_named_and_nothing_else(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**STATIC, "transform": "canary_module:call"}))
    assert load_job(file, callables=["canary_module"]).dataset["transform"] == "canary_module:call"
    assert installed.exists()
    file.write_text(json.dumps({**STATIC, "transform": "canary_module:os.system"}))
    with pytest.raises(ConfigError, match="of the module 'posix'"):
        load_job(file, callables=["canary_module"])
    file.write_text(json.dumps({**STATIC, "transform": "canary_module:call"}))
    with pytest.raises(ConfigError, match="a config is data"):
        load_job(file, callables=["canary"])


def test_a_module_beside_the_config_may_be_named_but_not_what_it_has_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_config.py").write_text("from os import system\nimport os\ndef double(seq): return seq\n")
    file = tmp_path / "config.toml"
    text = 'class = "StaticDataset"\ntransform = "beside_the_config:{}"\n'
    file.write_text(text.format("double"))
    assert load_job(file).dataset["transform"] == "beside_the_config:double"
    for name in ("system", "os.system", "os"):
        file.write_text(text.format(name))
        with pytest.raises(ConfigError, match="which is of the module"):
            load_job(file)


def test_a_dict_of_a_program_is_its_own_unless_it_says_that_it_is_data(installed: Path) -> None:
    config = {"class": "PostprocessingDataset", "dataset": STATIC, "map_seq": "canary_module:call"}
    with pytest.raises(ConfigError, match="a config is data"):
        hr.init_dataset(config, callables=())
    hr.init_dataset(config)
    assert installed.exists()


def test_orderings_and_fields_that_look_like_names_are_none() -> None:
    check_callables({"seq_ordering": "laplace:.10", "fields": {"snr": "json:snr"}, "tags": ["os:system"]}, where="test")
    with pytest.raises(ConfigError, match=r"unknown.*laplce"):
        hr.init_dataset("StaticDataset:data=[{'data': [1]}],seq_ordering='laplce:x'")


def deep_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [100, 900, 5_000, 200_000])
@pytest.mark.parametrize("suffix", [".json", ".toml", ".txt"])
def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path: Path, suffix: str, depth: int) -> None:
    file = tmp_path / f"config{suffix}"
    lists = "[" * depth + "]" * depth
    file.write_text(f"files = {lists}" if suffix == ".toml" else f'{{"class": "HDFDataset", "files": {lists}}}')
    with pytest.raises(ConfigError):
        load_job(file)


def test_a_dict_that_holds_itself_is_refused() -> None:
    config: dict[str, Any] = {"class": "PostprocessingDataset", "map_seq": len}
    config["dataset"] = config
    with pytest.raises(ConfigError, match="nested too deeply"):
        hr.init_dataset(config)


def test_a_text_that_is_nested_too_deeply_is_refused() -> None:
    for depth in (100, 5_000):
        with pytest.raises(ConfigError):
            hr.init_dataset("{'class': 'HDFDataset', 'files': " + "[" * depth + "]" * depth + "}")


def test_the_command_line_allows_modules_by_name(installed: Path, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"class": "PostprocessingDataset", "dataset": STATIC, "map_seq": "canary_module:call"}))
    refused = invoke("run", file)
    assert refused.exit_code == 2
    assert "--allow-callables canary_module" in refused.stderr.replace("\n", " ")
    assert not installed.exists()
    allowed = invoke("run", file, "--allow-callables", "canary_module")
    assert installed.exists()
    assert "a config is data" not in allowed.stderr


@pytest.mark.parametrize(("text", "says"), [("1 / 0\n", "ZeroDivisionError"), ("def f(:\n", "SyntaxError")])
def test_a_module_that_raises_when_it_is_imported_is_an_error_of_the_config(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"'broken_module' of 'broken_module:f'.*{says}"):
        hr.init_dataset({"class": "broken_module:f"})
