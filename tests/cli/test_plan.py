"""`headrace plan`: what it says is what a run does, and it runs nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.cli.plan.amounts import UNKNOWN, Amounts, derive_balance
from headrace.datasets import init_dataset
from headrace.files.lists.tree import tree_leaves

Invoke = Callable[..., Any]
NUM_SEQS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]

PROGRAM = """
import os
from pathlib import Path

from headrace.files.cache.cache import CachedFile

HERE = Path(__file__).parent


def sub(files):
    with open(HERE / "pids", "a") as log:
        log.write(f"{os.getpid()}\\n")
    return {"class": "HDFDataset", "files": [CachedFile(file) for file in files]}


dataset = {
    "class": "DistributeFilesDataset",
    "files": sorted(str(path) for path in HERE.glob("*.hdf")),
    "get_sub_epoch_dataset": sub,
    "partition_epoch": 2,
    "seq_ordering": "random",
    "distrib_shard_files": True,
}
"""


@pytest.fixture
def config(tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve files; file i has NUM_SEQS[i] sequences of 1, 2, ... frames, in two sub-epochs."""
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"cache_directory": str(tmp_path / "copies")}))
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, num_seqs in enumerate(NUM_SEQS):
        write_corpus(folder / f"{number:02d}.hdf", num_seqs, prefix=f"f{number}")
    path = folder / "c.py"
    path.write_text(PROGRAM)
    return path


def plan_json(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    result = invoke("plan", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def bins_of(invoke: Invoke, *arguments: object) -> dict[tuple[int, int], dict[str, int]]:
    return {(entry.pop("epoch"), entry.pop("rank")): entry for entry in plan_json(invoke, *arguments)["bins"]}


def dataset_of(config: Path, **options: Any) -> Any:
    namespace: dict[str, Any] = {"__file__": str(config)}
    exec(config.read_text(), namespace)
    return init_dataset({**namespace["dataset"], "use_worker_proc": False, **options})


def frames_of(num_seqs: int) -> int:
    return num_seqs * (num_seqs + 1) // 2


# --- the numbers ---


@pytest.mark.sample(4)
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"balance": "largest_first"}, {"num_canonical_shards": 6}, {"seq_ordering": "default"}]
)
def test_the_plan_is_what_the_ranks_read(
    invoke: Invoke, config: Path, world_size: int, options: dict[str, Any]
) -> None:
    settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    planned = bins_of(invoke, config, "--ranks", world_size, "--epochs", "1-3", "--count", *settings)
    assert list(planned) == [(epoch, rank) for epoch in (1, 2, 3) for rank in range(world_size)]
    for rank in range(world_size):
        # "keep": what is planned is what there is, before the ranks stop together
        with dataset_of(config, rank=rank, world_size=world_size, remainder="keep", **options) as dataset:
            for epoch in (1, 2, 3):
                lengths = [len(seq["data"]) for seq in dataset.epoch(epoch)]
                files = [leaf for tree in dataset.get_files(epoch) for leaf in tree_leaves(tree)]
                assert planned[epoch, rank] == {
                    "files": len(files),
                    "bytes": sum(map(os.path.getsize, files)),
                    "sequences": len(lengths),
                    "frames": sum(lengths),
                }


def test_sequences_are_known_after_they_were_counted_once(invoke: Invoke, config: Path) -> None:
    before = invoke("plan", config)
    assert "sequences" not in before.stdout.partition("max/mean")[0]
    assert bins_of(invoke, config)[1, 0].keys() == {"files", "bytes"}
    counted = bins_of(invoke, config, "--count")
    assert sum(entry["sequences"] for entry in counted.values()) == sum(NUM_SEQS)
    assert sum(entry["frames"] for entry in counted.values()) == sum(map(frames_of, NUM_SEQS))
    assert bins_of(invoke, config) == counted
    assert f"{sum(NUM_SEQS)} sequences" in invoke("plan", config).stdout


