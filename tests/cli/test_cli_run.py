"""`headrace run`, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.version import __version__

Invoke = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, hdf: Path) -> Path:
    """Ten sequences of 1..10 frames."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"class": "HDFDataset", "files": [hdf.name]}))
    return path


def run_json(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    result = invoke("run", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_is_one_object_that_says_what_came(invoke: Invoke, config: Path) -> None:
    report = run_json(invoke, config)
    assert report["dataset"] == {
        "class": "HDFDataset",
        "num_seqs": 10,
        "seq_ordering": "default",
        "partition_epoch": 1,
        "keys": {
            "data": {"dtype": "float32", "shape": [2], "dim": 2, "sparse": False},
            "classes": {"dtype": "int32", "shape": [], "dim": 3, "sparse": True},
        },
    }
    (epoch,) = report["epochs"]
    assert (epoch["epoch"], epoch["num_seqs"], epoch["bytes"]) == (1, 10, 55 * 8 + 10 * 4)
    assert epoch["keys"]["data"] == {
        "frames": 55,
        "bytes": 440,
        "min_length": 1,
        "mean_length": 5.5,
        "max_length": 10,
    }
    assert epoch["first_tags"] == ["seq-0", "seq-1", "seq-2"]
    assert epoch["last_tags"] == ["seq-7", "seq-8", "seq-9"]
    assert report["total"]["num_seqs"] == 10


def test_the_digest_is_the_same_again_and_another_for_other_data_or_another_order(
    invoke: Invoke, config: Path, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    digest = run_json(invoke, config)["digest"]
    assert run_json(invoke, config)["digest"] == digest
    assert run_json(invoke, config, "--set", "seq_ordering=reverse")["digest"] != digest
    other = write_corpus(tmp_path / "other.hdf", first_value=1)
    assert run_json(invoke, config, "--set", f"files=[{str(other)!r}]")["digest"] != digest


@pytest.mark.parametrize(("option", "numbers"), [("3", [1, 2, 3]), ("2..4", [2, 3, 4]), ("5..5", [5])])
def test_epochs_are_chosen_on_the_command_line(invoke: Invoke, config: Path, option: str, numbers: list[int]) -> None:
    report = run_json(invoke, config, "--epochs", option, "--set", "partition_epoch=3")
    assert [epoch["epoch"] for epoch in report["epochs"]] == numbers
    sizes = {1: 4, 2: 3, 3: 3, 4: 4, 5: 3}
    assert [epoch["num_seqs"] for epoch in report["epochs"]] == [sizes[number] for number in numbers]


def test_the_epochs_of_the_config_are_used_unless_the_command_line_says_otherwise(
    invoke: Invoke, tmp_path: Path, hdf: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'epochs = "2..3"\n[dataset]\nclass = "HDFDataset"\nfiles = ["{hdf.name}"]\n')
    assert [epoch["epoch"] for epoch in run_json(invoke, config)["epochs"]] == [2, 3]
    assert [epoch["epoch"] for epoch in run_json(invoke, config, "--epochs", 1)["epochs"]] == [1]


def test_a_limit_ends_each_epoch(invoke: Invoke, config: Path) -> None:
    report = run_json(invoke, config, "--epochs", 2, "--limit", 4)
    assert [epoch["num_seqs"] for epoch in report["epochs"]] == [4, 4]
    assert report["total"]["num_seqs"] == 8


def test_people_get_the_layout_each_epoch_and_a_total(invoke: Invoke, config: Path) -> None:
    result = invoke("run", config, "--epochs", 2, "--set", "seq_ordering=sorted")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "HDFDataset of 10 sequences, seq_ordering=sorted"
    assert lines[1] == "  data float32[T, 2]; classes int32[T] of 3 classes"
    assert lines[2].startswith("epoch 1: 10 sequences, 480 B in ")
    assert lines[3] == "  data     55 frames, length 1 / 5.5 / 10 (min / mean / max)"
    assert lines[4] == "  classes  10 frames, length 1 / 1.0 / 1 (min / mean / max)"
    assert lines[5] == "  tags     seq-0, seq-1, seq-2 … seq-7, seq-8, seq-9"
    assert lines[6].startswith("epoch 2: ")
    assert lines[10].startswith("total: 20 sequences, 960 B in ")
    assert lines[11].startswith("  stream digest: ")
    assert len(lines) == 12


def test_quiet_prints_the_total_only(invoke: Invoke, config: Path) -> None:
    result = invoke("run", config, "--quiet")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["total:", "stream"]
    assert result.stderr == ""


def test_tags_that_look_like_markup_are_printed_as_they_are(
    invoke: Invoke, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    write_corpus(tmp_path / "m.hdf", num_seqs=2, prefix="[bold]:smile:")
    (tmp_path / "m.json").write_text('{"class": "HDFDataset", "files": "m.hdf"}')
    result = invoke("run", tmp_path / "m.json")
    assert "[bold]:smile:-0, [bold]:smile:-1" in result.stdout


def test_an_empty_epoch_is_legal_and_said(invoke: Invoke, config: Path) -> None:
    result = invoke("run", config, "--set", "partition_epoch=11", "--epochs", "11..11")
    assert result.exit_code == 0, result.output
    assert "epoch 11: 0 sequences, 0 B" in result.stdout


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_no_tag_is_shown_twice(invoke: Invoke, config: Path, count: int) -> None:
    result = invoke("run", config, "--limit", count)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("  tags")]
    shown = line.replace("…", ",").split(maxsplit=1)[1].split(",")
    assert [tag.strip() for tag in shown] == [
        f"seq-{number}" for number in ([*range(count)] if count < 7 else [0, 1, 2, 4, 5, 6])
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class": "HDFDatset", "files": "a.hdf"}, "HDFDataset"),
        ({"class": "HDFDataset", "files": "a.hdf", "partition_epochs": 2}, "partition_epoch"),
        ({"class": "HDFDataset", "files": "a.hdf", "seq_ordering": "randm"}, "random"),
        ({"class": "HDFDataset", "files": "a.hdf", "seq_ordering": "no.such:thing"}, "no.such"),
        ({"clas": "HDFDataset"}, "did you mean 'class'"),
    ],
)
def test_a_wrong_config_is_one_paragraph_with_the_nearest_name_and_exit_code_2(
    invoke: Invoke, tmp_path: Path, hdf: Path, options: dict[str, object], message: str
) -> None:
    assert hdf.name == "a.hdf"
    config = tmp_path / "wrong.json"
    config.write_text(json.dumps(options))
    result = invoke("run", config)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert str(config) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_file_is_exit_code_1_and_debug_shows_the_traceback(invoke: Invoke, config: Path, hdf: Path) -> None:
    hdf.unlink()
    result = invoke("run", config)
    assert result.exit_code == 1
    assert str(hdf) in result.stderr
    assert "Traceback" not in result.stderr
    for arguments in (("--debug", "run", config), ("run", config, "--debug")):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr


def test_an_error_of_the_users_own_code_is_named_with_its_line(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    config = tmp_path / "own.py"
    config.write_text(
        "def broken(features):\n    return features['dta']\n"
        f"dataset = {{'class': 'HDFDataset', 'files': [{str(hdf)!r}], 'transform': broken}}\n"
    )
    result = invoke("run", config)
    assert result.exit_code == 1
    assert "unexpected KeyError: 'dta'" in result.stderr
    assert f"{config}, line 2, in broken" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_broken_pipe_of_the_users_own_code_is_an_error_like_any_other(
    invoke: Invoke, tmp_path: Path, hdf: Path
) -> None:
    config = tmp_path / "own.py"
    config.write_text(
        "def broken(features):\n    raise BrokenPipeError(32, 'the server went away')\n"
        f"dataset = {{'class': 'HDFDataset', 'files': [{str(hdf)!r}], 'transform': broken}}\n"
    )
    result = invoke("run", config)
    assert result.exit_code == 1
    assert "the server went away" in result.stderr


def test_a_function_beside_the_config_is_found(invoke: Invoke, tmp_path: Path, hdf: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_transforms.py").write_text(
        "def double(features):\n    return {**features, 'data': features['data'] * 2}\n"
    )
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"class": "HDFDataset", "files": hdf.name}))
    plain = run_json(invoke, config)
    doubled = run_json(invoke, config, "--set", "transform=my_transforms:double")
    assert doubled["total"]["bytes"] == plain["total"]["bytes"]
    assert doubled["digest"] != plain["digest"]


