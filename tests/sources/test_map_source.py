import collections

import numpy as np
import pytest

from headrace.errors import ConfigError, OptionalNotImplementedError, SourceError
from headrace.sources import SORT_LENGTHS, MapSource
from headrace.testing import check_source

SPECS = {"data": {"shape": (None, 2)}, "classes": {"sparse": True, "dim": 10}}


class Items:
    """A map-style dataset over a list, which counts its calls."""

    def __init__(self, items):
        self.items = items
        self.num_calls = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        self.num_calls += 1
        return self.items[i]


class WithLengths(Items):
    def get_seq_len(self, i):
        return {"data": len(self.items[i]["data"]), "classes": len(self.items[i]["classes"])}

    def get_seq_tag(self, i):
        return f"item {i}"


class Tagged(Items):
    def __init__(self, items, tags):
        super().__init__(items)
        self.tags = tags

    def get_seq_tag(self, i):
        return self.tags[i]


class FakeTensor:
    """What of a tensor matters here."""

    def __init__(self, array, needs="detach cpu numpy"):
        self.array, self.needs = array, needs.split()

    def _step(self, name):
        assert self.needs[0] == name
        return FakeTensor(self.array, " ".join(self.needs[1:]))

    def detach(self):
        return self._step("detach")

    def cpu(self):
        return self._step("cpu")

    def numpy(self):
        assert self.needs == ["numpy"]
        return self.array


def _dict_item(num_frames):
    return {
        "data": np.full((num_frames, 2), num_frames, np.float32),
        "classes": np.arange(num_frames, dtype=np.int32) % 10,
    }


def test_it_keeps_the_contract_of_a_source_with_and_without_lengths():
    items = [_dict_item(n) for n in (3, 0, 12, 5)]
    check_source(MapSource(WithLengths(items)))
    check_source(MapSource(Items(items), specs=SPECS))
    check_source(MapSource(Items([]), specs=SPECS))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (np.ones((2, 3), np.float32), {"data": np.ones((2, 3), np.float32)}),
        ([1.5, 2.5], {"data": np.array([1.5, 2.5])}),
        (7, {"data": np.array(7)}),
        (np.float32(7), {"data": np.array(7, np.float32)}),
        ((np.zeros(3), 7), {"data": np.zeros(3), "classes": np.array(7)}),
        ((np.zeros(3),), {"data": np.zeros(3)}),
        (collections.namedtuple("Pair", "audio word")(np.zeros(3), 1), {"audio": np.zeros(3), "word": np.array(1)}),
        (FakeTensor(np.zeros(3)), {"data": np.zeros(3)}),
        ({"data": FakeTensor(np.zeros(3, np.int16))}, {"data": np.zeros(3, np.int16)}),
    ],
)
def test_items_of_many_forms_become_arrays_by_data_key(item, expected):
    seq = MapSource(Items([item])).read_seq(0)
    assert list(seq) == list(expected)
    for key, array in expected.items():
        assert seq[key].dtype == array.dtype
        np.testing.assert_array_equal(seq[key], array)


def test_a_tuple_takes_the_data_keys_of_the_specs_in_their_order():
    specs = {"classes": {"sparse": True, "dim": 9, "shape": ()}, "data": {}, "weights": {}}
    seq = MapSource(Items([(8, [1.0, 2.0], [0.5])]), specs=specs).read_seq(0)
    assert {key: array.tolist() for key, array in seq.items()} == {"classes": 8, "data": [1, 2], "weights": [0.5]}
    assert seq["data"].dtype == np.float32


def test_a_longer_tuple_without_specs_is_refused_with_the_way_to_name_its_values():
    with pytest.raises(SourceError, match="specs="):
        MapSource(Items([(1, 2, 3)]))