def test_a_config_that_is_data_names_the_function_and_leaves_urls_alone(
    invoke: Invoke, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    config.with_name("subs_of_the_plan_test.py").write_text(PROGRAM)
    options = {
        "class": "DistributeFilesDataset",
        "files": ["*.hdf"],
        "get_sub_epoch_dataset": "subs_of_the_plan_test:sub",
        "partition_epoch": 2,
        "seq_ordering": "random",
    }
    data = config.with_name("c.json")
    data.write_text(json.dumps(options))
    assert bins_of(invoke, data, "--ranks", 3) == bins_of(invoke, config, "--ranks", 3)
    data.write_text(json.dumps({**options, "files": ["memory://a.hdf", "memory://b.hdf"]}))
    assert "where: memory://a.hdf\n" in invoke("plan", data, "--count").stderr


def test_what_a_filter_leaves_out_is_not_counted(invoke: Invoke, config: Path) -> None:
    config.with_name("kept.txt").write_text("".join(f"f5-{number}\n" for number in range(4)))
    filtered = config.with_name("filtered.py")
    change = 'lambda files: {**sub(files), "seq_list_filter_file": str(HERE / "kept.txt")}'
    filtered.write_text(f'{PROGRAM}\ndataset["get_sub_epoch_dataset"] = {change}\n')
    counted = bins_of(invoke, filtered, "--count")
    assert sum(entry["sequences"] for entry in counted.values()) == 4
    assert all("frames" not in entry or entry["sequences"] in (0, 9) for entry in counted.values())
    # without counting, it is what the files hold, and that is said
    assert sum(entry["sequences"] for entry in bins_of(invoke, config).values()) == sum(NUM_SEQS)
    assert "those in the files; --count finds which are read" in invoke("plan", config).stdout
    assert "those in the files" not in invoke("plan", config, "--count").stdout


@pytest.mark.parametrize("count", [[], ["--count"]])
def test_no_process_is_started_and_no_file_copied(
    invoke: Invoke, config: Path, tmp_path: Path, count: list[str]
) -> None:
    assert invoke("plan", config, "--ranks", "2", *count).exit_code == 0
    pids = (config.parent / "pids").read_text().split()
    assert set(pids) == {str(os.getpid())}
    assert len(pids) == 1 + len(NUM_SEQS) * len(count)
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize("is_built", [False, True])
def test_it_is_found_inside_of_other_datasets_whose_workers_share_what_a_rank_has(
    invoke: Invoke, config: Path, is_built: bool
) -> None:
    outer = """
inner = dataset
inner.pop("distrib_shard_files")
inner.pop("partition_epoch")
dataset = {"class": "MultiProcDataset", "num_workers": 2, "buffer_size": 1, "sharding_method": "dedicated",
           "dataset": inner, "partition_epoch": 2}
"""
    if is_built:
        outer += "from headrace import init_dataset\ndataset = init_dataset(dataset)\n"
    path = config.with_name("outer.py")
    path.write_text(PROGRAM + outer)
    planned = bins_of(invoke, path, "--ranks", 2)
    with dataset_of(config, distrib_shard_files=False) as dataset:
        for (epoch, rank), entry in planned.items():
            files = []
            for worker in range(2):
                dataset.set_sharding(4, 2 * rank + worker)
                files += dataset.get_files(epoch)
            assert entry == {"files": len(files), "bytes": sum(map(os.path.getsize, files))}
    text = invoke("plan", path).stdout
    assert "DistributeFilesDataset in MultiProcDataset" in text
    assert "divided among its 2 workers" in text


def test_entries_may_come_twice_and_be_trees(invoke: Invoke, config: Path) -> None:
    path = config.with_name("trees.py")
    path.write_text(
        PROGRAM
        + """
files = dataset["files"]
dataset["files"] = [{"a": one, "b": [two]} for one, two in zip(files[::2], files[1::2])] * 2
dataset["get_sub_epoch_dataset"] = lambda trees: sub([tree["a"] for tree in trees])
"""
    )
    planned = bins_of(invoke, path, "--ranks", 3)
    assert sum(entry["files"] for entry in planned.values()) == 12
    sizes = [path.stat().st_size for path in config.parent.glob("*.hdf")]
    assert sum(entry["bytes"] for entry in planned.values()) == 2 * sum(sizes)


def test_the_number_of_ranks_is_that_of_the_config_or_of_the_launcher(
    invoke: Invoke, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def num_ranks(*arguments: object) -> int:
        return plan_json(invoke, config, *arguments)["ranks"]

    assert num_ranks() == 1
    assert num_ranks("--set", "world_size=4") == 4
    assert num_ranks("--set", "distrib_shard_files=False", "--set", "_num_shards=3") == 3
    for name, value in {"RANK": "2", "WORLD_SIZE": "5", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    assert num_ranks() == 5
    assert "number of ranks: 5 (" in invoke("plan", config).stdout
    assert num_ranks("--ranks", 2) == 2


def test_ranks_that_would_all_read_everything_are_remarked_on(invoke: Invoke, config: Path) -> None:
    off = ["--set", "distrib_shard_files=False"]
    assert "each rank reads all files" in invoke("plan", config, "--ranks", 2, *off).stdout
    assert "each rank reads all files" not in invoke("plan", config, "--ranks", 2).stdout
    assert "each rank reads all files" not in invoke("plan", config, *off).stdout


# --- other datasets ---


@pytest.mark.parametrize("transform", [[], ["--set", "transform=builtins:dict"]])
def test_a_dataset_without_files_to_distribute_is_planned_by_its_order(
    invoke: Invoke, config: Path, transform: list[str]
) -> None:
    path = config.with_name("hdf.json")
    options = {"class": "HDFDataset", "files": ["05.hdf", "11.hdf"], "seq_ordering": "random", "partition_epoch": 2}
    path.write_text(json.dumps(options))
    planned = bins_of(invoke, path, "--ranks", 3, *transform)
    files = [str(path.with_name(name)) for name in options["files"]]
    for (epoch, rank), entry in planned.items():
        with init_dataset({**options, "files": files, "_num_shards": 3, "_shard_index": rank}) as dataset:
            lengths = [len(seq["data"]) for seq in dataset.epoch(epoch)]
        assert entry == {"sequences": len(lengths), "frames": sum(lengths)}
    assert "it distributes no files" in invoke("plan", path).stdout


def test_a_dataset_made_of_others_is_planned_with_its_frames(invoke: Invoke, config: Path) -> None:
    parts = [{"class": "HDFDataset", "files": [str(config.with_name(name))]} for name in ("05.hdf", "11.hdf")]
    options = {"class": "ConcatDataset", "datasets": parts, "seq_ordering": "random", "partition_epoch": 2}
    path = config.with_name("concat.json")
    path.write_text(json.dumps(options))
    for (epoch, rank), entry in bins_of(invoke, path, "--ranks", 3).items():
        with init_dataset({**options, "_num_shards": 3, "_shard_index": rank}) as dataset:
            lengths = [len(seq["data"]) for seq in dataset.epoch(epoch)]
        assert entry == {"sequences": len(lengths), "frames": sum(lengths)}


def test_frames_are_left_out_where_only_reading_would_tell_them(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "d.py"
    path.write_text(
        "class Seven:\n    def __len__(self):\n        return 7\n"
        "    def __getitem__(self, i):\n        return {'data': [i]}\n"
        "dataset = {'class': 'MapDataset', 'map_dataset': Seven}\n"
    )
    assert bins_of(invoke, path, "--ranks", 2) == {(1, 0): {"sequences": 4}, (1, 1): {"sequences": 3}}


def test_a_dataset_of_unknown_length_has_no_plan(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "d.py"
    path.write_text(
        "import headrace as hr\nclass Stream(hr.CachedDataset2):\n    num_outputs = {'data': (1, 1)}\n"
        "dataset = {'class': Stream}\n"
    )
    result = invoke("plan", path)
    assert result.exit_code == 2
    assert "Stream has no files to distribute, and does not know its number of sequences" in result.stderr
    assert str(path) in result.stderr


# --- what is refused ---


def test_too_few_files_are_said_plainly(invoke: Invoke, config: Path) -> None:
    result = invoke("plan", config, "--ranks", "64")
    assert result.exit_code == 2
    assert "12 files cannot be distributed over 128 bins" in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1,2"], "--ranks"),
        (["--ranks", "0"], "--ranks"),
        (["--ranks", "99999999"], "--ranks"),
        (["--epochs", "3-2"], "names no epochs"),
        (["--epoch", "0"], "--epoch"),
        (["--epoch", "1", "--epochs", "2"], "both given"),
    ],
)
def test_a_wrong_option_is_refused_before_the_config_is_read(
    invoke: Invoke, config: Path, arguments: list[str], message: str
) -> None:
    result = invoke("plan", config, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (config.parent / "pids").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('dataset = {"class": "MetaDataset", "datasets": {"a": dataset, "b": dataset}}', "2 datasets that distribute"),
        ('dataset["files"] = ["memory://a.hdf", "memory://b.hdf"]', "--count would have to copy files"),
        ("from headrace import init_dataset; dataset = init_dataset(dataset)", "--count would start the workers"),
        ('dataset = {"class": "HDFDataset", "files": dataset["files"]}', "--count is for files"),
        ('dataset["partition_epoch"] = 13', "fewer than partition_epoch=13"),
        ('dataset["get_sub_epoch_dataset"] = lambda files: {}', "returned no dataset"),
        ('dataset["balanse"] = 1', "no option 'balanse'"),
        ('dataset["world_size"] = "four"', "world_size must be a whole number"),
        ('del dataset["distrib_shard_files"]; dataset["_num_shards"] = "2"', "world_size must be a whole number"),
    ],
)
def test_a_config_that_has_no_plan_is_refused(invoke: Invoke, config: Path, change: str, message: str) -> None:
    path = config.with_name("wrong.py")
    path.write_text(f"{PROGRAM}\n{change}\n")
    result = invoke("plan", path, "--count")
    assert result.exit_code == 2
    assert message in result.stderr
    assert f"config: {path}" in result.stderr


def test_a_missing_file_is_named(invoke: Invoke, config: Path) -> None:
    path = config.with_name("missing.py")
    path.write_text(PROGRAM + 'dataset["files"].append("/nowhere/x.hdf")\n')
    result = invoke("plan", path)
    assert result.exit_code == 1
    assert "/nowhere/x.hdf" in result.stderr


# --- how it looks ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--ranks", "3"],
        ["--ranks", "6", "--epochs", "30", "--set", "num_canonical_shards=6"],
    ],
)
def test_a_terminal_of_80_columns_is_enough_and_no_colour_is_needed(
    invoke: Invoke, config: Path, arguments: list[str]
) -> None:
    result = invoke("plan", config, "--count", *arguments)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout
    assert "█" in result.stdout


