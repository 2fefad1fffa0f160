"""From a config file to a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.configs import RunPlan, load_job, parse_epochs, parse_settings
from headrace.datasets import StaticDataset
from headrace.errors import ConfigError

OPTIONS = {"class": "HDFDataset", "files": ["sub/a.hdf", "/abs/b.hdf"], "seq_ordering": "random", "partition_epoch": 3}


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def expected(folder: Path) -> dict[str, object]:
    return {**OPTIONS, "files": [f"{folder}/sub/a.hdf", "/abs/b.hdf"]}


TOML = """
class = "HDFDataset"
files = ["sub/a.hdf", "/abs/b.hdf"]
seq_ordering = "random"
partition_epoch = 3
"""


@pytest.mark.parametrize(
    ("name", "text"), [("c.toml", TOML), ("c.json", json.dumps(OPTIONS)), ("c.config", f"# a comment\n{OPTIONS!r}\n")]
)
def test_each_form_of_data_gives_the_same_options_with_files_beside_the_config(
    tmp_path: Path, name: str, text: str
) -> None:
    job = load_job(write(tmp_path / name, text))
    assert job.dataset == expected(tmp_path)
    assert job.epochs == range(1, 2)


@pytest.mark.parametrize("key", ["dataset", "train"])
def test_a_dataset_may_stand_beside_epochs(tmp_path: Path, key: str) -> None:
    job = load_job(write(tmp_path / "c.json", json.dumps({key: OPTIONS, "epochs": "2..4"})))
    assert job.dataset == expected(tmp_path)
    assert job.epochs == range(2, 5)


def test_data_keys_that_look_like_options_with_files_are_not_joined_to_the_folder(tmp_path: Path) -> None:
    options = {
        "class": "MetaDataset",
        "datasets": {"a": {"class": "HDFDataset", "files": ["a.hdf"]}},
        "data_map": {"files": ["a", "data"], "index": ["a", "classes"]},
        "seq_list_file": "tags.txt",
        "seq_lens_file": {"a": "lens.json"},
    }
    job = load_job(write(tmp_path / "c.json", json.dumps(options)))
    assert job.dataset == {
        **options,
        "datasets": {"a": {"class": "HDFDataset", "files": [f"{tmp_path}/a.hdf"]}},
        "seq_list_file": f"{tmp_path}/tags.txt",
        "seq_lens_file": {"a": f"{tmp_path}/lens.json"},
    }


def test_file_names_are_found_at_any_depth_and_other_texts_stay(tmp_path: Path) -> None:
    options = {
        "class": "Outer",
        "name": "a.hdf",
        "dataset": {"class": "Inner", "manifest": "m.jsonl", "index": "auto", "files": ("a", ["b"], {"k": "c"})},
    }
    job = load_job(write(tmp_path / "c.config", repr(options)))
    assert job.dataset == {
        "class": "Outer",
        "name": "a.hdf",
        "dataset": {
            "class": "Inner",
            "manifest": f"{tmp_path}/m.jsonl",
            "index": "auto",
            "files": (f"{tmp_path}/a", [f"{tmp_path}/b"], {"k": f"{tmp_path}/c"}),
        },
    }


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    job = load_job(write(tmp_path / "c.json", '{"class": "HDFDataset", "files": "~/a.hdf"}'))
    assert job.dataset == {"class": "HDFDataset", "files": "/home/someone/a.hdf"}


@pytest.mark.parametrize(
    "body",
    [
        "dataset = {'class': 'StaticDataset'}",
        "train = {'class': 'StaticDataset'}",
        "def dataset():\n    return {'class': 'StaticDataset'}",
        "import beside_me\ndataset = {'class': beside_me.NAME}",
    ],
)
def test_a_program_defines_options_or_a_function_that_returns_them(tmp_path: Path, body: str) -> None:
    write(tmp_path / "beside_me.py", "NAME = 'StaticDataset'")
    job = load_job(write(tmp_path / "c.py", f"import os\nepochs = 3\nother = 1\n{body}\n"))
    assert job == RunPlan({"class": "StaticDataset"}, range(1, 4))


def test_a_program_may_build_the_dataset_itself(tmp_path: Path) -> None:
    program = "import headrace.datasets as d\ndataset = d.StaticDataset([])"
    job = load_job(write(tmp_path / "c.py", program))
    assert isinstance(job.dataset, StaticDataset)
    with pytest.raises(ConfigError, match="built already"):
        load_job(tmp_path / "c.py", ["seq_ordering=random"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", "class = ", "not TOML"),
        ("c.json", '{"class": ', "not JSON"),
        ("c.config", "{'class': open('x')}", "not a Python literal"),
        ("c.config", "__import__('os').system('true')", "not a Python literal"),
        ("c.config", "(" * 10_000, "not a Python literal"),
        ("c.py", "dataset = (", "not Python"),
        ("c.json", "[1]", "expected a dict"),
        ("c.json", "{}", "neither `dataset` nor `train`"),
        ("c.json", '{"dataset": {}, "train": {}}', "both `dataset` and `train`"),
        ("c.json", '{"dataset": "a.hdf"}', "`dataset` is a str"),
        ("c.json", '{"datset": {"class": "HDFDataset"}}', "unknown key 'datset'(?s:.)*did you mean 'dataset'"),
        ("c.json", '{"dataset": {}, "epoch": 3}', "unknown key 'epoch'(?s:.)*did you mean 'epochs'"),
        ("c.json", '{"dataset": {}, "epochs": true}', "epochs = True"),
        ("c.json", '{"dataset": {}, "epochs": [1, 2]}', "names no epochs"),
        ("c.py", "x = 1", "neither `dataset` nor `train`"),
        ("c.py", "dataset = 3", "`dataset` is a int"),
    ],
)
def test_a_wrong_config_is_refused_with_its_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=message) as error:
        load_job(path)
    assert str(path) in str(error.value.where)


def test_binary_files_are_refused(tmp_path: Path, hdf: Path) -> None:
    with pytest.raises(ConfigError, match="HDF5 file, not a config"):
        load_job(hdf)
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(ConfigError, match=r"file of data \(JSON lines\), not a config"):
        load_job(tmp_path / "c.jsonl")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not JSON"):
        load_job(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="a folder, not a config file"):
        load_job(tmp_path)


@given(first=st.integers(1, 10**6), count=st.integers(1, 10**6))
def test_epochs_are_a_number_or_a_range_with_both_ends(first: int, count: int) -> None:
    assert parse_epochs(count, "here") == parse_epochs(str(count), "here") == range(1, count + 1)
    assert parse_epochs(f"{first}..{first + count - 1}", "here") == range(first, first + count)


@pytest.mark.parametrize("value", [0, -1, "0", "0..3", "3..2", "1..", "..3", "1-3", "", "a", 1.5, None, True])
def test_a_text_that_names_no_epoch_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="names no epochs"):
        parse_epochs(value, "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e3", 1000.0),
        ("true", True),
        ("None", None),
        ("[1, 2]", [1, 2]),
        ("(50, 25)", (50, 25)),
        ("laplace:.1000", "laplace:.1000"),
        ("50:25", "50:25"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_a_setting_is_a_literal_or_else_a_text(text: str, value: object) -> None:
    assert parse_settings(["key=old", f"key={text}"]) == {"key": value}


@pytest.mark.parametrize("setting", ["key", "=3"])
def test_a_setting_without_a_key_or_a_value_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_settings([setting])
    assert setting in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("c.json", '{"class": "X"}'), ("c.toml", 'class = "X"'), ("c.txt", "{'class': 'X'}")],
)
def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load_job(tmp_path / name).dataset == {"class": "X"}


def test_the_path_of_a_tokenizer_is_relative_to_the_config_and_words_stay(tmp_path):
    config = tmp_path / "c.json"
    options = {"class": "LmDataset", "corpus_file": "a.txt", "orth_vocab": "tokenizer.json"}
    config.write_text(json.dumps({**options, "fields": {"a": {"vocab": "spm.model"}, "b": {"vocab": "bytes"}}}))
    job = load_job(config)
    assert job.dataset["orth_vocab"] == str(tmp_path / "tokenizer.json")
    assert job.dataset["fields"] == {"a": {"vocab": str(tmp_path / "spm.model")}, "b": {"vocab": "bytes"}}
