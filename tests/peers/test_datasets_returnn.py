"""Our datasets against RETURNN's own, where it is installed: same options, same answers."""

import warnings

import numpy as np
import pytest

import headrace.datasets
from headrace.datasets import init_dataset
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset
    returnn_basic = pytest.importorskip("returnn.datasets.basic")
    returnn_generating = pytest.importorskip("returnn.datasets.generating")
    PeerNumbersDict = pytest.importorskip("returnn.util.basic").NumbersDict

pytestmark = pytest.mark.filterwarnings("ignore")

ORDERINGS = [
    "default",
    "reverse",
    "random",
    "random:3",
    "sorted",
    "sorted_reverse",
    "laplace:3",
    "laplace:.5",
    "sort_bin_shuffle:4",
    "sort_bin_shuffle_x2:4",
]


@pytest.fixture(scope="module")
def hdf_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hdf") / "corpus.hdf"
    rng = np.random.default_rng(1)
    with HDFWriter(path, labels={"classes": [f"w{i}" for i in range(7)]}) as writer:
        for i in range(41):
            frames = int(rng.integers(1, 30))
            writer.append(
                f"tag-{i:03}",
                {
                    "data": rng.normal(size=(frames, 3)).astype("float32"),
                    "classes": rng.integers(0, 7, frames).astype("int32"),
                },
            )
    return str(path)


def read_all(dataset, epoch):
    dataset.init_seq_order(epoch=epoch)
    seqs, i = [], 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        seqs.append((dataset.get_tag(i), *(np.array(dataset.get_data(i, key)) for key in ("data", "classes"))))
        i += 1
    return seqs


def same(ours, theirs):
    assert [seq[0] for seq in ours] == [seq[0] for seq in theirs]
    for seq, peer in zip(ours, theirs, strict=True):
        for a, b in zip(seq[1:], peer[1:], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"partition_epoch": 3},
        {"random_seed_offset": 5},
        {"fixed_random_seed": 2},
        {"_num_shards": 3, "_shard_index": 1, "partition_epoch": 2},
        {"repeat_epoch": 2},
        {"window": 3},
    ],
)
def test_hdf_epochs_are_equal_to_the_bit(hdf_file, ordering, extra):
    config = {"class": "HDFDataset", "files": [hdf_file], "seq_ordering": ordering, **extra}
    ours, theirs = init_dataset(config), peer_init_dataset({**config, "use_cache_manager": False})
    for epoch in (1, 2, 5):
        same(read_all(ours, epoch), read_all(theirs, epoch))
    for key in ("data", "classes"):
        assert ours.get_data_dim(key) == theirs.get_data_dim(key)
        assert ours.is_data_sparse(key) == theirs.is_data_sparse(key)
        assert ours.get_data_dtype(key) == theirs.get_data_dtype(key)
    assert list(ours.get_data_keys()) == list(theirs.get_data_keys())
    assert list(ours.get_all_tags()) == list(theirs.get_all_tags())
    assert ours.get_total_num_seqs() == theirs.get_total_num_seqs()


@pytest.mark.parametrize("chunking", ["10:5", "7", (6, 2), {"data": 5, "classes": 5}])
@pytest.mark.parametrize("min_chunk_size", [0, 2])
def test_chunks_are_the_same(hdf_file, chunking, min_chunk_size):
    config = {"class": "HDFDataset", "files": [hdf_file], "chunking": chunking, "min_chunk_size": min_chunk_size}
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    ours.init_seq_order(epoch=1)
    theirs.init_seq_order(epoch=1)

    def plain(chunks):
        return [(i, *({k: int(n[k]) for k in ("data", "classes")} for n in (start, end))) for i, start, end in chunks]

    assert plain(ours.iterate_seqs()) == plain(theirs.iterate_seqs())


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 60},
        {"batch_size": 100, "max_seqs": 3},
        {"batch_size": 60, "max_pad_size": 10},
        {"batch_size": 60, "max_seq_length": 20, "min_seq_length": 5},
        {"batch_size": 50, "recurrent_net": False},
        {"batch_size": 1000, "packed_batch_size": 70},
    ],
)
@pytest.mark.parametrize("extra", [{}, {"chunking": "10:5"}, {"context_window": {"data": 4, "classes": 4}}])
def test_batches_are_the_same(hdf_file, options, extra):
    config = {"class": "HDFDataset", "files": [hdf_file], "seq_ordering": "laplace:3", **extra}
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    found = []
    for dataset in (ours, theirs):
        dataset.init_seq_order(epoch=2)
        peer_options = {
            k: (PeerNumbersDict(v) if dataset is theirs and k == "min_seq_length" else v) for k, v in options.items()
        }
        generator = dataset.generate_batches(**{"recurrent_net": True, **peer_options})
        batches = []
        while generator.has_more():
            (batch,) = generator.peek_next_n(1)
            batches.append(
                [
                    (
                        p.seq_idx,
                        int(p.seq_start_frame["data"]),
                        int(p.seq_end_frame["data"]),
                        p.batch_slice,
                        int(p.batch_frame_offset["data"]),
                    )
                    for p in batch.seqs
                ]
            )
            generator.advance(1)
        found.append(batches)
    assert found[0] == found[1]


