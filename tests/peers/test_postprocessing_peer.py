"""Our `PostprocessingDataset` against RETURNN's, where it is installed: same functions, same streams."""

import copy
import warnings

import numpy as np
import pytest

from headrace.datasets import LaplaceOrdering, Sequential, TakesTensorDict, init_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset
    peer = pytest.importorskip("returnn.datasets.postprocessing")
    from returnn.tensor import Dim, Tensor, TensorDict

pytestmark = pytest.mark.filterwarnings("ignore")


def corpus(seed):
    rng = np.random.default_rng(seed)
    data = [
        {"data": rng.normal(size=(n, 2)).astype("float32"), "classes": rng.integers(0, 9, n).astype("int32")}
        for n in rng.integers(1, 9, int(rng.integers(5, 40)))
    ]
    return {"class": "StaticDataset", "data": data, "output_dim": {"data": (2, 2), "classes": (9, 1)}}


def double(data, **kwargs):
    return {**data, "data": 2 * data["data"] + kwargs["seq_idx"] + 100 * kwargs["epoch"]}


def peer_double(data, **kwargs):
    tensor = data.data["data"]
    tensor.raw_tensor = 2 * tensor.raw_tensor + kwargs["seq_idx"] + 100 * kwargs["epoch"]
    return data


def noisy(iterator, *, rng, **kwargs):
    for data in iterator:
        for _ in range(rng.randint(3)):
            yield {**data, "data": data["data"] + np.float32(rng.rand())}


def peer_noisy(iterator, *, rng, **kwargs):
    for data in iterator:
        before = data.data["data"].raw_tensor
        for _ in range(rng.randint(3)):
            data = copy.copy(data)
            data.data = {**data.data, "data": data.data["data"].copy()}
            data.data["data"].raw_tensor = before + np.float32(rng.rand())
            yield data


def longer(iterator, *, rng, **kwargs):
    for data in iterator:
        yield {**data, "classes": np.repeat(data["classes"], rng.randint(1, 4))}


def peer_longer(iterator, *, rng, **kwargs):
    for data in iterator:
        tensor = data.data["classes"]
        tensor.raw_tensor = np.repeat(tensor.raw_tensor, rng.randint(1, 4))
        yield data


def stream(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    found, seq_idx = [], 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        arrays = {key: dataset.get_data(seq_idx, key) for key in sorted(dataset.get_data_keys())}
        found.append(
            (
                dataset.get_tag(seq_idx),
                round(float(dataset.get_complete_frac(seq_idx)), 5),
                {key: (array.dtype.name, array.tolist()) for key, array in arrays.items()},
            )
        )
        seq_idx += 1
    return found


def assert_same(inner, ours, theirs, epochs=(1, 2, 5)):
    options = {"class": "PostprocessingDataset", "dataset": inner}
    expected = peer_init_dataset({**options, **theirs})
    with init_dataset({**options, **ours}) as found:
        for epoch in epochs:
            assert stream(found, epoch) == stream(expected, epoch)
        assert found.num_outputs["data"][0] == expected.num_outputs["data"][0]
        expected.finish_epoch(free_resources=True)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "order", [{}, {"seq_ordering": "random", "partition_epoch": 2}, {"seq_ordering": "laplace:.5"}]
)
def test_map_seq(seed, order):
    assert_same({**corpus(seed), **order}, {"map_seq": double}, {"map_seq": peer_double})


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("options", [{}, {"random_seed_offset": 7}, {"fixed_random_seed": 3}])
def test_a_stream_function_draws_the_same_numbers(seed, options):
    assert_same(corpus(seed), {"map_seq_stream": noisy, **options}, {"map_seq_stream": peer_noisy, **options})


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("seqs_per_bin", [1, 3, 10, 100])
def test_laplace_ordering(seed, seqs_per_bin):
    inner = {**corpus(seed), "seq_ordering": "random"}
    assert_same(
        inner, {"map_seq_stream": LaplaceOrdering(seqs_per_bin)}, {"map_seq_stream": peer.LaplaceOrdering(seqs_per_bin)}
    )
    assert_same(
        inner,
        {"map_seq_stream": Sequential(longer, LaplaceOrdering(seqs_per_bin, length_key="classes"))},
        {"map_seq_stream": peer.Sequential(peer_longer, peer.LaplaceOrdering(seqs_per_bin, length_key="classes"))},
    )


def annotated(data: TensorDict, *, rng, **kwargs) -> TensorDict:
    del rng
    made = TensorDict()
    array = data["data"].raw_tensor
    dims = [Dim(None, name="time"), Dim(1, name="feature")]
    made.data["data"] = Tensor("data", dims=dims, dtype="float32")
    made.data["data"].raw_tensor = array[:, :1] + kwargs["seq_idx"] + int(data["seq_idx"].raw_tensor)
    made.data["classes"] = data["classes"]
    return made


def test_functions_for_the_peer_run_unchanged():
    outputs = {"map_outputs": {"data": {"shape": (None, 1), "dtype": "float32"}, "classes": {"dim": 9, "sparse": True}}}
    inner = {**corpus(1), "seq_ordering": "random"}
    with init_dataset({"class": "PostprocessingDataset", "dataset": inner, "map_seq": annotated, **outputs}) as found:
        plain = init_dataset(inner)
        for seq, before in zip(found.epoch(1), plain.epoch(1), strict=True):
            np.testing.assert_array_equal(seq["data"], before["data"][:, :1] + seq.seq_idx + seq.seq_idx)
            np.testing.assert_array_equal(seq["classes"], before["classes"])
    ordering = peer.LaplaceOrdering(3)
    for function in (ordering, peer.Sequential(peer_longer, ordering)):
        assert_same(inner, {"map_seq_stream": function}, {"map_seq_stream": function})
    for function, wrapped in (({"map_seq": peer_double}, {"map_seq": TakesTensorDict(peer_double)}),):
        assert_same(inner, wrapped, function)


@pytest.mark.long  # the peer starts its processes anew for each epoch
@pytest.mark.parametrize("num_workers", [2, 3])
def test_streams_of_several_workers(num_workers):
    options = {"num_workers": num_workers, "buf_size": 2}
    assert_same(
        corpus(1), {"map_seq_stream": noisy, **options}, {"map_seq_stream": peer_noisy, **options}, epochs=(1, 2)
    )
