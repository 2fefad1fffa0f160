"""`MetaDataset`: lists of tags, and all that does not fit is refused before anything is read."""

import gzip
import pickle

import pytest
from meta_cases import StreamedAndKnown, in_memory, lists_in, meta_config, stream, tags_of, words

from headrace.datasets import init_dataset
from headrace.errors import ConfigError, SourceError

pytestmark = pytest.mark.usefixtures("own_cache")


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
    asked = stream(dataset, 1, seq_list=expected[control][1:])
    assert asked == [(i, row[1], (i + 1) / 2, row[3]) for i, row in enumerate(rows[1:])]


def test_one_list_for_all_says_which_sequences_there_are_and_may_repeat_them(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("aaa\na\nc\naaa\naa\n")
    tags = ["c", "aaa", "aa", "", "a"]
    dataset = init_dataset(meta_config(in_memory(tags), in_memory(tags[::-1]), None, seq_list_file=path))
    listed = path.read_text().split()
    assert tags_of(dataset) == list(dataset.get_all_tags()) == listed
    assert tags_of(dataset, seq_order=[2, 1]) == ["c", "a"]
    dataset.seq_ordering = "sorted"  # by the lengths of the default dataset at the places of the list
    assert tags_of(dataset) == sorted(listed, key=lambda tag: len(words([tag])[0]["data"]))
    path.write_text("a\n")  # it was read when the dataset was built
    assert dataset.get_total_num_seqs() == 5


# --- what is refused when it is built ---

A = in_memory(["a"])
DEDICATED = {"class": "MultiProcDataset", "num_workers": 1, "buffer_size": 1, "sharding_method": "dedicated"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data_map": {"data": ("feature", "data")}}, "no sub-dataset 'feature'.*did you mean 'features'"),
        ({"data_map": {"data": ("data", "data")}}, "no sub-dataset 'data'"),
        ({"data_map": {"data": ("features", "dat")}}, "has no data key 'dat'.*data_map.*did you mean 'data'"),
        *(
            ({"data_map": {"data": source}}, r"must be \(sub-dataset, its data key\)")
            for source in ("features", ("features",), ("features", 3), None, {"features": "data"})
        ),
        ({"data_map": {}}, "data_map must be a dict"),
        ({"data_map": [("data", ("features", "data"))]}, "data_map must be a dict"),
        ({"datasets": {}}, "datasets must be a dict"),
        ({"seq_order_control_dataset": "x"}, "no sub-dataset 'x'.*seq_order_control_dataset"),
        ({"data_map": {"x": ("features", "data")}, "seq_order_control_dataset": None}, "the order is that of 'data'"),
        ({"window": 3}, "does not support window"),
        ({"seq_list": ["a"]}, "no option 'seq_list'"),
        ({"data_dims": {"data": (3, 2)}}, r"\(dim, ndim\).*'data'|'data'.*\(dim, ndim\)"),
        ({"data_dims": {"x": (3, 2)}}, "data_dims names the data key 'x'"),
        ({"data_dtypes": {"x": "int8"}}, "data_dtypes names the data key 'x'"),
        ({"datasets": {"features": {**DEDICATED, "dataset": A}, "alignments": A}}, "dedicated.*seq_order"),
        ({"seq_list_file": "nowhere.txt"}, "seq_list_file.*no such file|no such file.*seq_list_file"),
        ({"seq_lens_file": "nowhere.json"}, "seq_lens_file.*no such file|no such file.*seq_lens_file"),
        (meta_config(A, in_memory(["a"], _num_shards=3), _num_shards=2), "two levels would shard"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_do_not_fit_are_refused_when_built(changes, match):
    error = SourceError if "no such file" in match else ConfigError
    with pytest.raises(error, match=f"(?s){match}"):
        init_dataset(meta_config(A, A) | changes)


def test_a_config_that_contains_itself_is_refused():
    config = meta_config(A, A)
    config["datasets"]["features"] = config
    with pytest.raises(ConfigError, match="contains itself"):
        init_dataset(config)


def test_one_level_shards_and_filters(tmp_path):
    shard = {"_num_shards": 3, "_shard_index": 1}
    for own in ({}, shard):
        assert init_dataset(meta_config(A, in_memory(["a"], **shard), **own)).num_shards == 3
    for name in ("one", "two"):
        (tmp_path / name).write_text("a\n")
    filtered = in_memory(["a"], seq_list_filter_file=tmp_path / "one")
    with pytest.raises(ConfigError, match="one of its own"):
        init_dataset(meta_config(A, filtered, seq_list_filter_file=tmp_path / "two"))
    assert tags_of(init_dataset(meta_config(A, filtered, seq_list_filter_file=tmp_path / "one"))) == ["a"]


def test_dtypes_that_differ_are_only_said(caplog):
    dataset = init_dataset(meta_config(A, A, data_dtypes={"data": "int8", "classes": "int64"}))
    assert tags_of(dataset) == ["a"]
    assert "'data' has dtype int8, it has float32" in caplog.text
    assert "classes" not in caplog.text


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
    with pytest.raises(SourceError, match=match) as caught:
        init_dataset(meta_config(A, A, None, seq_list_file=tmp_path / name))
    assert name in str(caught.value)


# --- what is refused before anything is read ---

FEW, MANY, TWICE = in_memory(["a", "b"]), in_memory(["a", "b", "ab", "ba"]), in_memory(["b", "a", "b"])


@pytest.mark.parametrize(
    ("features", "alignments", "control", "match"),
    [
        (FEW, MANY, "alignments", "'features' has no tag 'ab', which.*2 of 4.*seq_list_filter_file"),
        (MANY, FEW, None, "'alignments' has no tag 'ab', which"),
        (TWICE, FEW, "alignments", "has the tag 'b' more than once.*unique"),
        (TWICE, {**TWICE}, "alignments", "has the tag 'b' more than once"),
        (in_memory(["line-0", "line-1"]), FEW, "alignments", "no tag 'a'.*'line-0'.*seq_list_file"),
        (
            in_memory(["recording_1", "x"]), in_memory(["recording-1", "x"]), "alignments",
            "no tag 'recording-1'.*did you mean 'recording_1'.*seq_list_filter_file",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_tags_that_do_not_fit_are_refused_before_anything_is_read(features, alignments, control, match):
    dataset = init_dataset(meta_config(features, alignments, control))
    with pytest.raises(SourceError, match=f"(?s){match}"):
        dataset.init_seq_order(1)
    assert dataset.num_seqs == 0


def test_a_sequence_that_is_asked_for_must_be_in_all_sub_datasets():
    dataset = init_dataset(meta_config(A, FEW))
    assert tags_of(dataset, seq_list=["a"]) == ["a"]
    for order, error, match in (
        ({"seq_list": ["a", "b"]}, SourceError, "no tag 'b'"),
        ({"seq_order": [1]}, SourceError, "no tag 'b'"),
        ({"seq_list": ["c"]}, SourceError, "has no tag 'c'"),
        ({"seq_order": [2]}, ConfigError, "corpus index 2"),
    ):
        with pytest.raises(error, match=match):
            dataset.init_seq_order(1, **order)


@pytest.mark.parametrize("form", ["json", "mapping"])
@pytest.mark.parametrize(
    ("features", "alignments", "error", "match"),
    [
        (["a"], None, ConfigError, "no list of tags for the sub-dataset 'alignments'"),
        (["a"], ["a", "b"], SourceError, "differ in length: [12] tags for .*, [12] for"),
        (["a", "x"], ["a", "b"], SourceError, "'features' has no tag 'x'"),
        (["a", "b"], ["a", "a"], SourceError, "the list for 'alignments' has the tag 'a' mo"),
        (["a"], ["a"], SourceError, "the list for 'alignments' has no tag 'b'"),
    ],
)
def test_lists_that_do_not_fit_are_refused(tmp_path, form, features, alignments, error, match):
    lists = {"features": features, **({"alignments": alignments} if alignments else {})}
    with pytest.raises(error, match=f"(?s){match}.*fix"):
        tags_of(init_dataset(meta_config(FEW, FEW, seq_list_file=lists_in(form, tmp_path, lists))))


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
    with pytest.raises(SourceError, match=match):
        tags_of(init_dataset(meta_config(A, A, None, seq_lens_file=path, seq_ordering="sorted")))


def test_an_order_by_lengths_that_nobody_knows_is_refused():
    config = meta_config({"class": StreamedAndKnown, "tags": ["a", "b"]}, FEW, None, seq_ordering="sorted")
    with pytest.raises(ConfigError, match=r"(?s)does not tell the lengths.*seq_lens_file"):
        tags_of(init_dataset(config))
    assert len(tags_of(init_dataset({**config, "seq_ordering": "random"}))) == 2


def test_a_failing_read_says_which_sub_dataset_and_sequence():
    def fail(features):
        raise ZeroDivisionError("broken")

    dataset = init_dataset(meta_config(in_memory(["a", "b"], transform=fail), in_memory(["b", "a"])))
    with pytest.raises(ZeroDivisionError) as caught:
        tags_of(dataset)
    notes = "\n".join(caught.value.__notes__)
    assert "sub-dataset 'features'" in notes
    assert "sequence 'b'" in notes
