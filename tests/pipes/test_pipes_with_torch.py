"""What needs torch: fullsync over gloo, tensors in collate and caches, our operations on torch's pipes."""

import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from headrace.pipes.iter import FullSync, IterableWrapper, PrefetchTimeoutError, default_collate  # noqa: E402
from headrace.pipes.ops.buffers.memory_cache import num_bytes  # noqa: E402

pytestmark = pytest.mark.extra

PROGRAM = textwrap.dedent(
    """
    import sys, time
    import torch.distributed as dist
    from headrace.pipes.iter import IterableWrapper, PrefetchTimeoutError

    rank, path, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)

    def work(number):
        if what == "fail" and rank == 1 and number == 2:
            raise KeyError("two")
        if what == "slow" and rank == 1 and number == 2:
            time.sleep(8)
        return number

    pipe = IterableWrapper(range(4 + 3 * rank)).map(work).fullsync(timeout=1 if what == "slow" else 60)
    for epoch in range(2):
        items = []
        try:
            for item in pipe:
                items.append(item)
        except (KeyError, RuntimeError) as error:
            print(items, type(error).__name__, flush=True)
            break
        print(items, flush=True)
    dist.destroy_process_group()
    """
)


def run_ranks(tmp_path, what):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "meet"), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=240)[0].strip().split("\n") for rank in ranks]


def test_all_ranks_end_with_the_shortest(tmp_path):
    assert run_ranks(tmp_path, "good") == [["[0, 1, 2, 3]"] * 2] * 2


@pytest.mark.long
def test_an_error_on_one_rank_ends_all(tmp_path):
    assert run_ranks(tmp_path, "fail") == [["[0, 1] RuntimeError"], ["[0, 1] KeyError"]]


@pytest.mark.long
def test_a_rank_that_is_too_slow_is_an_error_on_all(tmp_path):
    ranks = [printed for (printed,) in run_ranks(tmp_path, "slow")]
    assert all(re.fullmatch(r"\[(0(, 1)?)?\] \w+Error", printed) for printed in ranks), ranks
    assert any("PrefetchTimeoutError" in printed for printed in ranks), ranks


def test_fullsync_needs_a_process_group():
    with pytest.raises(RuntimeError, match="required to be initialized"):
        list(FullSync(IterableWrapper([1])))
    assert not FullSync(IterableWrapper([1])).is_replicable()
    assert str(PrefetchTimeoutError(3)) == "Fail to fetch data within 3 seconds"


def test_items_with_tensors_are_collated_by_torch():
    batch = default_collate([{"x": torch.ones(2), "n": 1}, {"x": torch.zeros(2), "n": 2}])
    assert isinstance(batch["n"], torch.Tensor)
    assert batch["x"].shape == (2, 2)


def test_the_bytes_of_a_tensor_count():
    assert num_bytes(torch.zeros(1000)) > 4000


def test_our_operations_work_on_torchs_pipes_and_torchs_pipes_in_ours():
    from torch.utils.data.datapipes.iter import IterableWrapper as TorchWrapper

    assert list(TorchWrapper(range(5)).header(3)) == [0, 1, 2]
    assert list(IterableWrapper(range(2)).zip(TorchWrapper("ab"))) == [(0, "a"), (1, "b")]
    assert list(TorchWrapper(range(6)).prefetch(2).map(abs)) == [0, 1, 2, 3, 4, 5]
