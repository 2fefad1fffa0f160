"""`CombinedDataset` and `ConcatDataset`: different sequences under one order, with random access to each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joint_cases import add_noise, part, row, rows, seq_of, stream, tags

from examples_of_laws import examples
from headrace.batching import Buckets, FixedCount, FrameBudget, NumbersDict
from headrace.datasets import CachedDataset, CombinedDataset, init_dataset
from headrace.errors import ConfigError, ResumeError, SourceError
from headrace.loading import DataLoader
from headrace.order import derive_order_seed, parse_seq_ordering, slice_bounds
from headrace.sources import HDFWriter, MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers")

ORDERINGS = ["default", "reverse", "random", "laplace:2", "sorted", "random_sample", "permute", "default_every_n:2"]
OWN = ["random_dataset", "interleave", "reversed"]
SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=4)
SHARDS = st.integers(1, 3).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num - 1)))
PART_OPTIONS = st.sampled_from(
    [{}, {}, {"seq_ordering": "reverse"}, {"seq_ordering": "random", "partition_epoch": 2}, {"repeat_epoch": 2}]
)


def combined(sizes, part_options=None, **options):
    given_options = part_options or [{}] * len(sizes)
    datasets = {name: part(name, size, **own) for name, size, own in zip("abcd", sizes, given_options, strict=False)}
    data_map = {(name, key): key for name in datasets for key in ("data", "classes")}
    return {"class": "CombinedDataset", "datasets": datasets, "data_map": data_map, **options}


def concat(*args, **options):
    datasets = [*combined(*args)["datasets"].values()]
    return {"class": "ConcatDataset", "datasets": datasets, **options}


def mix(*args, **options):
    return {"class": "MixDataset", "datasets": combined(*args)["datasets"], **options}


def tags_of(config, *epochs):
    with init_dataset(config) as dataset:
        return [tag for epoch in epochs or (1,) for tag in tags(dataset, epoch)]


def workers(inner, executor="thread"):
    return {"class": "MultiProcDataset", "dataset": inner, "num_workers": 2, "buffer_size": 4, "executor": executor}


# --- the order ---


@given(SIZES, st.data(), st.sampled_from(ORDERINGS), st.integers(1, 3), SHARDS, st.integers(0, 4), st.integers(1, 7))
@examples(50)
def test_any_ordering_is_laid_over_what_the_parts_offer(sizes, data, ordering, num_parts, shards, offset, epoch):
    own = [{"random_seed_offset": offset, **data.draw(PART_OPTIONS)} for _ in sizes]
    options = {"seq_ordering": ordering, "partition_epoch": num_parts, "random_seed_offset": offset}
    config = combined(sizes, own, **options, _num_shards=shards[0], _shard_index=shards[1])
    full_epoch = (epoch - 1) // num_parts + 1
    there = [found for _, each in sorted(config["datasets"].items()) for found in rows(init_dataset(each), full_epoch)]
    seed = derive_order_seed(epoch, partition_epoch=num_parts, random_seed_offset=offset)
    order = parse_seq_ordering(ordering).plan(len(there), seed, np.array([len(f["data"]) for *_, f in there], np.int64))
    start, stop = slice_bounds(len(order), epoch, num_parts, *shards)
    expected = [there[place] for place in list(order)[start:stop]]
    dataset = init_dataset(config)
    assert [(tag, features) for tag, _, features in rows(dataset, epoch)] == [(tag, f) for tag, _, f in expected]
    assert dataset.num_seqs == len(expected)
    starts = dict(zip("abcd", np.cumsum([0, *sizes]).tolist(), strict=False))
    assert list(dataset.get_current_seq_order()) == [starts[tag[0]] + corpus_idx for tag, corpus_idx, _ in expected]
    all_tags = [f"{name}{i}" for name, size in zip("abcd", sizes, strict=False) for i in range(size)]
    assert (list(dataset.get_all_tags()), dataset.get_total_num_seqs()) == (all_tags, sum(sizes))
    plain = init_dataset(concat(sizes, own))
    there = [found for each in config["datasets"].values() for found in rows(init_dataset(each), epoch)]
    assert [(tag, f) for tag, _, f in rows(plain, epoch)] == [(tag, f) for tag, _, f in there]


@pytest.mark.parametrize("kind", [combined, concat])
@given(SIZES, st.sampled_from(OWN), st.sampled_from([None, 0, 2.0, "remaining"]), st.integers(1, 3), st.integers(1, 3))
@examples(30)
def test_orders_by_dataset_keep_the_order_inside_and_deliver_everything_once(
    kind, sizes, ordering, scale, num_parts, num_shards
):
    scale = {"interleave_gumbel_scale": scale} if kind is combined else {}
    config = kind(sizes, seq_ordering=ordering, partition_epoch=num_parts, **scale)
    epochs, found = range(num_parts + 1, 2 * num_parts + 1), []
    for epoch in epochs:
        for shard in range(num_shards):
            found += tags_of({**config, "_num_shards": num_shards, "_shard_index": shard}, epoch)
    for name, size in zip("abcd", sizes, strict=False):
        assert [tag for tag in found if tag[0] == name] == [f"{name}{i}" for i in range(size)]
    assert len(found) == sum(sizes)
    assert found == tags_of(config, *epochs)


@given(SIZES)
@examples(30)
def test_interleaved_the_dataset_comes_next_that_is_the_least_far(sizes):
    used, expected = [0] * len(sizes), []
    while any(count < size for count, size in zip(used, sizes, strict=True)):
        fracs = [((used[i] + 1) / size, i) for i, size in enumerate(sizes) if used[i] < size]
        _, number = min(fracs)
        expected.append(f"{'abcd'[number]}{used[number]}")
        used[number] += 1
    assert tags_of(combined(sizes, seq_ordering="interleave")) == expected


@pytest.mark.parametrize(
    "options", [{"seq_ordering": "random_dataset"}, {"seq_ordering": "interleave", "interleave_gumbel_scale": 1.0}]
)
def test_drawn_orders_differ_from_epoch_to_epoch_and_not_within_one(options):
    config = combined([20, 20], partition_epoch=2, **options)
    first, second = tags_of(config, 1, 2), tags_of(config, 3, 4)
    assert first != second
    assert sorted(first) == sorted(second)
    fixed = combined([20, 20], fixed_random_seed=3, **options)
    assert tags_of(fixed, 1) == tags_of(fixed, 2)


def test_an_ordering_may_be_a_function_of_the_epoch_and_be_set_later():
    dataset = init_dataset(combined([2, 1], seq_ordering=lambda epoch: "interleave" if epoch % 2 else "reverse"))
    assert tags(dataset, 1) == ["a0", "a1", "b0"]
    assert tags(dataset, 2) == ["b0", "a1", "a0"]  # begins with the last sequence
    dataset.seq_ordering = "reversed"
    assert tags(dataset, 1) == ["b0", "a0", "a1"]  # begins with the last dataset
    assert dataset.seq_ordering == "reversed"


@given(st.lists(st.integers(1, 6), min_size=2, max_size=2), st.lists(st.integers(1, 9), min_size=2, max_size=2))
@examples(20)
def test_samples_go_on_where_the_epoch_before_has_stopped(sizes, sampled):
    options = {"sampling_sizes": dict(zip("ab", sampled, strict=True))}
    dataset = init_dataset(combined(sizes, **options))
    drawn = init_dataset(combined(sizes, **options, partition_epoch=2, seq_ordering="random"))
    seen = {"a": [], "b": []}
    for epoch in range(1, 7):
        found = tags(dataset, epoch)
        assert len(found) == sum(sampled)
        assert sorted(tags(drawn, 2 * epoch - 1) + tags(drawn, 2 * epoch)) == sorted(found)
        for tag in found:
            seen[tag[0]].append(tag)
    for name, size in zip("ab", sizes, strict=True):
        assert seen[name] == [f"{name}{i % size}" for i in range(len(seen[name]))]


def test_a_filter_keeps_sub_epochs_even_and_unique_tags_are_unique_among_all_parts(tmp_path):
    path = tmp_path / "wanted.txt"
    path.write_text("a1\nb0\nb3\na4\n")
    dataset = init_dataset(combined([6, 6], seq_list_filter_file=str(path), partition_epoch=2))
    assert [tags(dataset, epoch) for epoch in (1, 2)] == [["a1", "a4"], ["b0", "b3"]]
    assert list(dataset.get_all_tags()) == ["a1", "a4", "b0", "b3"]
    assert dataset.get_total_num_seqs() == 4
    config = combined([3, 3], unique_seq_tags=True)
    config["datasets"]["b"]["tags"] = ["a1", "x", "a1"]
    assert tags_of(config) == ["a0", "a1", "a2", "x"]
    dataset = init_dataset(combined([6, 6], [{"seq_list_filter_file": str(path)}, {}]))
    assert dataset.get_total_num_seqs() == 8 == len(tags(dataset, 1))


def test_lengths_are_those_that_the_parts_sort_by(tmp_path):
    path = tmp_path / "lens.txt"
    path.write_text(repr({"a0": 9, "a1": 0, "b0": 3, "b1": 5}))
    options = {"seq_order_seq_lens_file": path}
    assert tags_of(combined([2, 2], seq_ordering="sorted", **options)) == ["a1", "b0", "b1", "a0"]
    dataset = init_dataset(combined([2, 2], [options, {}], seq_ordering="sorted"))
    assert tags(dataset, 1) == ["a1", "b0", "b1", "a0"]
    assert [dataset.get_estimated_seq_length(place) for place in range(4)] == [0, 1, 3, 9]


# --- reading ---


def test_what_a_dataset_lacks_has_no_frames():
    parts = {"speech": part("a", 7, ("data",)), "text": part("b", 5)}
    data_map = {("speech", "data"): "data", ("text", "data"): "words", ("text", "classes"): "classes"}
    dataset = init_dataset({"class": "CombinedDataset", "datasets": parts, "data_map": data_map})
    assert dataset.get_data_keys() == ["data", "classes", "words"]
    assert dataset.num_outputs == {"data": (2, 2), "words": (2, 2), "classes": (999, 1)}
    for tag, _, features in rows(dataset, 1):
        own = {key: value.tolist() for key, value in seq_of(tag[0], int(tag[1:])).items()}
        speech = {"data": own["data"], "classes": [], "words": []}
        assert features == (speech if tag[0] == "a" else {"data": [], "classes": own["classes"], "words": own["data"]})
    dataset.init_seq_order(1)
    empty = dataset.get_data(0, "words")
    assert (empty.shape, empty.dtype) == ((0, 2), np.float32)
    assert dataset.get_seq_length(0) == NumbersDict({"data": 1, "classes": 0, "words": 0})
    assert dataset.get_data_slice(8, "words", 1, 3).shape == (2, 2)
    assert dataset.get_num_timesteps()["words"] == sum(len(seq_of("b", i)["data"]) for i in range(5))
    config = combined([1, 1])
    config["datasets"]["a"] = {"class": "StaticDataset", "data": [{"data": np.ones((2, 2), "f"), "who": np.float32(3)}]}
    config["data_map"] = {("a", "data"): "data", ("b", "data"): "data", ("a", "who"): "who"}
    found = [seq["who"] for seq in init_dataset(config).epoch(1)]
    assert [(value.shape, value.tolist()) for value in found] == [((), 3.0), ((), 0.0)]


@pytest.mark.parametrize("kind", [combined, concat])
def test_any_place_can_be_read_at_any_time_and_any_order_be_given(kind):
    dataset = init_dataset(kind([6, 7], seq_ordering="random", chunking="2:1"))
    assert dataset.num_seqs == 0
    with pytest.raises(IndexError, match="has init_seq_order"):
        dataset.get_seq(0)
    expected = rows(dataset, 2)
    dataset.init_seq_order(2)
    for place in (11, 0, 5, 5, 12):
        assert row(dataset.get_seq(place)) == expected[place]
        tag, _, features = expected[place]
        assert {key: dataset.get_data(place, key).tolist() for key in features} == features
        assert dataset.get_seq_length(place) == NumbersDict({key: len(value) for key, value in features.items()})
        assert (dataset.get_tag(place), dataset.get_complete_frac(place)) == (tag, (place + 1) / 13)
    generator = dataset.generate_batches(batch_size=20, max_seqs=4, used_data_keys=["data"])
    assert {piece.seq_idx for batch in generator.peek_next_n(99) for piece in batch.seqs} == set(range(13))
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 4)
        assert dataset.get_data(seq_idx, "data").tolist() == expected[seq_idx][2]["data"]
        seq_idx += 1
    assert [found[0] for found in rows(dataset, 1, seq_list=["b3", "a2", "b3"])] == ["b3", "a2", "b3"]
    assert [found[0] for found in rows(dataset, 1, seq_order=[12, 0, 6])] == ["b6", "a0", "b0"]
    seq = dataset.get_corpus_seq(8)
    assert (seq.seq_tag, seq.corpus_idx, seq["data"].tolist()) == ("b2", 8, seq_of("b", 2)["data"].tolist())
    with pytest.raises(IndexError, match="outside an epoch of 3"):
        dataset.get_seq(13)
    with pytest.raises(ConfigError, match="no data key 'dat'"):
        dataset.get_data(0, "dat")
    with pytest.raises(SourceError, match="no tag 'c1'"):
        dataset.init_seq_order(1, seq_list=["c1"])
    dataset.finish_epoch(free_resources=True)
    assert dataset.num_seqs == 0


class Counting(MemorySource):
    def __init__(self, name, num_seqs):
        super().__init__([seq_of(name, i) for i in range(num_seqs)], tags=[f"{name}{i}" for i in range(num_seqs)])
        self.reads = []

    def read(self, corpus_idx, data_key):
        self.reads.append(corpus_idx)
        return super().read(corpus_idx, data_key)


def test_the_order_is_made_without_reading_and_each_sequence_is_read_once():
    sources = [Counting(name, 3) for name in "ab"]
    datasets = {name: CachedDataset(source=source) for name, source in zip("ab", sources, strict=True)}
    dataset = CombinedDataset(datasets, {("a", "data"): "data", ("b", "data"): "data"}, seq_ordering="laplace:2")
    dataset.initialize()
    dataset.init_seq_order(1)
    list(dataset.get_current_seq_order())
    dataset.get_all_tags()
    dataset.get_num_timesteps()
    dataset.get_seq_length(0)
    with DataLoader(dataset, batching=Buckets(FrameBudget(8), num_buckets=2)) as loader:
        assert len(loader) > 0
    assert [source.reads for source in sources] == [[], []]
    rows(dataset, 1)
    assert [sorted(source.reads) for source in sources] == [[0, 1, 2]] * 2


def test_sequences_that_repeat_draw_anew_and_the_same_each_time():
    options = {"transform": add_noise, "repeat_epoch": 2}
    config = combined([3, 3], [options, {"transform": add_noise}], seq_ordering="random", partition_epoch=2)
    found, again = ([*rows(dataset, 1), *rows(dataset, 2)] for dataset in (init_dataset(config), init_dataset(config)))
    texts = {str(features) for _, _, features in found}
    assert len(texts) == len(found) == 9
    assert found == again
    other = init_dataset(config)
    assert not texts & {str(features) for _, _, features in rows(other, 3) + rows(other, 4)}


def test_more_than_ten_datasets_come_in_the_order_of_the_list_and_are_split_as_few_are():
    config = {"class": "ConcatDataset", "datasets": [{**part("a", 1), "tags": [f"t{i}"]} for i in range(30)]}
    assert tags_of(config) == [f"t{i}" for i in range(30)]
    dataset = init_dataset({**config, "datasets": [part("a", i % 3) for i in range(30)], "seq_ordering": "random"})
    found = rows(dataset, 1)
    assert sorted(corpus_idx for _, corpus_idx, _ in found) == list(range(30))
    for tag, corpus_idx, features in found:
        assert tag == dataset.get_all_tags()[corpus_idx]
        assert features["data"] == seq_of("a", int(tag[1:]))["data"].tolist()


def test_the_layout_is_that_of_the_parts_and_only_those_that_are_named_are_opened():
    for config in (combined([2, 2]), concat([2, 2])):
        dataset = init_dataset(config)
        assert dataset.get_data_keys() == ["data", "classes"]
        assert dataset.num_outputs == {"data": (2, 2), "classes": (999, 1)}
        assert (dataset.num_inputs, dataset.get_data_shape("data")) == (2, [2])
        assert (dataset.get_data_dtype("classes"), dataset.is_data_sparse("classes")) == ("int32", True)
    config = combined([2])
    config["datasets"]["never"] = {"class": "HDFDataset", "files": "no such file"}
    assert tags_of(config) == ["a0", "a1"]


# --- workers, loaders ---


@pytest.mark.parametrize(
    ("config", "executor"),
    [
        (combined([9, 8], [{"transform": add_noise}, {}], seq_ordering="random_dataset", partition_epoch=2), "process"),
        (concat([7, 0, 6], [{"transform": add_noise}, {}, {}], seq_ordering="random"), "thread"),
        (mix([7, 5], [{"seq_ordering": "random"}, {"transform": add_noise}], weights={"a": 2, "b": 3}), "process"),
    ],
    ids=["combined", "concat", "mix"],
)
def test_workers_of_a_multi_proc_dataset_change_nothing(config, executor):
    expected = [rows(init_dataset(config), epoch) for epoch in (1, 2)]
    with init_dataset(workers(config, executor)) as dataset:
        assert [rows(dataset, epoch) for epoch in (1, 2)] == expected


def test_a_loader_may_shuffle_it():
    with DataLoader(concat([9, 9]), batch_size=4, shuffle=True, seed=1) as loader:
        found = [tag for batch in loader for tag in batch.tags]
    assert sorted(found) != found
    assert len(set(found)) == 18


@pytest.mark.parametrize("ordering", ["default", "random"])
def test_files_are_read_at_once_as_one_by_one(tmp_path, ordering):
    rng = np.random.default_rng(1)
    keys_of = {"a": ("data", "classes"), "b": ("data", "speaker"), "c": ("data",)}
    for name, keys in keys_of.items():
        with HDFWriter(tmp_path / f"{name}.hdf") as writer:
            for number in range(6 if name != "b" else 4):
                seq = {**seq_of(name, number), "speaker": rng.normal(size=3).astype(np.float32)}
                writer.append(f"{name}{number}", {key: seq[key] for key in keys})
    parts = {name: {"class": "HDFDataset", "files": [str(tmp_path / f"{name}.hdf")], "index": None} for name in keys_of}
    parts["empty"] = part("e", 0)
    data_map = {(name, key): key for name, keys in {**keys_of, "empty": ["data"]}.items() for key in keys}
    config = {"class": "CombinedDataset", "datasets": parts, "data_map": data_map, "seq_ordering": ordering}
    with init_dataset(config) as alone:
        expected = rows(alone, 2)
    with DataLoader(config, batching=FixedCount(5)) as loader:
        loader.set_epoch(2)
        found = [
            (tag, int(corpus_idx), {key: batch[key][i, : batch.lengths[key][i]].tolist() for key in batch})
            for batch in loader
            for i, (tag, corpus_idx) in enumerate(zip(batch.tags, batch.corpus_idx, strict=True))
        ]
    assert found == expected
    with init_dataset(workers(config)) as dataset:
        assert rows(dataset, 2) == expected


def thinned(iterator, **_):
    return iterator


@pytest.mark.parametrize("around", ["stream function", "workers", "meta"])
def test_a_state_knows_what_is_inside_of_a_part(around, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text(repr({f"a{i}": 9 - i for i in range(5)}))

    def loader_of(*part_options, **options):
        inside, keys = combined([5, 4], part_options, **options), ("data", "classes")
        if around == "meta":
            control = {"seq_order_control_dataset": "x", "data_map": {"data": ("x", "data")}}
            inside, keys = {"class": "MetaDataset", "datasets": {"x": inside}, **control}, ("data",)
        config = {"class": "ConcatDataset", "datasets": [workers(inside), part("s", 2, keys)]}
        if around == "stream function":
            config = {"class": "PostprocessingDataset", "dataset": inside, "map_seq_stream": thinned}
        return DataLoader(config, batching=FixedCount(2))

    with loader_of({}, {}) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of({}, {}) as loader:
        loader.load_state_dict(state)
    sorted_by_file = {"seq_ordering": "sorted", "seq_order_seq_lens_file": str(lengths)}
    for other in (
        loader_of({}, {"seq_ordering": "random"}),
        loader_of({}, {}, sampling_sizes=3),
        loader_of(sorted_by_file, {}),
    ):
        with other as loader, pytest.raises(ResumeError, match="another order"):
            loader.load_state_dict(state)


def test_it_can_be_a_sub_epoch_of_distributed_files(tmp_path):
    def get_sub_epoch_dataset(files):
        datasets = {str(number): {"class": "HDFDataset", "files": [file]} for number, file in enumerate(files)}
        data_map = {(name, "data"): "data" for name in datasets}
        return {"class": "CombinedDataset", "datasets": datasets, "data_map": data_map, "seq_ordering": "interleave"}

    for name in "abcd":
        with HDFWriter(tmp_path / f"{name}.hdf") as writer:
            for number in range(3):
                writer.append(f"{name}{number}", {"data": seq_of(name, number)["data"]})
    config = {
        "class": "DistributeFilesDataset",
        "files": [str(tmp_path / f"{name}.hdf") for name in "abcd"],
        "get_sub_epoch_dataset": get_sub_epoch_dataset,
        "partition_epoch": 2,
        "executor": "inline",
    }
    assert tags_of(config, 1, 2) == ["a0", "b0", "a1", "b1", "a2", "b2", "c0", "d0", "c1", "d1", "c2", "d2"]


@pytest.mark.parametrize("ordering", ["default", "random", "interleave", "random_dataset", "sorted", "reversed"])
def test_empty_parts_are_legal(ordering):
    assert sorted(tags_of(combined([0, 2, 0], seq_ordering=ordering))) == ["b0", "b1"]
    assert tags_of(combined([0, 0], seq_ordering=ordering)) == []


# --- what is refused ---


def static(data, **options):
    return {"class": "StaticDataset", "data": [{"data": data}], **options}


BOTH = {("a", "data"): "data", ("b", "data"): "data"}
SHARDED = {"_num_shards": 2}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"datasets": {}}, "datasets must be a dict"),
        ({"data_map": {}}, "data_map must be a dict"),
        ({"data_map": {("a", "data"): "data", ("c", "data"): "data"}}, "no sub-dataset 'c'"),
        ({"data_map": {("a", "dat"): "data"}}, "no data key 'dat'"),
        ({"data_map": {("a", "data"): "data", ("a", "classes"): "data"}}, "mapped to the one data key 'data'"),
        ({"data_map": {"data": ("a", "data")}}, "data_map has the entry"),
        ({"data_map": [["a", "data"]]}, "data_map has the entry"),
        ({"sampling_sizes": -1}, "must be at least 0, got -1"),
        ({"sampling_sizes": 0}, "takes no sequence at all"),
        ({"sampling_sizes": {"a": 1}}, "no size for the sub-dataset 'b'"),
        ({"sampling_sizes": {"a": 1, "b": 1, "x": 1}}, "names the sub-dataset 'x'"),
        ({"sampling_sizes": {"a": 1.5, "b": 1}}, "must be an integer"),
        ({"interleave_gumbel_scale": -0.5}, "at least 0"),
        ({"interleave_gumbel_scale": float("nan")}, "at least 0"),
        ({"interleave_gumbel_scale": "much"}, '"remaining" or None'),
        ({"seq_ordering": "interleaved"}, "did you mean 'interleave'"),
        ({"window": 3}, "does not support window=3"),
        ({"data_dims": {"data": (3, 2)}}, "data_dims says"),
        ({"data_dims": {"dat": (2, 2)}}, "data_dims names the data key 'dat'"),
        ({"data_dtypes": {"dat": "int8"}}, "data_dtypes names the data key 'dat'"),
        ({"partition_epoch": 2, "repeat_epoch": 2}, "exclude each other"),
        ({"nonsense": 1}, "no option 'nonsense'"),
        (combined([4, 4], [SHARDED, {}], **SHARDED), "two levels would shard"),
        (combined([4, 4], [SHARDED, SHARDED]), "two levels would shard"),
        (concat([]), "datasets must be a list"),
        ({"class": "ConcatDataset"}, "datasets must be a list"),
        ({"class": "ConcatDataset", "datasets": [part("a", 2), part("b", 2, ("data",))]}, "different data keys"),
        ({"class": "ConcatDataset", "datasets": [part("a", 2), static(np.zeros((1, 3), "f"))]}, "data keys"),
        (
            {"class": "ConcatDataset", "datasets": [part("a", 2), stream("b", 2)]},
            r"\(Stream\) does not know its corpus",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_options_are_refused_when_it_is_built(change, text):
    config = combined([2, 2]) | change
    if config["class"] == "ConcatDataset":
        config = {name: value for name, value in config.items() if name != "data_map"}
    with pytest.raises(ConfigError, match=text):
        init_dataset(config)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (part("a", 2), static(np.zeros((2, 3), np.float32)), r"two layouts: shape is \(2,\) in 'a', and \(3,\) in 'b'"),
        (part("a", 2), static(np.zeros((2, 2), np.float64)), "two layouts: dtype is float32 in 'a', and float64"),
        (part("a", 2), static(np.zeros(2, np.int32)), "two layouts: sparse is False"),
        (static(np.zeros(2, "i"), input_dim=5), static(np.zeros(2, "i"), input_dim=9), r"data_dims=\{'data': \(9, 1\)"),
        (part("a", 2), stream("b", 2), r"(?s)\(Stream\) does not know its corpus.*an iterable that does"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(first, second, text):
    config = {"class": "CombinedDataset", "datasets": {"a": first, "b": second}, "data_map": BOTH}
    with pytest.raises(ConfigError, match=text):
        init_dataset(config)
    if "data_dims" in text:
        assert init_dataset({**config, "data_dims": {"data": (9, 1)}}).get_data_dim("data") == 9
        with pytest.raises(ConfigError, match="data_dims says"):
            init_dataset({**config, "data_dims": {"data": (7, 1)}})


def test_class_labels_that_differ_are_refused(tmp_path):
    for name, labels in (("a", ["x", "y"]), ("b", ["y", "x"])):
        with HDFWriter(tmp_path / f"{name}.hdf", labels={"data": labels}) as writer:
            writer.append(name, {"data": np.zeros(2, np.int32)})
    datasets = {name: {"class": "HDFDataset", "files": [str(tmp_path / f"{name}.hdf")], "index": None} for name in "ab"}
    with pytest.raises(ConfigError, match="other class labels in 'b'"):
        init_dataset({"class": "CombinedDataset", "datasets": datasets, "data_map": BOTH})


def test_one_object_may_be_two_parts_whose_tags_are_not_unique_and_none_contains_itself():
    dataset = init_dataset(part("a", 2))
    twice = CombinedDataset({"a": dataset, "b": dataset}, BOTH)
    assert tags(twice, 1) == tags(dataset, 1) * 2
    with pytest.raises(SourceError, match="'a1' is not unique"):
        twice.init_seq_order(1, seq_list=["a1"])
    config = combined([2, 2])
    config["datasets"]["b"] = config
    with pytest.raises(ConfigError, match="contains itself"):
        init_dataset(config)


def test_a_sample_of_an_empty_part_is_refused_with_its_name():
    dataset = init_dataset(combined([3, 0], sampling_sizes=2))
    with pytest.raises(ConfigError, match="asks for 2 sequences of 'b', which has none"):
        dataset.init_seq_order(1)