def test_a_bar_is_as_long_as_its_bin_is_full(invoke: Invoke, config: Path) -> None:
    planned = bins_of(invoke, config, "--ranks", 3)
    bars = [line.count("█") for line in invoke("plan", config, "--ranks", 3).stdout.splitlines() if "█" in line]
    sizes = [entry["bytes"] for entry in planned.values()]
    assert np.allclose(bars, np.array(sizes) / max(sizes) * max(bars), atol=1)


# --- balance ---


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 2**40)))
def test_balance_is_what_its_words_say(amounts: np.ndarray) -> None:
    epochs = range(3, 3 + len(amounts))
    balance = derive_balance(epochs, amounts)
    rows = amounts.tolist()

    def ratio(numbers: list[int]) -> float:
        return max(numbers) / (sum(numbers) / len(numbers)) if any(numbers) else 1.0

    assert balance.among_ranks == pytest.approx(max(map(ratio, rows)))
    assert balance.among_epochs == pytest.approx(ratio([sum(row) for row in rows]))
    assert ratio(rows[balance.worst_epoch - 3]) == pytest.approx(balance.among_ranks)
    assert rows[balance.worst_epoch - 3][balance.worst_rank] == max(rows[balance.worst_epoch - 3])
    assert balance.lost == sum(number - min(row) for row in rows for number in row)
    assert balance.total == sum(map(sum, rows))
    assert 0 <= balance.lost_share < 1 or balance.lost == balance.total


def test_what_is_unknown_in_one_bin_is_in_no_balance() -> None:
    amounts = Amounts(
        range(1, 2), {"files": np.array([[1, 1]]), "bytes": np.array([[5, 6]]), "sequences": np.array([[3, UNKNOWN]])}
    )
    assert amounts.balanced == ["bytes"]
    assert amounts.shown == ["files", "bytes", "sequences"]
    assert amounts.drawn == amounts.lost_by == "bytes"