def test_the_number_of_sequences_is_told_at_the_same_moments():
    found = []
    for module in (headrace.datasets, returnn_generating):
        dataset = module.StaticDataset([{"data": np.zeros((3, 2), "float32")}] * 4)
        numbers = [dataset.num_seqs]
        for start in (dataset.initialize, lambda: dataset.init_seq_order(1), dataset.init_seq_order):  # noqa: B023
            start()
            numbers.append(dataset.num_seqs)
        found.append(numbers)
    assert found[0] == found[1] == [4, 0, 4, 0]


@pytest.mark.parametrize("attributes", [
    {"chunk_size": 10, "chunk_step": 5}, {"chunk_size": 3}, {"chunk_size": 0, "chunk_step": 4},
    {"chunk_size": {"data": 4, "classes": 4}, "chunk_step": {"data": 2, "classes": 2}},
    {"custom_chunking_func": lambda dataset, seq_idx_start, **_: iter([(0, 1, 4), (2, 0, 3)])},
])  # fmt: skip
def test_chunks_that_are_set_as_attributes_are_cut(hdf_file, attributes):
    config = {"class": "HDFDataset", "files": [hdf_file], "seq_ordering": "random", "cache_byte_size": 0}
    found = []
    for make in (init_dataset, peer_init_dataset):
        dataset = make(config)
        for name, value in attributes.items():
            setattr(dataset, name, value)
        if make is peer_init_dataset and attributes == {"chunk_size": 3}:
            dataset.chunk_step = 3  # which is the default here
        dataset.init_seq_order(epoch=2)
        for recurrent_net in (True, False):
            chunks = [
                (i, *(part if isinstance(part, int) else (part["data"], part["classes"]) for part in parts))
                for i, *parts in dataset.iterate_seqs(recurrent_net=recurrent_net)
            ]
            found.append(chunks)
    assert found[:2] == found[2:]


def test_class_indices_that_are_no_classes_are_delivered():
    data = [{"data": np.zeros(3, "float32"), "classes": np.array([-1, 5, 12], "int16")}]
    config = {"class": "StaticDataset", "data": data, "output_dim": {"data": (1, 1), "classes": (10, 1)}}
    same(read_all(init_dataset(config), 1), read_all(peer_init_dataset(config), 1))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int16", "float32"])
def test_a_map_dataset_without_a_declared_dtype_delivers_what_it_has(dtype):
    def items(base):
        class Items(base):
            def __init__(self):
                super().__init__(data_types={"data": {"shape": (None, 3)}, "classes": {"sparse": True, "dim": 9}})

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return {"data": np.full((index + 1, 3), index, dtype), "classes": np.full(2, index, "int64")}

        return Items

    from returnn.datasets.map import MapDatasetBase as PeerMapDatasetBase

    from headrace.datasets import MapDatasetBase

    ours = init_dataset({"class": "MapDatasetWrapper", "map_dataset": items(MapDatasetBase)})
    theirs = peer_init_dataset({"class": "MapDatasetWrapper", "map_dataset": items(PeerMapDatasetBase)})
    assert ours.get_data_dtype("data") == dtype
    same(read_all(ours, 1), read_all(theirs, 1))


def test_labels_make_the_same_text():
    cases = [
        ([chr(byte) for byte in range(256)], np.array(list("wër".encode()), "uint8")),
        ([chr(byte) for byte in range(256)], np.array(ord("w"), "uint8")),
        (list("abcdef"), np.array([0, 5, 2], "int32")),
        (list("abcdef"), np.array(4, "int32")),
        (["one", "two"], np.array([1, 0, 1], "int32")),
        ([chr(97 + i % 26) for i in range(1000)], np.array([1, 0, 1], "int32")),
    ]
    for labels, indices in cases:
        config = {"class": "StaticDataset", "data": [{"data": np.atleast_1d(indices)}]}
        texts = []
        for make in (init_dataset, peer_init_dataset):
            dataset = make({**config, "output_dim": {"data": (len(labels), 1)}})
            dataset.labels["data"] = labels
            texts.append(dataset.serialize_data(key="data", data=indices))
        assert texts[0] == texts[1]


