"""Trainings by trainers of others on a few ranks: what the tests of the trainers start, each rank in a process.

A rank writes a line for each batch that it trains on: the sequences in it, and the loss. The processes are forks of one
that has imported the trainers once (`forkserver`), which takes most of the time of a short training.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headrace import Buckets, DataLoader, FixedCount, FrameBudget, Pack, StaticDataset
from headrace.batching import Batching

NUM_SEQS, VOCABULARY = 36, 40
_PRELOAD = [
    "torch",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "accelerate",
    "lightning",
    "headrace.adapters.torch.loaders",
]
_OF_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "NODE_RANK",
    "GROUP_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "MASTER_",
    "ACCELERATE",
)

Job = Callable[..., None]
Records = list[Any]


def free_port() -> int:
    """Return a port that is still free when the ranks come to use it.

    It is below those that the kernel gives to whoever asks for any, and each test process looks from another one on.
    """
    for port in range(10_000 + os.getpid() * 37 % 20_000, 32_768):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def run_ranks(
    job: Job, folder: Path, world_size: int, kill_at: int | None = None, fails: bool = False, **options: Any
) -> str:
    """Run a job on some ranks, wait for them, and return what they print.

    Args:
        job: Called on each rank as `job(folder, kill_at, **options)`.
        folder: Where the ranks keep their checkpoints and records.
        world_size: How many ranks there are.
        kill_at: The step after which each rank is killed; None: none is.
        fails: Whether each rank ends with an error.
        options: For the job.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _PRELOAD if find_spec(name.partition(".")[0])])
    folder.mkdir(exist_ok=True)
    port = free_port()
    ranks = [
        context.Process(target=_run_rank, args=(job, folder, kill_at, options, rank, world_size, port))
        for rank in range(world_size)
    ]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(240)
        expected = -signal.SIGKILL if kill_at is not None else int(fails)
        text = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        assert [rank.exitcode for rank in ranks] == [expected] * world_size, text
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return text


