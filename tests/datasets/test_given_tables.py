"""Tables of other libraries, given to a loader as they are."""

import numpy as np
import pytest

from headrace import ConfigError, DataLoader, FrameBudget, HuggingFaceSource

pytestmark = pytest.mark.extra

ROWS = {"x": [[1, 2], [3], [4, 5, 6]], "y": [0.5, 1.0, 2.0]}
TEXTS = {**ROWS, "t": ["a", "b", "c"]}


@pytest.fixture
def hub():
    pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
    return pytest.importorskip("datasets", reason="tables of Hugging Face")


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas", reason="DataFrames of pandas")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_hugging_face_dataset_is_padded_and_its_lengths_are_known(hub, num_workers):
    dataset = hub.Dataset.from_dict(ROWS)
    with DataLoader(dataset, batching=FrameBudget(6), num_workers=num_workers) as loader:
        first, second = loader
    assert first["x"].tolist() == [[1, 2], [3, 0]]
    assert first.lengths["x"].tolist() == [2, 1]
    assert second["y"].tolist() == [2.0]


def test_its_rows_are_left_as_they_are_where_they_have_texts_or_a_collate_gets_them(hub):
    dataset = hub.Dataset.from_dict(TEXTS)
    with DataLoader(dataset, batch_size=2) as loader:
        assert [batch["t"] for batch in loader] == [["a", "b"], ["c"]]
    with DataLoader(dataset, batch_size=2, collate=list) as loader:
        assert [row for batch in loader for row in batch] == list(dataset)
    with DataLoader(dataset, batching=FrameBudget(100)) as loader:
        assert next(iter(loader))["x"].shape == (3, 3)


def test_a_hugging_face_dataset_is_shuffled_and_selected_as_any(hub):
    dataset = hub.Dataset.from_dict({"n": list(range(50))}).select(range(10, 50))
    with DataLoader(dataset, batch_size=40, shuffle=True) as loader:
        numbers = next(iter(loader))["n"].tolist()
    assert numbers != sorted(numbers) == list(range(10, 50))


def test_splits_are_named_where_one_is_to_be_chosen_and_the_only_one_is_taken(hub):
    splits = hub.DatasetDict({name: hub.Dataset.from_dict(ROWS) for name in ("train", "test")})
    with pytest.raises(ConfigError, match=r"'train', 'test'[\s\S]*dataset\['train'\]"):
        DataLoader(splits, batch_size=2)
    splits = hub.DatasetDict({"train": hub.Dataset.from_dict({"n": [3, 4]})})
    with DataLoader(splits, batch_size=2) as loader:
        assert next(iter(loader))["n"].tolist() == [3, 4]
    assert HuggingFaceSource(splits).read(1, "n") == 4


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_rows_of_a_data_frame_are_items_by_column(pandas, num_workers):
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]}, index=[7, 3, 5])
    with DataLoader(frame, batch_size=2, num_workers=num_workers) as loader:
        batches = list(loader)
    assert [batch["a"].tolist() for batch in batches] == [[1, 2], [3]]
    assert batches[0]["b"].dtype == np.float64


def test_a_data_frame_may_have_texts_arrays_and_a_collate(pandas):
    frame = pandas.DataFrame({"x": [np.arange(2), np.arange(1)], "y": [1, 2]})
    with DataLoader(frame, batch_size=2) as loader:
        assert next(iter(loader))["x"].tolist() == [[0, 1], [0, 0]]
    frame = pandas.DataFrame({"t": ["a", "b"], 3: [1, 2]})
    with DataLoader(frame, batch_size=2) as loader:
        batch = next(iter(loader))
    assert (list(batch["t"]), batch["3"].tolist()) == (["a", "b"], [1, 2])
    with DataLoader(frame, batch_size=2, collate=lambda rows: [row["t"] for row in rows]) as loader:
        assert list(loader) == [["a", "b"]]
    with pytest.raises(ConfigError, match="several columns 'a'"):
        DataLoader(pandas.DataFrame([[1, 2]], columns=["a", "a"]), batch_size=1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_that_are_not_what_is_stored_come_as_they_are(hub, num_workers):
    def found(dataset):
        with DataLoader(dataset, batch_size=2, num_workers=num_workers) as loader:
            return [
                {key: getattr(value, "tolist", lambda v=value: v)() for key, value in batch.items()} for batch in loader
            ]

    mixed = hub.Dataset.from_dict({"y": [1, 2], "words": [["a", "b"], ["c", "d"]]})
    assert found(mixed)[0].keys() == {"y", "words"}
    features, rows = hub.Features({"y": hub.Value("int64"), "t": hub.Value("large_string")}), {"y": [1], "t": ["a"]}
    assert found(hub.Dataset.from_dict(rows, features=features)) == [rows]
    table = hub.Dataset.from_dict({"x": [1, 2], "y": [3, 4]})
    assert found(table.with_format("numpy", columns=["x"])) == [{"x": [1, 2]}]
    assert found(table.with_transform(lambda rows: {"z": [10 * x for x in rows["x"]]})) == [{"z": [10, 20]}]