def test_static_datasets_are_equal():
    data = [
        {"data": np.full((i % 5 + 1, 2), i, "float32"), "classes": np.arange(i % 3 + 1, dtype="int32")}
        for i in range(20)
    ]
    config = {"class": "StaticDataset", "data": data, "output_dim": {"data": (2, 2), "classes": (3, 1)}, "input_dim": 2}
    for ordering in ORDERINGS:
        options = {**config, "seq_ordering": ordering, "partition_epoch": 2}
        ours, theirs = init_dataset(options), peer_init_dataset(options)
        for epoch in (1, 2, 3):
            same(read_all(ours, epoch), read_all(theirs, epoch))


@pytest.mark.parametrize("num_workers", [2, 3])
def test_dedicated_workers_take_turns_as_theirs_do(hdf_file, num_workers):
    inner = {"class": "HDFDataset", "files": [hdf_file], "seq_ordering": "random"}
    config = {
        "class": "MultiProcDataset",
        "dataset": inner,
        "num_workers": num_workers,
        "buffer_size": 8,
        "sharding_method": "dedicated",
    }
    ours, theirs = init_dataset({**config, "executor": "thread"}), peer_init_dataset(config)
    try:
        for mine, peer in zip(read_all(ours, 2), read_all(theirs, 2), strict=True):
            assert mine[0] == peer[0]
            np.testing.assert_array_equal(mine[1], peer[1])
    finally:
        ours.close()


@pytest.mark.parametrize("options", [{}, {"partition_epoch": 3}])
def test_what_is_told_of_the_size_and_the_labels_is_theirs(hdf_file, options):
    config = {"class": "HDFDataset", "files": [hdf_file], "seq_ordering": "random", **options}
    ours, theirs = init_dataset(config), peer_init_dataset(config)
    for epoch in (None, 1):
        for dataset in (ours, theirs):
            dataset.init_seq_order(epoch=epoch)
        assert ours.len_info() == theirs.len_info()
        assert int(ours.get_num_timesteps()) == int(theirs.get_num_timesteps())
        for key in ("data", "classes", "other"):
            assert ours.can_serialize_data(key) is bool(theirs.can_serialize_data(key))


def over_files(files):
    return {"class": "HDFDataset", "files": files, "seq_ordering": "default"}


def kinds(hdf_file):
    inner = over_files([hdf_file])
    data = [{"data": np.ones((3, 2), "float32"), "classes": np.array([0, 1, 2], "int32")}] * 2
    data_map = {"data": ("a", "data"), "classes": ("b", "classes")}
    return {
        "hdf": inner,
        "static": {"class": "StaticDataset", "data": data, "output_dim": {"data": (2, 2), "classes": (5, 1)}},
        "meta": {
            "class": "MetaDataset",
            "datasets": {"a": inner, "b": inner},
            "data_map": data_map,
            "seq_order_control_dataset": "a",
        },
        "multi_proc": {"class": "MultiProcDataset", "dataset": inner, "num_workers": 1, "buffer_size": 2},
        "distribute": {
            "class": "DistributeFilesDataset",
            "files": [hdf_file],
            "get_sub_epoch_dataset": over_files,
            "partition_epoch": 1,
        },
    }


def told(dataset, kind):
    """Return what a dataset tells of its layout and size, with types where both have the same."""
    keys = sorted(dataset.get_data_keys())
    answers = {
        "keys": keys,
        "targets": list(dataset.get_target_list()),
        "outputs": {key: tuple(dataset.num_outputs[key]) for key in keys},
        "labels": {key: list(labels) for key, labels in dataset.labels.items() if len(labels)},
        "dtypes": [str(dataset.get_data_dtype(key)) for key in keys],
        "shapes": [list(dataset.get_data_shape(key)) for key in keys],
        "num_seqs": dataset.num_seqs,
    }
    if kind != "meta":  # whose num_inputs is always 0 in RETURNN
        answers["num_inputs"] = dataset.num_inputs
    if kind != "distribute":  # which does not know its sequences
        answers["tags"] = list(dataset.get_all_tags())
    if kind in ("hdf", "meta"):
        answers["frames"] = int(dataset.get_num_timesteps())
        answers["sizes"] = [dataset.len_info(), dataset.len_info(fast=True)]
        answers["first"] = dataset.get_tag(0)
    return answers


@pytest.mark.parametrize("kind", ["hdf", "static", "meta", "multi_proc", "distribute"])
def test_what_is_told_of_layout_and_size_is_theirs_in_an_epoch_and_after_it(hdf_file, kind):
    config = kinds(hdf_file)[kind]
    with init_dataset(config) as ours:
        theirs = peer_init_dataset(config)
        for dataset in (ours, theirs):
            read_all(dataset, 1)
        assert told(ours, kind) == told(theirs, kind)
        for dataset in (ours, theirs):
            dataset.finish_epoch()
        assert told(ours, kind) == told(theirs, kind)