@pytest.mark.extra
def test_dicts_of_torch_tensors_are_copied_as_those_of_arrays_are():
    torch = pytest.importorskip("torch")
    items = [
        {"data": torch.full((length, 2), float(length)), "classes": torch.tensor(length), "half": torch.zeros(length)}
        for length in (2, 3, 1)
    ]
    items[1]["data"].requires_grad_()  # the way round for what is no plain tensor
    source = MapSource(items, specs={"data": {"shape": (None, 2)}, "classes": {"shape": (), "dtype": "int64"}})
    for number, item in enumerate(items):
        seq = source.read_seq(number)
        assert list(seq) == ["data", "classes"]
        for key, array in seq.items():
            assert type(array) is np.ndarray
            assert array.dtype == item[key].detach().numpy().dtype
            assert array.tolist() == item[key].tolist()
        seq["data"][...] = -1
        assert item["data"].tolist() != seq["data"].tolist()
    items[2]["data"] = torch.zeros(1, 2, dtype=torch.float64)
    source.close()
    with pytest.raises(SourceError, match="float64, not float32"):
        source.read_seq(2)


def test_values_of_the_object_are_not_written_to():
    items = [_dict_item(3)]
    source = MapSource(Items(items))
    source.read(0, "data")[...] = 9
    source.read_seq(0)["classes"][...] = 9
    np.testing.assert_array_equal(items[0]["data"], np.full((3, 2), 3))
    np.testing.assert_array_equal(items[0]["classes"], [0, 1, 2])


def test_an_item_is_asked_for_once_for_all_of_its_keys():
    obj = Items([_dict_item(3), _dict_item(4)])
    source = MapSource(obj, specs={key: {**SPECS[key], "dtype": str(obj.items[0][key].dtype)} for key in SPECS})
    for i in (0, 1):
        source.read(i, "data")
        source.read(i, "classes")
        source.read_slice(i, "data", 0, 1)
        source.read_seq(i)
    assert obj.num_calls == 2
    source.close()
    source.read(1, "data")
    assert obj.num_calls == 3


def test_a_dtype_that_is_not_declared_is_that_of_item_0():
    items = [{"data": np.zeros((3, 2), "float64"), "classes": np.zeros(3, "int16")}] * 2
    source = MapSource(items, specs=SPECS)
    assert {key: spec.dtype for key, spec in source.specs.items()} == {"data": "float64", "classes": "int16"}
    check_source(source)
    declared = MapSource(items, specs={"data": {"shape": (None, 2), "dtype": "float32"}})
    with pytest.raises(SourceError, match="dtype is float64, not float32"):
        declared.read(0, "data")
    assert MapSource([{"data": [[1, 2]], "classes": [1]}], specs=SPECS).read(0, "data").dtype == np.float32
    assert MapSource([], specs=SPECS).specs["data"].dtype == "float32"
    for wrong in ({"data": np.zeros((3, 2)), "classes": np.zeros(3)}, {"data": np.zeros((3, 2))}):
        with pytest.raises(SourceError):
            MapSource([wrong], specs=SPECS).read(0, "data")


@pytest.mark.parametrize(
    "tags", [[b"a", "ä".encode()], np.array(["a", "ä"]), np.array([b"a", "ä".encode()]), np.array(["a", "ä"], object)]
)
@pytest.mark.parametrize("by_object", [False, True])
def test_tags_of_bytes_or_numpy_text_come_back_as_str(tags, by_object):
    items = [_dict_item(1), _dict_item(2)]
    source = MapSource(Tagged(items, tags)) if by_object else MapSource(Items(items), tags=tags)
    assert [type(source.tag(i)) for i in (0, 1)] == [str, str]
    assert [source.tag(i) for i in (0, 1)] == list(source.index.tags) == ["a", "ä"]
    check_source(source)


def test_lengths_by_data_key_are_in_the_index():
    items = [_dict_item(n) for n in (3, 1)]
    for source in (MapSource(WithLengths(items)), MapSource(Items(items), lengths={"data": [3, 1], "classes": [3, 1]})):
        assert source.index.lengths("data").tolist() == [3, 1]
        assert source.seq_lengths(0) == {"data": 3, "classes": 3}
        source.read_seq(1)