def _run_rank(
    job: Job, folder: Path, kill_at: int | None, options: Mapping[str, Any], rank: int, world_size: int, port: int
) -> None:
    with open(folder / f"{rank}.log", "w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    for name in [name for name in os.environ if name.startswith(_OF_LAUNCHERS)]:
        del os.environ[name]
    os.environ |= {"HEADRACE_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    if world_size > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TEST_RANK"] = str(rank)
    import torch

    torch.set_num_threads(1)
    job(folder, kill_at, **options)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    sys.stdout.flush()


class Recorder:
    """Writes what a rank trains on, and kills it.

    Args:
        folder: For the records.
        kill_at: After so many batches of this process; None: never.
    """

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        num_before = len(list(folder.glob(f"{os.environ['TEST_RANK']}-*.jsonl")))
        path = folder / f"{os.environ['TEST_RANK']}-{num_before}.jsonl"
        self._file = open(path, "w")  # noqa: SIM115 - until the process ends
        self._kill_at, self._num = kill_at, 0

    def record(self, tokens: Any, loss: Any, *more: Any) -> None:
        """Take note of a batch, `int[B, T]`, of which the first token of each sequence is its number."""
        self._file.write(json.dumps([tokens[:, 0].tolist(), loss.item(), *more]) + "\n")
        self._file.flush()

    def end_step(self) -> None:
        """Die here, if this is the step."""
        self._num += 1
        if self._num == self._kill_at:
            if find_spec("torch") and __import__("torch").distributed.is_initialized():
                __import__("torch").distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def read_records(folder: Path, rank: int) -> list[Records]:
    """Return what a rank has written, one list for each process that it was."""
    paths = sorted(folder.glob(f"{rank}-*.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def open_loader(batching: str | Batching = "equal", num_workers: int = 0, **options: Any) -> DataLoader:
    """Return a loader of token sequences; the first token of each is its number."""
    rng = np.random.default_rng(1)
    seqs = []
    for number in range(NUM_SEQS):
        tokens = rng.integers(0, VOCABULARY, int(rng.integers(3, 12)))
        tokens[0] = number
        seqs.append({"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": tokens})
    kinds = {"equal": FixedCount(3), "budget": FrameBudget(30), "buckets": Buckets(FrameBudget(30), num_buckets=3)}
    dataset = StaticDataset(seqs, seq_ordering="random")
    options = {"pad_values": {"labels": -100}, "seed": 3, **options}
    return DataLoader(dataset, batching=kinds.get(batching, batching), num_workers=num_workers, **options)


def run_script(folder: Path, kill_at: int | None, code: str) -> None:
    """Run a script as a program, in a folder."""
    del kill_at
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    path = folder / "script.py"
    path.write_text(code)
    runpy.run_path(str(path), run_name="__main__")


# --- the trainers ---


def train_by_transformers(
    folder: Path, kill_at: int | None, batching: str = "equal", num_workers: int = 0, **arguments: Any
) -> None:
    """Train by transformers' Trainer, which resumes if there is a checkpoint."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

    from headrace.adapters.transformers import HeadraceTrainer

    recorder = Recorder(folder, kill_at)

    class Trainer(HeadraceTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            assert type(inputs) is dict
            loss = super().training_step(model, inputs, *args, **kwargs)
            recorder.record(inputs["input_ids"], loss)
            return loss

        def _maybe_log_save_evaluate(self, *args, **kwargs):
            super()._maybe_log_save_evaluate(*args, **kwargs)
            recorder.end_step()

    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=16))
    defaults = {"num_train_epochs": 3, "save_steps": 3, "gradient_accumulation_steps": 2, "learning_rate": 1e-2}
    args = TrainingArguments(
        str(folder / "out"),
        **{**defaults, **arguments},
        use_cpu=True,
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
    checkpoints = list((folder / "out").glob("checkpoint-*"))
    with open_loader(batching, num_workers) as loader, open_loader("equal") as held_out:
        trainer = Trainer(model, args, train_dataset=loader, eval_dataset=held_out)
        trainer.train(resume_from_checkpoint=bool(checkpoints))
        (folder / f"losses-{os.environ['TEST_RANK']}.json").write_text(json.dumps(trainer.state.log_history))


def train_by_lightning(
    folder: Path, kill_at: int | None, batching: str = "equal", num_workers: int = 0, every: int = 3, **arguments: Any
) -> None:
    """Train by Lightning's Trainer, which resumes if there is a checkpoint."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from headrace.adapters.lightning import HeadraceDataModule

    recorder = Recorder(folder, kill_at)

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.embed, self.out = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY)

        def loss(self, batch):
            assert len(batch.tags) == len(batch["input_ids"])
            assert batch.lengths["input_ids"].dtype == torch.int32
            scores = self.out(self.embed(batch["input_ids"]))
            return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            recorder.record(batch["input_ids"], loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    class Killer(ModelCheckpoint):
        def on_train_batch_end(self, *args, **kwargs):
            super().on_train_batch_end(*args, **kwargs)
            recorder.end_step()

    torch.manual_seed(1)
    saver = Killer(folder / "out", save_last=True, every_n_train_steps=every)
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    options = {"max_epochs": 3, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        callbacks=[saver],
        **{**options, **arguments},
    )
    last = folder / "out" / "last.ckpt"
    data = HeadraceDataModule(lambda: open_loader(batching, num_workers), [lambda: open_loader("equal")])
    trainer.fit(Model(), data, ckpt_path=last if last.exists() else None)


def train_by_accelerate(
    folder: Path,
    kill_at: int | None,
    batching: str = "equal",
    num_workers: int = 0,
    accumulate: int = 1,
    every: int = 3,
    **options: Any,
) -> None:
    """Train by a loop with accelerate, which resumes if there is a checkpoint."""
    import torch
    from accelerate import Accelerator

    from headrace.adapters.accelerate import prepare_loader

    recorder = Recorder(folder, kill_at)
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **options)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with open_loader(batching, num_workers) as given:
        loader = prepare_loader(accelerator, given)
        model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
        assert prepared is loader
        checkpoint, num = folder / "out", 0
        if checkpoint.exists():
            accelerator.load_state(str(checkpoint))
        for epoch in range(loader.epoch, 3):
            loader.set_epoch(epoch)
            for batch in loader:
                with accelerator.accumulate(model):
                    scores = model(batch["input_ids"])
                    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                recorder.record(batch["input_ids"], loss, accelerator.sync_gradients)
                num += accelerator.sync_gradients
                if accelerator.sync_gradients and num % every == 0:
                    accelerator.save_state(str(checkpoint))
                recorder.end_step()
    accelerator.end_training()


def read_by_accelerate(folder: Path, kill_at: int | None) -> None:
    """Compare a `headrace.torch.DataLoader` that accelerate divides with one of torch's, and resume it in mid-epoch."""
    import pytest
    import torch
    from accelerate import Accelerator
    from torch.utils import data

    from headrace import ConfigError, ResumeError
    from headrace.adapters.accelerate import prepare_loader
    from headrace.torch import DataLoader

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(22))

    del kill_at
    accelerator = Accelerator(cpu=True)

    def make(kind):
        torch.manual_seed(1)
        return kind(data.TensorDataset(torch.rand(22, 1), torch.arange(22)), 4, shuffle=True, num_workers=1)

    of_torch = accelerator.prepare(make(data.DataLoader))
    expected = [[numbers.tolist() for _, numbers in of_torch] for _ in range(3)]
    loader = prepare_loader(accelerator, make(DataLoader))
    assert type(loader.base_dataloader) is DataLoader
    given = []
    for epoch in range(3):
        given.append([])
        for step, (_, numbers) in enumerate(loader):
            given[-1].append(numbers.tolist())
            if (epoch, step) == (1, 1):
                accelerator.save_state(str(folder / "out"))
    assert given == expected
    accelerator.load_state(str(folder / "out"))
    assert [numbers.tolist() for _, numbers in loader] == expected[1][2:]
    assert [numbers.tolist() for _, numbers in loader] == expected[2]
    (states,) = accelerator._custom_objects
    saved = states.state_dict()
    assert len(saved["ranks"]) == accelerator.num_processes == 2
    with pytest.raises(ResumeError, match="saved by 1 processes, and there are 2"):
        states.load_state_dict({"ranks": saved["ranks"][:1]})
    with pytest.raises(ConfigError, match="read all batches in one process"):
        prepare_loader(accelerator, DataLoader(Stream(), 4))
    loader.base_dataloader.close()
    accelerator.end_training()


# --- evaluations: each number once in loss and metrics ---


def open_held_out(num_seqs: int) -> DataLoader:
    """Return a loader of numbers in batches of 4, for ranks out of step; the first frame of each has a label."""
    seqs = []
    for number in range(num_seqs):
        frames = number % 3 + 1
        seqs.append({"number": np.full(frames, number, np.float32), "labels": np.where(np.arange(frames), -100, 1)})
    pad_values = {"number": -1, "labels": -100}
    return DataLoader(StaticDataset(seqs), batching=FixedCount(4), pad_values=pad_values, remainder="keep")


def evaluate_by_transformers(folder: Path, kill_at: int | None, num_seqs: int) -> None:
    """Evaluate by two of transformers' Trainers."""
    import torch
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    from headrace.adapters.transformers import HeadraceTrainer, HeadraceTrainerMixin

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, number, labels, num_items_in_batch=None):
            losses, is_first = number * self.weight, labels != -100
            return {"loss": losses[is_first].sum() / (num_items_in_batch or is_first.sum()), "logits": losses}

    class OfSeq2Seq(HeadraceTrainerMixin, Seq2SeqTrainer):
        pass

    def measure(prediction):
        assert len(prediction.label_ids) == len(prediction.predictions)
        return {"numbers": sorted(prediction.predictions[:, 0].tolist())}

    del kill_at
    args = Seq2SeqTrainingArguments(str(folder / "out"), use_cpu=True, report_to="none", disable_tqdm=True)
    with open_held_out(num_seqs) as held_out:
        for kind in (HeadraceTrainer, OfSeq2Seq):
            found = kind(Model(), args, eval_dataset=held_out, compute_metrics=measure).evaluate()
            assert found["eval_numbers"] == list(range(num_seqs)), found
            assert abs(found["eval_loss"] - (num_seqs - 1) / 2) < 1e-5, found
    assert (args.per_device_eval_batch_size, args.average_tokens_across_devices) == (8, True)


