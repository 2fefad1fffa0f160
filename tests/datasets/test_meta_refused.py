"""`MetaDataset`: lists of tags, and all that does not fit is refused before anything is read."""

import gzip
import pickle

import pytest
from meta_cases import DATA_MAP, Counting, StreamedAndKnown, in_memory, lists_in, meta_config, stream, words

from headrace.datasets import CachedDataset, MetaDataset, checks, init_dataset
from headrace.errors import ConfigError, SourceError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "_remarked", set())


@pytest.mark.parametrize("form", ["json", "json.gz", "mapping"])
@pytest.mark.parametrize("control", [None, "alignments", "features"])
def test_lists_say_which_tags_belong_together(tmp_path, form, control):
    lists = {"features": ["r3", "r1", "r2"], "alignments": ["line-0", "line-2", "line-1"], "unused": ["x", "y", "z"]}
    config = meta_config(
        in_memory(["r1", "r2", "r3"], seq_ordering="reverse"),
        in_memory(["line-0", "line-1", "line-2"]),
        control,
        seq_list_file=lists_in(form, tmp_path, lists),
    )
    dataset = init_dataset(config)
    expected = {None: ["r3", "r1", "r2"], "features": ["r3", "r2", "r1"], "alignments": ["line-0", "line-1", "line-2"]}
    partner = dict(zip(lists["features"], lists["alignments"], strict=True))
    partner |= {line: tag for tag, line in partner.items()}
    rows = stream(dataset, 1)
    assert [row[1] for row in rows] == expected[control]
    for _, tag, _, features in rows:
        record, line = (tag, partner[tag]) if tag in lists["features"] else (partner[tag], tag)
        assert features["data"] == words([record])[0]["data"].tolist()
        assert features["classes"] == words([line])[0]["classes"].tolist()
    assert stream(pickle.loads(pickle.dumps(dataset)), 1) == rows
    assert stream(dataset, 1, seq_list=expected[control][1:]) == [
        (i, row[1], (i + 1) / 2, row[3]) for i, row in enumerate(rows[1:])
    ]


