"""A loader in the training function of Ray Train: a worker dies, and the group goes on from the last checkpoint."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
ray = pytest.importorskip("ray", reason="needs headrace[ray-train]")
pytest.importorskip("ray.train.torch", reason="needs headrace[ray-train]")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

import torch  # noqa: E402

from headrace import Buckets, ConfigError, DataLoader, FrameBudget, RayExecutor, StaticDataset  # noqa: E402
from headrace.adapters.ray_train import prepare_loader  # noqa: E402

NUM_EPOCHS, SAVE_STEPS, DIE_AT = 2, 3, 5


def open_loader(**options: Any) -> DataLoader:
    seqs = [{"data": np.full((number % 7 + 2, 4), number, np.float32)} for number in range(40)]
    dataset = StaticDataset(seqs, seq_ordering="random")
    return DataLoader(dataset, batching=Buckets(FrameBudget(30), num_buckets=3), seed=1, **options)


def _train(config: dict[str, Any]) -> None:
    from ray import train
    from ray.train import Checkpoint
    from ray.train.torch import prepare_model

    torch.manual_seed(1)
    rank = train.get_context().get_world_rank()
    inner = torch.nn.Linear(4, 1)  # whose state is the same in a group of any size
    model = prepare_model(inner)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = train.get_checkpoint()
    record = open(Path(config["folder"], f"{rank}-{int(found is not None)}"), "w")  # noqa: SIM115
    with open_loader(**config["options"]) as loader:
        batches, num = prepare_loader(loader), 0
        parts = {"model": inner, "optimizer": optimizer, "loader": batches}
        if found is not None:
            with found.as_directory() as folder:
                saved = torch.load(Path(folder, "state.pt"))
            for name, part in parts.items():
                part.load_state_dict(saved[name])
        for _ in range(batches.epoch, NUM_EPOCHS):
            for batch in batches:
                loss = model(batch["data"]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(json.dumps([batch.tags, loss.item()]), file=record, flush=True)
                num += 1
                if num % SAVE_STEPS == 0:
                    with tempfile.TemporaryDirectory() as folder:
                        torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder, "state.pt"))
                        train.report({}, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)
                if found is None and num == DIE_AT:
                    train.get_all_reported_checkpoints()  # waits until the controller has taken it in
                    torch.distributed.barrier()
                    os._exit(9)


def _fit(folder: Path, group_size: int, max_failures: int = 0, **options: Any) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a script's functions, as in a script
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        _train,
        train_loop_config={"folder": str(folder), "options": options},
        scaling_config=ScalingConfig(num_workers=group_size),
        run_config=RunConfig(
            storage_path=str(folder / "storage"), name="run", failure_config=FailureConfig(max_failures=max_failures)
        ),
    ).fit()


def _steps(folder: Path, rank: int, part: int) -> list[tuple[list[str], float]]:
    """Return tags and loss of each step of a rank, of the first group (0) or of the one after it (1)."""
    return [tuple(json.loads(line)) for line in (folder / f"{rank}-{part}").read_text().splitlines()]


def test_a_group_of_workers_that_is_started_again_goes_on_with_the_next_batch(cluster: Any, tmp_path: Path) -> None:
    _fit(tmp_path, 2, max_failures=1)
    for rank in range(2):
        with open_loader(rank=rank, world_size=2) as loader:
            expected = [batch.tags for epoch in loader.epochs(1, NUM_EPOCHS) for batch in epoch]
        before, after = (_steps(tmp_path, rank, part) for part in (0, 1))
        assert [tags for tags, _ in before[:SAVE_STEPS] + after] == expected
        assert before[SAVE_STEPS:] == after[: DIE_AT - SAVE_STEPS]  # the same losses


def test_a_group_of_another_size_with_workers_on_the_cluster_reads_what_is_left(cluster: Any, tmp_path: Path) -> None:
    from ray.train import TrainingFailedError

    options = {"num_workers": 1, "executor": RayExecutor(num_cpus=0.1)}
    with pytest.raises(TrainingFailedError):
        _fit(tmp_path, 2, **options)
    _fit(tmp_path, 1, **options)
    with open_loader() as loader:
        expected = [sorted(batch.tags for batch in epoch) for epoch in loader.epochs(1, NUM_EPOCHS)]
    before = [tags for rank in range(2) for tags, _ in _steps(tmp_path, rank, 0)[:SAVE_STEPS]]
    after = [tags for tags, _ in _steps(tmp_path, 0, 1)]
    num = len(expected[0]) - len(before)
    assert [sorted(before + after[:num]), sorted(after[num:])] == expected


def test_the_script_of_the_page_trains_and_leaves_a_checkpoint(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "ray-train.md"
    (code,) = re.findall(r"```py\n(# train_ray.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    small = code.replace("ScalingConfig(num_workers=2)", "ScalingConfig(num_workers=1)")
    assert small != code  # one process, because it takes long to start each
    Path("train_ray.py").write_text(small)
    runpy.run_path("train_ray.py", run_name="__main__")
    assert list(Path("out", "run").glob("checkpoint_*/state.pt"))


def test_outside_of_a_worker_it_is_refused() -> None:
    with open_loader() as loader, pytest.raises(ConfigError, match="TorchTrainer"):
        prepare_loader(loader)