def evaluate_by_lightning(folder: Path, kill_at: int | None, num_seqs: int) -> None:
    """Evaluate by Lightning's Trainer."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torchmetrics import MeanMetric

    from headrace.adapters.lightning import HeadraceDataModule

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(1)  # DDP shares its buffers in each step
            self.mean, self.seen = MeanMetric(), []

        def validation_step(self, batch, batch_idx):
            numbers = batch["number"][:, 0]
            self.norm(numbers[:, None])
            self.seen += numbers.tolist()
            self.mean.update(numbers.mean(), weight=len(numbers))
            self.log("val_loss", self.mean)

    world_size = int(os.environ.get("WORLD_SIZE", 1))
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = "ddp" if world_size > 1 else "auto"
    trainer = Trainer(accelerator="cpu", devices=world_size, strategy=strategy, **options)
    model, data = Model(), HeadraceDataModule(val=lambda: open_held_out(num_seqs))
    (found,) = trainer.validate(model, data, verbose=False)
    assert abs(found["val_loss"] - (num_seqs - 1) / 2) < 1e-5, found
    (folder / f"seen-{os.environ['TEST_RANK']}.json").write_text(json.dumps(model.seen))


def evaluate_by_accelerate(folder: Path, kill_at: int | None, num_seqs: int) -> None:
    """Evaluate in a loop with accelerate."""
    from accelerate import Accelerator

    from headrace.adapters.accelerate import prepare_eval_loader

    accelerator = Accelerator(cpu=True)
    with open_held_out(num_seqs) as given:
        loader = prepare_eval_loader(accelerator, given)
        for _ in range(2):
            numbers, tags = [], []
            for batch in loader:
                numbers += accelerator.gather_for_metrics(batch["number"][:, 0]).tolist()
                tags += accelerator.gather_for_metrics(batch.tags, use_gather_object=True)
                is_repeat = batch.is_repeat
            assert sorted(numbers) == list(range(num_seqs))
            assert len(set(tags)) == len(tags) == num_seqs
        assert is_repeat == (accelerator.process_index >= num_seqs % accelerator.num_processes > 0)


def save_by_torchtitan(folder: Path, kill_at: int | None, num_steps: int) -> None:
    """Take some steps from a loader of torchtitan, from its checkpoint if there is one, and save another."""
    import torch
    import torch.distributed.checkpoint as checkpoint

    from headrace.adapters.torchtitan import HeadraceDataLoader

    del kill_at
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    config = HeadraceDataLoader.Config(make_loader="peers.trainer_jobs:make_packed_loader")
    loader = config.build(
        dp_rank=rank, dp_world_size=world_size, tokenizer=None, seq_len=24, local_batch_size=2, snapshot_every_n_steps=1
    )
    states, path = {"dataloader": loader}, str(folder / "out")
    if (folder / "out" / ".metadata").exists():  # the folder alone may be of a rank that is further
        checkpoint.load(states, checkpoint_id=path)
    recorder, batches = Recorder(folder, None), iter(loader)
    for _ in range(num_steps):
        inputs, labels = next(batches)
        assert inputs["input"].shape == labels.shape == inputs["positions"].shape == (2, 24)
        recorder.record(inputs["input"], labels.sum(), inputs["positions"].tolist())
    checkpoint.save(states, checkpoint_id=path)


def make_packed_loader(rank: int, world_size: int, batch_size: int, seq_len: int, tokenizer: Any) -> DataLoader:
    """Return what torchtitan reads."""

    def split(seq):
        return {"input": seq["input_ids"][:-1], "labels": seq["input_ids"][1:]}

    ranks = {"rank": rank, "world_size": world_size}
    return open_loader(Pack(seq_len, batch_size), transform=split, pad_values={"labels": -100}, **ranks)