def test_one_list_for_all_says_which_sequences_there_are_and_may_repeat_them(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("c\na\nc\n")
    config = meta_config(in_memory(list("abc")), in_memory(list("cba")), None, seq_list_file=path)
    dataset = init_dataset({**config, "seq_ordering": "sorted"})
    assert [row[1] for row in stream(dataset, 1)] == ["c", "a", "c"]
    assert list(dataset.get_all_tags()) == ["c", "a", "c"]
    assert [row[1] for row in stream(dataset, 1, seq_order=[2, 1])] == ["c", "a"]
    path.write_text("a\n")  # it was read when the dataset was built
    assert dataset.get_total_num_seqs() == 3


def test_sorting_uses_the_lengths_of_the_default_dataset_at_the_places_of_the_list(tmp_path):
    path = tmp_path / "tags.txt"
    tags = ["aaa", "aa", "", "a"]
    path.write_text("aaa\naa\na\n")
    config = meta_config(in_memory(tags), in_memory(tags), None, seq_list_file=path, seq_ordering="sorted")
    rows = stream(init_dataset(config), 1)
    assert [len(row[3]["data"]) for row in rows] == [2, 3, 5]
    assert [row[1] for row in rows] == ["aaa", "a", "aa"]


# --- what is refused ---


def refused(error, match, *names, **config):
    with pytest.raises(error, match=match) as caught:
        stream(init_dataset(config), 1)
    for name in names:
        assert name in str(caught.value)


def test_tags_that_do_not_fit_are_refused_before_anything_is_read():
    few, many, twice = in_memory(["a", "b"]), in_memory(["a", "b", "ab", "ba"]), in_memory(["b", "a", "b"])
    refused(SourceError, "no tag 'ab', which", "'features'", "2 of 4", "seq_list_filter_file", **meta_config(few, many))
    refused(SourceError, "no tag 'ab', which", "'alignments'", **meta_config(many, few, None))
    refused(SourceError, "has the tag 'b' more than once", "unique", **meta_config(twice, few))
    refused(SourceError, "has the tag 'b' more than once", **meta_config(twice, {**twice}))
    refused(SourceError, "no tag 'a'", "'line-0'", "seq_list_file", **meta_config(in_memory(["line-0", "line-1"]), few))
    refused(
        SourceError, "no tag 'recording-1'", "did you mean 'recording_1'", "seq_list_filter_file",
        **meta_config(in_memory(["recording_1", "x"]), in_memory(["recording-1", "x"])),
    )  # fmt: skip
    source = Counting(["a"])
    dataset = MetaDataset(
        {"features": in_memory(["b"]), "alignments": CachedDataset(source=source)}, DATA_MAP, None, "alignments"
    )
    with pytest.raises(SourceError, match="no tag 'a'"):
        dataset.init_seq_order(1)
    assert source.reads == []
    assert dataset.num_seqs == 0


def test_a_sequence_that_is_asked_for_must_be_in_all_sub_datasets():
    dataset = init_dataset(meta_config(in_memory(["a"]), in_memory(["a", "b"])))
    assert [row[1] for row in stream(dataset, 1, seq_list=["a"])] == ["a"]
    for order in ({"seq_list": ["a", "b"]}, {"seq_order": [1]}):
        with pytest.raises(SourceError, match="no tag 'b'"):
            dataset.init_seq_order(1, **order)
    with pytest.raises(SourceError, match="has no tag 'c'"):
        dataset.init_seq_order(1, seq_list=["c"])
    with pytest.raises(ConfigError, match="corpus index 2"):
        dataset.init_seq_order(1, seq_order=[2])


def test_data_maps_that_do_not_fit_are_refused_when_built():
    features, alignments = in_memory(["a"]), in_memory(["a"])
    config = meta_config(features, alignments)

    def wrong(match, *names, error=ConfigError, **changes):
        with pytest.raises(error, match=match) as caught:
            init_dataset({**config, **changes})
        for name in names:
            assert name in str(caught.value)

    wrong("no sub-dataset 'feature'", "did you mean 'features'", data_map={"data": ("feature", "data")})
    wrong("no sub-dataset 'data'", data_map={"data": ("data", "data")})
    wrong("has no data key 'dat'", "did you mean 'data'", "data_map", data_map={"data": ("features", "dat")})
    for source in ("features", ("features",), ("features", 3), None, {"features": "data"}):
        wrong(r"must be \(sub-dataset, its data key\)", data_map={"data": source})
    wrong("data_map must be a dict", data_map={})
    wrong("data_map must be a dict", data_map=[("data", ("features", "data"))])
    wrong("datasets must be a dict", datasets={})
    wrong("no sub-dataset 'x'", "seq_order_control_dataset", seq_order_control_dataset="x")
    wrong("the order is that of 'data'", data_map={"x": ("features", "data")}, seq_order_control_dataset=None)
    wrong("does not support window", window=3)
    wrong("no option 'seq_list'", seq_list=["a"])
    wrong("(dim, ndim)", "'data'", data_dims={"data": (3, 2)})
    wrong("data_dims names the data key 'x'", data_dims={"x": (3, 2)})
    wrong("data_dtypes names the data key 'x'", data_dtypes={"x": "int8"})
    dedicated = {
        "class": "MultiProcDataset",
        "dataset": features,
        "num_workers": 1,
        "buffer_size": 1,
        "sharding_method": "dedicated",
    }
    wrong("dedicated", "seq_order", datasets={"features": dedicated, "alignments": alignments})
    wrong("no such file", "seq_list_file", error=SourceError, seq_list_file="nowhere.txt")
    wrong("no such file", "seq_lens_file", error=SourceError, seq_lens_file="nowhere.json")


def test_a_config_that_contains_itself_is_refused():
    config = meta_config(in_memory(["a"]), in_memory(["a"]))
    config["datasets"]["features"] = config
    with pytest.raises(ConfigError, match="contains itself"):
        init_dataset(config)


def test_dtypes_that_differ_are_only_said(caplog):
    config = meta_config(in_memory(["a"]), in_memory(["a"]), data_dtypes={"data": "int8", "classes": "int64"})
    assert len(stream(init_dataset(config), 1)) == 1
    assert "'data' has dtype int8, it has float32" in caplog.text
    assert "classes" not in caplog.text


def test_two_levels_do_not_both_shard():
    config = meta_config(in_memory(["a"]), in_memory(["a"], _num_shards=3, _shard_index=1))
    with pytest.raises(ConfigError, match="two levels would shard"):
        init_dataset({**config, "_num_shards": 2})
    assert init_dataset(config).num_shards == 3
    assert init_dataset({**config, "_num_shards": 3, "_shard_index": 1}).num_shards == 3


def test_two_filters_are_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text("a\n")
    config = meta_config(in_memory(["a"]), in_memory(["a"], seq_list_filter_file=tmp_path / "one"))
    with pytest.raises(ConfigError, match="one of its own"):
        init_dataset({**config, "seq_list_filter_file": tmp_path / "two"})
    assert len(stream(init_dataset({**config, "seq_list_filter_file": tmp_path / "one"}), 1)) == 1


@pytest.mark.parametrize(
    ("lists", "error", "match"),
    [
        ({"features": ["a"]}, ConfigError, "no list of tags for the sub-dataset 'alignments'"),
        ({"features": ["a"], "alignments": ["a", "b"]}, SourceError, "differ in length: [12] tags for .*, [12] for"),
        ({"features": ["a", "x"], "alignments": ["a", "b"]}, SourceError, "'features' has no tag 'x'"),
        (
            {"features": ["a", "b"], "alignments": ["a", "a"]},
            SourceError,
            "the list for 'alignments' has the tag 'a' mo",
        ),
        ({"features": ["a"], "alignments": ["a"]}, SourceError, "the list for 'alignments' has no tag 'b'"),
    ],
)
def test_lists_that_do_not_fit_are_refused(tmp_path, lists, error, match):
    for form in ("json", "mapping"):
        config = meta_config(
            in_memory(["a", "b"]), in_memory(["a", "b"]), seq_list_file=lists_in(form, tmp_path, lists)
        )
        refused(error, match, "fix", **config)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("l.json", b'{"features": ["a"], "align', "not what is expected"),
        ("l.json", b'{"features": "a"}', "not what is expected"),
        ("l.json", b"3", "not what is expected"),
        ("l.json.gz", b"no gzip", "gzip"),
        ("l.json.gz", gzip.compress(b'["a"]', mtime=0)[:-3], "gzip"),
        ("l.pkl", pickle.dumps({"features": ["a"]}), "pickle files are refused"),
        ("l.pkl.gz", b"", "pickle files are refused"),
        ("l.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_list_files_that_are_torn_or_something_else_are_refused(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    config = meta_config(in_memory(["a"]), in_memory(["a"]), None, seq_list_file=tmp_path / name)
    with pytest.raises(SourceError, match=match) as caught:
        init_dataset(config)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"a": {"classes": 3}}', "no length of 'data' for the tag 'a'"),
        ("{}", "no length of 'data' for the tag 'a'"),
        ('{"a": 3}', "not what is expected"),
        ('{"a": {"data": "long"}}', "not what is expected"),
        ('{"a": {"data": -1}}', "length -1"),
    ],
)
def test_length_files_that_do_not_fit_are_refused(tmp_path, content, match):
    path = tmp_path / "lens.json"
    path.write_text(content)
    config = meta_config(in_memory(["a"]), in_memory(["a"]), None, seq_lens_file=path, seq_ordering="sorted")
    with pytest.raises(SourceError, match=match):
        stream(init_dataset(config), 1)


def test_an_order_by_lengths_that_nobody_knows_is_refused():
    streamed = {"class": StreamedAndKnown, "tags": ["a", "b"]}
    config = meta_config(streamed, in_memory(["a", "b"]), None, seq_ordering="sorted")
    with pytest.raises(ConfigError, match="does not tell the lengths") as caught:
        stream(init_dataset(config), 1)
    assert "seq_lens_file" in str(caught.value)
    assert len(stream(init_dataset({**config, "seq_ordering": "random"}), 1)) == 2


def test_a_failing_read_says_which_sub_dataset_and_sequence():
    def fail(features):
        raise ZeroDivisionError("broken")

    dataset = init_dataset(meta_config(in_memory(["a", "b"], transform=fail), in_memory(["b", "a"])))
    with pytest.raises(ZeroDivisionError) as caught:
        stream(dataset, 1)
    notes = "\n".join(caught.value.__notes__)
    assert "sub-dataset 'features'" in notes
    assert "sequence 'b'" in notes