def test_a_dataset_that_does_not_know_its_layout_or_size_runs(invoke: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "stream.py"
    config.write_text(
        "import numpy as np\n"
        "from headrace.datasets import CachedDataset2, DatasetSeq\n"
        "class Stream(CachedDataset2):\n"
        "    def _collect_single_seq(self, seq_idx):\n"
        "        return DatasetSeq(seq_idx, np.zeros(seq_idx, dtype='float32')) if seq_idx < 3 else None\n"
        "def dataset():\n"
        "    return Stream()\n"
    )
    report = run_json(invoke, config)
    assert report["dataset"]["num_seqs"] is None
    assert report["epochs"][0]["keys"]["data"]["frames"] == 3


def test_a_dataset_without_end_needs_a_limit_only(invoke: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "endless.py"
    config.write_text(
        "import numpy as np\n"
        "from headrace.datasets import CachedDataset2, DatasetSeq\n"
        "class Endless(CachedDataset2):\n"
        "    num_outputs = {'data': (1, 1)}\n"
        "    def _collect_single_seq(self, seq_idx):\n"
        "        return DatasetSeq(seq_idx, np.array([seq_idx]))\n"
        "dataset = {'class': Endless}\n"
    )
    report = run_json(invoke, config, "--limit", 5)
    assert report["dataset"]["num_seqs"] is None
    assert report["total"]["num_seqs"] == 5


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["nonsense"],
        ["run", "c.json", "--nonsense"],
        ["run", "c.json", "--limit", "0"],
        ["convert", "m.jsonl"],
    ],
)
def test_wrong_usage_is_exit_code_2(invoke: Invoke, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_the_version_is_printed(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"headrace {__version__}\n"
