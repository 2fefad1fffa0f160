"""`headrace run` on configs that were written for RETURNN."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.datasets import init_dataset

Invoke = Callable[..., Any]

# What a config for training looks like: settings of the network and of the training, a log, functions.
CONFIG = """
#!/usr/bin/env returnn
import os
from functools import partial

task = "train"
backend = "torch"
target = "classes"
default_input = "data"
extern_data = {{"data": {{"dim": 2}}, "classes": {{"dim": 3, "sparse": True}}}}
batch_size = {{"data": 20_000}}
max_seqs = 200
num_epochs = 100
log = ["./returnn.log"]
log_verbosity = 5
cleanup_old_models = {{"keep_last_n": 5}}
model = os.path.join("net-model", "network")
learning_rates = [1e-3 * 0.5**i for i in range(3)]
torch_dataloader_opts = {{"num_workers": 1}}
{settings}

def helper(**_kwargs):
    return "random"

train = {train}
dev = {{"class": "HDFDataset", "files": [{hdf!r}], "seq_ordering": "sorted"}}
"""


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def write_config(tmp_path: Path, hdf: Path) -> Callable[..., Path]:
    def write(train: str, settings: str = "") -> Path:
        path = tmp_path / "returnn.config.py"
        path.write_text(CONFIG.format(train=re.sub(r"\bHDF\b", repr(str(hdf)), train), settings=settings, hdf=str(hdf)))
        return path

    return write


def run_json(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    result = invoke("run", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


NESTED = {
    "MultiProcDataset": """{"class": "MultiProcDataset", "num_workers": 1, "buffer_size": 5,
        "dataset": {"class": "HDFDataset", "files": [HDF]}, "seq_ordering": "laplace:.3", "partition_epoch": 2}""",
    "MetaDataset": """{"class": "MetaDataset", "datasets": {
            "features": {"class": "HDFDataset", "files": [HDF], "use_cache_manager": False},
            "targets": {"class": "HDFDataset", "files": [HDF], "seq_ordering": helper, "partition_epoch": 2}},
        "data_map": {"data": ("features", "data"), "classes": ("targets", "classes")},
        "seq_order_control_dataset": "targets"}""",
    "DistributeFilesDataset": """{"class": "DistributeFilesDataset", "files": [HDF, HDF], "partition_epoch": 2,
        "get_sub_epoch_dataset": lambda files: {"class": "HDFDataset", "files": files, "seq_ordering": "random"},
        "buffer_size": 100, "preload_next_n_sub_epochs": 1, "seq_ordering": "random"}""",
    "PostprocessingDataset": """{"class": "PostprocessingDataset", "seq_ordering": "default",
        "dataset": {"class": "HDFDataset", "files": [HDF], "seq_ordering": "reverse", "partition_epoch": 2},
        "map_seq": lambda data, **_other: data}""",
    "CombinedDataset": """{"class": "CombinedDataset", "datasets": {
            "one": {"class": "HDFDataset", "files": [HDF]}, "two": {"class": "HDFDataset", "files": [HDF]}},
        "data_map": {("one", "data"): "data", ("two", "data"): "data", ("two", "classes"): "classes"},
        "seq_ordering": "random", "partition_epoch": 4}""",
    "ConcatDataset": """{"class": "ConcatDataset", "datasets": [
        {"class": "HDFDataset", "files": [HDF]}, {"class": "HDFDataset", "files": [HDF], "seq_ordering": "sorted"}]}""",
    "MultiEpochDataset": """{"class": "MultiEpochDataset", "multi_epoch": 2,
        "dataset": {"class": "HDFDataset", "files": [HDF], "seq_ordering": "random", "partition_epoch": 4}}""",
    "StaticDataset": """{"class": "StaticDataset", "data": [
        {"data": __import__("numpy").zeros((3, 2), "float32")} for _ in range(4)], "output_dim": {"data": (2, 2)}}""",
    "MapDatasetWrapper": """{"class": "MapDatasetWrapper", "map_dataset": type("Own", (), {
        "__len__": lambda self: 4, "__getitem__": lambda self, i: {"data": __import__("numpy").zeros((i + 1, 2))}}),
        "seq_ordering": "random"}""",
}


@pytest.mark.parametrize("name", NESTED)
def test_a_config_with_a_documented_class_runs_unchanged(
    invoke: Invoke, write_config: Callable[..., Path], name: str
) -> None:
    report = run_json(invoke, write_config(NESTED[name]), "--epochs", 2)
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    assert all(epoch["num_seqs"] > 1 for epoch in report["epochs"])


def test_a_setting_that_returnn_gives_to_the_dataset_is_to_be_written_into_it(
    invoke: Invoke, write_config: Callable[..., Path]
) -> None:
    train = "{'class': 'HDFDataset', 'files': [HDF]}"
    result = invoke("run", write_config(train, "batching = 'laplace:.4'"))
    assert result.exit_code == 2
    assert "write 'seq_ordering': 'laplace:.4' into `train`" in result.stderr
    own = "{'class': 'HDFDataset', 'files': [HDF], 'seq_ordering': 'sorted'}"
    config = write_config(own, "batching = 'laplace:.4'\nwindow = None")
    assert run_json(invoke, config)["dataset"]["seq_ordering"] == "sorted"
    assert run_json(invoke, config, "--set", "seq_ordering=reverse")["dataset"]["seq_ordering"] == "reverse"


def test_a_dataset_of_our_own_config_takes_nothing_from_names_beside_it(
    invoke: Invoke, tmp_path: Path, hdf: Path
) -> None:
    config = tmp_path / "own.py"
    config.write_text(f"batching = 'random'\ndataset = {{'class': 'HDFDataset', 'files': [{str(hdf)!r}]}}\n")
    assert run_json(invoke, config)["dataset"]["seq_ordering"] == "default"


def test_what_returnn_writes_for_its_own_processes_is_accepted_with_a_line_in_the_log(
    hdf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = {"class": "HDFDataset", "files": [str(hdf)]}
    config = {"class": "MultiProcDataset", "dataset": inner, "num_workers": 1, "buffer_size": 5}
    with caplog.at_level(logging.INFO, "headrace.datasets"):
        init_dataset({**config, "_meta_info_cache": {"num_inputs": 2}}).close()
    assert "'_meta_info_cache' of MultiProcDataset" in caplog.text


@pytest.mark.parametrize(
    ("train", "messages"),
    [
        ("{'class': 'TranslationDataset', 'path': 'x'}", ["RETURNN's TranslationDataset", "LmDataset", "HDFDataset"]),
        ("{'class': 'RawWavDataset'}", ["RETURNN's RawWavDataset is not offered", "AudioFolderSource"]),
        ("{'class': 'Task12AXDataset', 'num_seqs': 10}", ["no longer offered", "StaticDataset"]),
        ("{'class': 'NoSuchDataset'}", ["unknown dataset class", "HDFDataset", "MetaDataset"]),
        (
            "{'class': 'HDFDataset', 'files': [HDF], 'use_cache_manager': True}",
            ["use_cache_manager=True", "local paths"],
        ),
        ("{'class': 'HDFDataset', 'files': [HDF], 'cache_size': 3}", ["no option 'cache_size'", "cache_byte_size"]),
        ("'HDFDataset:files=[]'", ["`train` is a str"]),
    ],
)
def test_what_is_not_offered_is_refused_with_the_reason_and_what_there_is(
    invoke: Invoke, write_config: Callable[..., Path], train: str, messages: list[str]
) -> None:
    result = invoke("run", write_config(train))
    assert result.exit_code == 2, result.output
    assert all(message in result.stderr for message in messages), result.stderr


def test_a_config_that_imports_returnn_without_having_it_is_told_what_to_write(
    invoke: Invoke, write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("returnn", *(name for name in sys.modules if name.startswith("returnn."))):
        monkeypatch.setitem(sys.modules, name, None)
    config = write_config("{'class': 'HDFDataset', 'files': [HDF]}", "from returnn.util.file_cache import CachedFile")
    result = invoke("run", config)
    assert result.exit_code == 2
    assert "from headrace import CachedFile" in result.stderr


@pytest.mark.extra
@pytest.mark.skipif(importlib.util.find_spec("returnn") is None, reason="needs returnn")
@pytest.mark.filterwarnings("ignore")
def test_marks_of_cached_files_that_were_imported_from_returnn_are_ours(
    invoke: Invoke, write_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = write_config(
        """{"class": "DistributeFilesDataset", "files": [HDF], "get_sub_epoch_dataset": lambda files: {
            "class": "HDFDataset", "files": [CachedFile(file) for file in files]}}""",
        "from returnn.util.file_cache import CachedFile",
    )
    assert run_json(invoke, config)["total"]["num_seqs"] == 10


def test_a_function_for_tensor_dicts_that_does_not_say_so_is_told_how(
    invoke: Invoke, write_config: Callable[..., Path]
) -> None:
    train = """{"class": "PostprocessingDataset", "dataset": {"class": "HDFDataset", "files": [HDF]}, "map_seq": own}"""
    function = "def own(tensor_dict, **_other):\n    return tensor_dict.data['data'] and tensor_dict\n"
    result = invoke("run", write_config(train, function))
    assert result.exit_code != 0
    assert "TensorDict if its argument is annotated so, or by TakesTensorDict(function)" in result.stderr


def test_file_names_of_the_new_options_are_relative_to_the_config(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    config = tmp_path / "c.json"
    for source in (hdf.name, [hdf.name], {"class": "HDFSource", "files": [hdf.name]}):
        config.write_text(json.dumps({"class": "SourceDataset", "source": source}))
        assert run_json(invoke, config)["total"]["num_seqs"] == 10
