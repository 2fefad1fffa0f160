"""Trainers of others over loaders, on one process and on two, killed in mid-epoch: the same batches and losses."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from peers import trainer_jobs as jobs

pytestmark = pytest.mark.extra

JOBS = {
    "transformers": jobs.train_by_transformers,
    "lightning": jobs.train_by_lightning,
    "accelerate": jobs.train_by_accelerate,
}
PAGES = Path(__file__).parents[2] / "docs" / "how-to"
SEVERAL = {"batching": "buckets", "num_workers": 1}


def check_resumed(whole: Path, cut: Path, world_size: int) -> None:
    """Check that two processes, one after the other, have trained as one has: the same batches, the same losses."""
    for rank in range(world_size):
        (expected,), (before, after) = jobs.read_records(whole, rank), jobs.read_records(cut, rank)
        assert before == expected[: len(before)]
        assert after == expected[-len(after) :]
        assert len(expected) <= len(before) + len(after) < len(expected) + 7  # from the last checkpoint
        assert 0 < len(after) < len(expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "world_size", "kill_at", "options"),
    [
        ("transformers", 1, 9, {"save_steps": 4}),
        ("transformers", 2, 3, {**SEVERAL, "save_steps": 2, "eval_strategy": "epoch"}),
        ("lightning", 1, 20, SEVERAL),
        ("lightning", 1, 13, {"every": 12}),  # a checkpoint after the last batch of an epoch
        ("lightning", 2, 8, {"val_check_interval": 2}),
        ("accelerate", 1, 17, {"accumulate": 5, "every": 1}),
        ("accelerate", 1, 13, {"every": 12}),
        ("accelerate", 2, 8, SEVERAL),
    ],
)
def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, trainer, world_size, kill_at, options):
    pytest.importorskip(trainer)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    jobs.run_ranks(JOBS[trainer], whole, world_size, **options)
    jobs.run_ranks(JOBS[trainer], cut, world_size, kill_at=kill_at, **options)
    jobs.run_ranks(JOBS[trainer], cut, world_size, **options)
    check_resumed(whole, cut, world_size)
    if trainer == "transformers":
        losses = [json.loads((folder / "losses-0.json").read_text()) for folder in (whole, cut)]
        losses = [[(line["step"], line["loss"]) for line in lines if "loss" in line] for lines in losses]
        assert losses[0] == losses[1]


@pytest.mark.long
def test_a_training_goes_on_with_fewer_processes(tmp_path):
    pytest.importorskip("accelerate")
    jobs.run_ranks(jobs.train_by_accelerate, tmp_path, 2, kill_at=4)
    jobs.run_ranks(jobs.train_by_accelerate, tmp_path, 1)
    before = [jobs.read_records(tmp_path, rank)[0] for rank in range(2)]
    (after,) = jobs.read_records(tmp_path, 0)[1:]
    trained = [ids for records in (*(one[:3] for one in before), after) for ids, *_ in records]
    assert Counter(idx for ids in trained for idx in ids) == dict.fromkeys(range(jobs.NUM_SEQS), 3)


EVALUATIONS = {
    "transformers": jobs.evaluate_by_transformers,
    "lightning": jobs.evaluate_by_lightning,
    "accelerate": jobs.evaluate_by_accelerate,
}


@pytest.mark.long
@pytest.mark.parametrize("trainer", EVALUATIONS)
def test_an_evaluation_counts_each_sequence_once_on_two_ranks(tmp_path, trainer):
    pytest.importorskip(trainer)
    jobs.run_ranks(EVALUATIONS[trainer], tmp_path, 2, num_seqs=19)
    if trainer == "lightning":
        seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
        assert sorted(seen[0] + seen[1]) == list(range(19))


@pytest.mark.long
def test_accelerate_divides_a_loader_like_torchs_and_its_position_is_saved(tmp_path):
    pytest.importorskip("accelerate")
    jobs.run_ranks(jobs.read_by_accelerate, tmp_path, 2)


@pytest.mark.long
def test_the_step_of_the_trainer_of_transformers_is_compared_with_that_of_the_loader(tmp_path):
    pytest.importorskip("transformers")
    train = jobs.train_by_transformers
    jobs.run_ranks(train, tmp_path, 1, kill_at=4)
    text = jobs.run_ranks(train, tmp_path, 1, fails=True, gradient_accumulation_steps=1)
    assert "the Trainer goes on at batch 3 of its epoch, and the loader at batch 6" in text
    jobs.run_ranks(train, tmp_path, 1, gradient_accumulation_steps=1, ignore_data_skip=True, max_steps=5)
    before, refused, after = jobs.read_records(tmp_path, 0)
    assert refused == []
    ids = [ids for ids, _ in [*before[:6], *after]]
    assert sorted(idx for part in ids for idx in part) == sorted({idx for part in ids for idx in part})
    assert len(ids) == 8
    state = next((tmp_path / "out").glob("checkpoint-5/trainer_state.json"))
    saved = json.loads(state.read_text())
    del saved["stateful_callbacks"]["HeadraceCallback"]
    state.write_text(json.dumps(saved))
    assert "no position of the loader" in jobs.run_ranks(train, tmp_path, 1, fails=True)


@pytest.mark.long
def test_checkpoints_of_torchtitan_hold_the_position_for_any_number_of_ranks(tmp_path):
    pytest.importorskip("torchtitan")
    save = jobs.save_by_torchtitan
    jobs.run_ranks(save, tmp_path / "whole", 1, num_steps=10)
    jobs.run_ranks(save, tmp_path / "cut", 2, num_steps=2)
    jobs.run_ranks(save, tmp_path / "cut", 1, num_steps=6)
    ((expected,), first, (second,)) = (
        jobs.read_records(tmp_path / "whole", 0),
        jobs.read_records(tmp_path / "cut", 0),
        jobs.read_records(tmp_path / "cut", 1),
    )
    assert [first[0][0], second[0], first[0][1], second[1], *first[1]] == expected


@pytest.mark.long
@pytest.mark.parametrize("trainer", JOBS)
def test_the_script_of_a_page_trains_and_finds_its_checkpoint(tmp_path, trainer):
    pytest.importorskip(trainer)
    (code,) = re.findall(r"```py\n(# train_.*?)```", (PAGES / f"{trainer}.md").read_text(), re.DOTALL)
    jobs.run_ranks(jobs.run_script, tmp_path, 2 if trainer == "accelerate" else 1, code=code)
    assert any((tmp_path / "out").iterdir())
    jobs.run_ranks(jobs.run_script, tmp_path, 1, code=code)


@pytest.mark.long
def test_the_function_of_the_page_of_torchtitan_makes_what_the_model_gets(tmp_path):
    pytest.importorskip("torchtitan")
    (code,) = re.findall(r"```py\n(# my_data.*?)```", (PAGES / "torchtitan.md").read_text(), re.DOTALL)
    more = """
import sys
sys.modules["my_data"] = sys.modules["__main__"]
from headrace.adapters.torchtitan import HeadraceDataLoader
sys.modules["my_data"].make_loader = make_loader
config = HeadraceDataLoader.Config(make_loader="my_data:make_loader")
loader = config.build(dp_rank=1, dp_world_size=2, tokenizer=None, seq_len=256, local_batch_size=4)
inputs, labels = next(iter(loader))
assert {key: tuple(value.shape) for key, value in inputs.items()} == {"input": (4, 256), "positions": (4, 256)}
assert labels.shape == (4, 256)
loader.loader.close()
"""
    jobs.run_ranks(jobs.run_script, tmp_path, 1, code=code + more)
