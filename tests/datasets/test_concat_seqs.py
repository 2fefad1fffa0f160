"""`ConcatSeqsDataset`: several sequences as one, wherever they come from."""

import copy
import json
import pickle

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import (
    CachedDataset2,
    DatasetSeq,
    init_dataset,
)
from headrace.errors import HeadraceError, SourceError

LENGTHS = [3, 5, 2, 7, 1]
DATA = [
    {
        "data": np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 100 * i,
        "classes": np.array([*range(1, -(-n // 2) + 1), 0], dtype=np.int32),
    }
    for i, n in enumerate(LENGTHS)
]
INNER = {"class": "StaticDataset", "data": DATA}
LINES = ["seq-0;seq-1", "seq-2", "seq-3;seq-0;seq-2", "seq-1", "seq-4;seq-4"]
PARTS = [[0, 1], [2], [3, 0, 2], [1], [4, 4]]
TOTALS = [sum(LENGTHS[i] for i in parts) for parts in PARTS]


@pytest.fixture
def make(tmp_path):
    datasets = []

    def make_(lines=LINES, inner=INNER, lens=None, **options):
        (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
        lens = {f"seq-{i}": n for i, n in enumerate(LENGTHS)} if lens is None else lens
        (tmp_path / "lens.txt").write_text(lens if isinstance(lens, str) else repr(lens))
        config = {
            "class": "ConcatSeqsDataset",
            "dataset": inner,
            "seq_list_file": str(tmp_path / "list.txt"),
            "seq_len_file": str(tmp_path / "lens.txt"),
            **options,
        }
        datasets.append(init_dataset(config))
        return datasets[-1]

    yield make_
    for dataset in datasets:
        dataset.close()


def joined(parts, key="data"):
    return np.concatenate([DATA[i][key] for i in parts]).tolist()


def rows(seqs):
    return [(seq.seq_idx, seq.tag, seq.corpus_idx, {k: v.tolist() for k, v in seq.features.items()}) for seq in seqs]


def test_sequences_are_joined_line_by_line(make):
    dataset = make()
    seqs = list(dataset.epoch(1))
    assert [seq.tag for seq in seqs] == LINES == list(dataset.get_all_tags())
    for seq, parts in zip(seqs, PARTS, strict=True):
        assert seq["data"].tolist() == joined(parts)
        assert seq["classes"].tolist() == joined(parts, "classes")
    assert dataset.num_outputs == init_dataset(INNER).num_outputs
    assert dataset.get_corpus_seq(2)["data"].tolist() == joined(PARTS[2])


@pytest.mark.parametrize("seq_ordering", ["sorted", "sorted_reverse", "random", "laplace:2"])
def test_orders_sub_epochs_and_shards_are_those_of_any_corpus(make, seq_ordering):
    order = {"seq_ordering": seq_ordering, "partition_epoch": 2}
    like = init_dataset({"class": "StaticDataset", "data": [{"data": np.zeros(n)} for n in TOTALS], **order})
    dataset = make(**order)
    for epoch in (1, 2, 3):
        assert [s.corpus_idx for s in dataset.epoch(epoch)] == [s.corpus_idx for s in like.epoch(epoch)]
    parts = [make(_num_shards=2, _shard_index=shard) for shard in range(2)]
    assert sorted(seq.tag for part in parts for seq in part.epoch(1)) == sorted(LINES)


OPTIONS = [
    {},
    {"remove_in_between_postfix": {"classes": 0}},
    {"repeat_in_between_last_frame_up_to_multiple_of": {"data": 4, "classes": 3}},
    {"pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 2)}},
    {
        "remove_in_between_postfix": {"classes": 0},
        "repeat_in_between_last_frame_up_to_multiple_of": {"data": 4},
        "pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 1)},
    },
]


@pytest.mark.parametrize("options", OPTIONS)
def test_lengths_are_known_without_reading_and_are_right(make, options):
    dataset = make(**options)
    dataset.init_seq_order(epoch=1)
    told = [dict(dataset.get_seq_length(i).items()) for i in range(dataset.num_seqs)]
    assert told == [{key: len(seq[key]) for key in ("data", "classes")} for seq in dataset.epoch(1)]
    assert dataset.get_num_timesteps()["data"] == sum(lengths["data"] for lengths in told)


@pytest.mark.parametrize(
    ("inner", "options", "expected"),
    [
        (
            [{"data": [1, 2]}, {"data": [1, 2, 3]}, {"data": [1, 2, 3]}],
            {"repeat_in_between_last_frame_up_to_multiple_of": {"data": 5}},
            {"data": [1, 2, 2, 2, 2, 1, 2, 3, 3, 3, 1, 2, 3]},
        ),
        (
            [{"data": [0, 1, 2, 3], "classes": [7, 7, 0]}] * 2,
            {
                "remove_in_between_postfix": {"classes": 0},
                "pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 1)},
            },
            {"data": [0, 1, 2, 0, 1, 2, 3], "classes": [7, 7, 7, 7, 0]},
        ),
    ],
)
def test_what_follows_another_is_cut_and_filled_up(make, inner, options, expected):
    data = [{key: np.array(values, np.int32) for key, values in seq.items()} for seq in inner]
    lens = {f"seq-{i}": len(seq["data"]) for i, seq in enumerate(data)}
    line = ";".join(lens)
    (seq,) = make([line], {"class": "StaticDataset", "data": data}, lens, **options).epoch(1)
    assert {key: array.tolist() for key, array in seq.features.items()} == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"remove_in_between_postfix": {"classes": 9}}, r"(?s)'classes' ends with 0.*'seq-0' in .*list.txt, line 1"),
        ({"inner": {**INNER, "data": [{"data": np.zeros(2), "who": np.array(0)}] * 5}}, "cannot be joined"),
    ],
)
def test_what_cannot_be_joined_is_told_when_it_is_read(make, options, text):
    with pytest.raises(SourceError, match=text):
        list(make(**options).epoch(1))


TWICE = {"class": "MapDataset", "map_dataset": DATA, "tags": ["a", "b", "c", "a", "e"]}


@pytest.mark.parametrize(
    ("lines", "options", "text"),
    [
        (["seq-0", "seq-1;nobody"], {}, r"(?s)no tag 'nobody'.*list.txt, line 2"),
        (["seq-0", "", "seq-1;;seq-2"], {}, r"(?s)empty tag.*line 3"),
        (["seq-0;"], {}, r"(?s)empty tag.*line 1"),
        (["seq-0;seq-1"], {"lens": {"seq-0": 1}}, r"(?s)no length for the tag 'seq-1'.*line 1.*lens.txt"),
        (["seq-0"], {"lens": "__import__('os').getcwd()"}, "neither JSON"),
        (["seq-0"], {"seq_list_file": "nowhere.txt"}, "no such file"),
        (["seq-0"], {"seq_tag_delim": ""}, "seq_tag_delim"),
        (["seq-0"], {"remove_in_between_postfix": {"dta": 0}}, "did you mean 'data'"),
        (["seq-0"], {"remove_in_between_postfix": ["data"]}, "is a dict by data key"),
        (["seq-0"], {"repeat_in_between_last_frame_up_to_multiple_of": {"data": 0}}, "at least 1"),
        (["seq-0"], {"pad_narrow_data_to_multiple_of_target_len": {"data": 2}}, "classes"),
        (["seq-0"], {"pad_narrow_data_to_multiple_of_target_len": {"data": ("more", 2)}}, "'more'"),
        (["seq-0"], {"epoch_wise_filter": {(1, 2): {"max_mean_len": 3}}}, "no longer offered"),
        (["seq-0"], {"cache_byte_size": 10}, "inner dataset"),
        (["seq-0"], {"seq_list_file": 3}, "seq_list_file"),
        (["b;c", "a;b"], {"inner": TWICE, "lens": dict.fromkeys("abce", 1)}, r"(?s)'a' is not unique.*line 2"),
    ],
)
def test_what_is_wrong_is_told_when_the_dataset_is_built(make, lines, options, text):
    with pytest.raises(HeadraceError, match=text):
        make(lines, **options)


def test_a_copy_is_read_beside_the_first_one(make):
    dataset = make()
    other = copy.copy(dataset)
    expected = rows(dataset.epoch(1))
    assert [rows([a, b]) for a, b in zip(dataset.epoch(1), other.epoch(1), strict=True)] == [
        [row, row] for row in expected
    ]


def test_lists_may_come_from_anywhere_and_be_anything_that_is_data(make):
    dataset = make(
        ["seq-0 seq-1\r", "", "seq-2"], seq_tag_delim=" ", lens=json.dumps({f"seq-{i}": 1 for i in range(3)})
    )
    assert [seq.tag for seq in dataset.epoch(1)] == ["seq-0 seq-1", "seq-2"]
    assert list(make([]).epoch(1)) == []


def noise(features, rng):
    return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


def shorter(features):
    return {key: array[:1] for key, array in features.items()}


def test_draws_of_parts_are_the_same_whoever_reads_and_differ_where_a_part_comes_again(make):
    inner = {**INNER, "data": [{"data": np.zeros((2, 2), np.float32)}] * 5, "transform": noise}
    workers = {"class": "MultiProcDataset", "num_workers": 1, "buffer_size": 2, "executor": "thread"}
    options = {"seq_ordering": "random", "repeat_epoch": 2}
    dataset = make(inner=inner, **options)
    expected = rows(dataset.epoch(1))
    assert len({str(row[3]) for row in expected}) == 2 * len(LINES)
    assert rows(pickle.loads(pickle.dumps(dataset)).epoch(1)) == expected
    assert rows(make(inner={**workers, "dataset": inner}, **options).epoch(1)) == expected
    files = {"seq_list_file": dataset.seq_list_file, "seq_len_file": dataset.seq_len_file}
    config = {"class": "ConcatSeqsDataset", "dataset": inner, **files, **options}
    with init_dataset({**workers, "dataset": config}) as around:
        assert rows(around.epoch(1)) == expected
    with hr.DataLoader(config, batching=hr.FixedCount(3)) as loader:
        loaded = [
            (tag, data[:length].tolist())
            for batch in loader
            for tag, data, length in zip(batch.tags, batch["data"], batch.lengths["data"], strict=True)
        ]
    assert sorted(loaded) == sorted((tag, features["data"]) for _, tag, _, features in expected)


def test_lengths_that_a_transform_changes_are_those_of_what_is_read(make):
    dataset = make(inner={**INNER, "transform": shorter})
    dataset.init_seq_order(epoch=1)
    assert [dataset.get_seq_length(i)["data"] for i in range(dataset.num_seqs)] == [2, 1, 3, 1, 2]
    assert dataset.get_num_timesteps()["data"] == 9


class ByTag(CachedDataset2):
    """It only takes tags, and shows its layout with its first sequence."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch)
        self.tags = [] if epoch is None else [f"seq-{i}" for i in range(5)] if seq_list is None else list(seq_list)
        self._num_seqs = len(self.tags)
        return True

    def _collect_single_seq(self, seq_idx):
        number = int(self.tags[seq_idx].removeprefix("seq-"))
        return DatasetSeq(seq_idx, DATA[number], seq_tag=self.tags[seq_idx])


class Ordered(ByTag):
    """It also tells its order, as workers need."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch, [f"seq-{i}" for i in seq_order] if seq_order is not None else seq_list)

    def get_current_seq_order(self):
        return [int(tag.removeprefix("seq-")) for tag in self.tags]


@pytest.mark.parametrize(
    "inner", [{"class": ByTag}, {"class": "MultiProcDataset", "dataset": {"class": Ordered}, "num_workers": 0}]
)
def test_a_dataset_that_only_takes_tags_will_do(make, inner):
    dataset = make(inner=inner, seq_ordering="sorted")
    assert dataset.get_data_dtype("data") == "float32"
    seqs = rows(dataset.epoch(1))
    assert [row[1] for row in seqs] == [LINES[i] for i in np.argsort(TOTALS, kind="stable")]
    assert all(features["data"] == joined(PARTS[corpus_idx]) for _, _, corpus_idx, features in seqs)


def test_a_changed_dataset_can_be_joined_and_a_joined_one_changed(make):
    negated = {
        "class": "PostprocessingDataset",
        "dataset": INNER,
        "map_seq": lambda data: {**data, "data": -data["data"]},
        "map_seq_preserves_lengths": True,
    }
    dataset = make(inner=negated)
    assert dataset.source.index.lengths("data").tolist() == TOTALS
    for outer in (dataset, init_dataset({**negated, "dataset": make()})):
        assert [seq["data"].tolist() for seq in outer.epoch(1)] == [(-np.array(joined(p))).tolist() for p in PARTS]


def test_a_window_joins_frames_over_the_seams(make):
    seq = next(make(window=3).epoch(1))
    data = np.array(joined(PARTS[0]))
    assert seq["data"].shape == (8, 6)
    np.testing.assert_array_equal(seq["data"][3], np.concatenate(data[2:5]))