def test_one_number_a_sequence_only_sorts():
    class Sorted(Items):
        def get_seq_len(self, i):
            return 100 - i

    items = [_dict_item(n) for n in (3, 1)]
    for source in (MapSource(Sorted(items)), MapSource(Items(items), lengths=np.array([100, 99]))):
        assert source.index.lengths(SORT_LENGTHS).tolist() == [100, 99]
        assert not source.index.has_lengths("data")
        assert source.seq_lengths(0) == {"data": 3, "classes": 3}


def test_without_lengths_the_index_has_none_and_the_sequence_itself_is_asked():
    source = MapSource(Items([(np.zeros((4, 2), np.float32), 7)]))
    assert source.index.data_keys == ("classes",)  # one number, no time: always 1
    assert source.seq_lengths(0) == {"data": 4, "classes": 1}
    with pytest.raises(OptionalNotImplementedError):
        source.index.lengths("data")


@pytest.mark.parametrize("lengths", [[1, -1], [1.5, 2], [float("nan"), 1], [1], [[1], [2]], ["a", "b"], [None, 1]])
@pytest.mark.parametrize("by_key", [False, True])
def test_lengths_that_are_none_are_refused(lengths, by_key):
    source = MapSource(Items([_dict_item(1), _dict_item(2)]), lengths={"data": lengths} if by_key else lengths)
    with pytest.raises(SourceError):
        source.index  # noqa: B018


def test_lengths_with_other_keys_for_some_sequence_are_refused():
    class Odd(Items):
        def get_seq_len(self, i):
            return {"data": 1} if i == 0 else {}

    with pytest.raises(SourceError, match="same data keys"):
        MapSource(Odd([_dict_item(1), _dict_item(1)])).index  # noqa: B018


@pytest.mark.parametrize("kind", ["object", "argument"])
def test_a_length_that_is_not_true_is_refused_when_the_sequence_is_read(kind):
    class Liar(WithLengths):
        def get_seq_len(self, i):
            return {"data": 5}

    items = [_dict_item(3)]
    source = MapSource(Liar(items)) if kind == "object" else MapSource(Items(items), lengths={"data": [5]})
    assert source.index.lengths("data").tolist() == [5]
    with pytest.raises(SourceError, match="has 3 frames, but its length is given as 5"):
        source.read(0, "data")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"data": np.zeros((2, 2), np.float32)}, r"\['data'\], not \['classes', 'data'\]"),
        ({**_dict_item(2), "more": 1}, "'more'"),
        ({**_dict_item(2), "data": np.zeros((2, 2))}, "float64, not float32"),
        ({**_dict_item(2), "data": np.zeros((2, 3), np.float32)}, r"\(3,\), not \(2,\)"),
        ({**_dict_item(2), "data": None}, "not an array of numbers"),
        ((1, 2, 3), "tuple of 3 values"),
    ],
)
def test_an_item_of_another_layout_than_the_first_is_refused_with_its_tag(item, text):
    source = MapSource(Items([_dict_item(3), item]), tags=["one", "two"])
    with pytest.raises(SourceError, match=text) as caught:
        source.read(1, "data")
    assert "'two'" in str(caught.value)


class NoLen:
    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("obj", [NoLen(), Items, 5, None, iter([])])
def test_an_object_that_is_no_map_style_dataset_is_refused(obj):
    with pytest.raises(ConfigError, match="__len__ and __getitem__"):
        MapSource(obj)


def test_an_empty_object_needs_specs():
    with pytest.raises(ConfigError, match="give specs"):
        MapSource(Items([]))
    assert len(MapSource(Items([]), specs=SPECS)) == 0


def test_other_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="1 tags for 2"):
        MapSource(Items([1, 2]), tags=["a"])
    with pytest.raises(ConfigError, match="seq_len"):
        MapSource(Items([{SORT_LENGTHS: 1}]))


def test_an_exception_of_the_object_passes_through():
    class Broken(Items):
        def __getitem__(self, i):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        MapSource(Broken([1]), specs=SPECS).read(0, "data")
