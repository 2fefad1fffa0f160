"""The bytes of an id are no length: rows give the same batches from every format, and as a stream."""

import io
import json
import tarfile

import numpy as np
import pytest

import headrace
from headrace import ConfigError, FrameBudget
from headrace.specs import DataSpec

ROWS = [{"id": f"utterance-{i:030d}", "label": i % 3, "tokens": list(range(1 + i % 7))} for i in range(40)]


def write_jsonl(folder, rows=ROWS):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(folder):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), folder / "rows.parquet")
    return folder / "rows.parquet"


def write_tar(folder):
    with tarfile.open(folder / "rows.tar", "w") as archive:
        for i, row in enumerate(ROWS):
            tokens = io.BytesIO()
            np.save(tokens, np.array(row["tokens"], np.int32))
            for ext, data in (("id.txt", row["id"].encode()), ("tokens.npy", tokens.getvalue())):
                info = tarfile.TarInfo(f"{i:03d}.{ext}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return folder / "rows.tar"


class Stream:
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return ({key: np.array(v) if isinstance(v, list) else v for key, v in row.items()} for row in self.rows)


def source_of(path):
    return {"class": "SourceDataset", "source": headrace.open_source(path)}


def passed_on(seqs, **_):
    yield from seqs


DATA = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "tar": write_tar,
    "joined": lambda folder: {"class": "ConcatDataset", "datasets": [source_of(write_jsonl(folder))]},
    "renamed": lambda folder: {
        "class": "MetaDataset",
        "datasets": {"a": source_of(write_jsonl(folder))},
        "data_map": {"data": ("a", "id"), "words": ("a", "tokens")},
    },
    "in workers": lambda folder: {
        "class": "MultiProcDataset",
        "dataset": source_of(write_jsonl(folder)),
        "num_workers": 0,
        "buffer_size": 3,
    },
    "changed": lambda folder: {
        "class": "PostprocessingDataset",
        "dataset": source_of(write_jsonl(folder)),
        "map_seq_stream": passed_on,
    },
    "files": lambda folder: {
        "class": "DistributeFilesDataset",
        "files": [str(write_jsonl(folder))],
        "get_sub_epoch_dataset": lambda files: {
            "class": "SourceDataset",
            "source": {"class": "JsonlSource", "files": files},
        },
        "partition_epoch": 1,
        "num_workers": 0,
    },
    "stream": lambda folder: Stream(ROWS),
}


def num_seqs(data, batching):
    with headrace.DataLoader(data, batching=batching) as loader:
        return [batch.num_seqs for batch in loader]


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", sorted(DATA))
def test_rows_give_the_same_batches_from_every_format_and_as_a_stream(kind, tmp_path):
    expected = num_seqs([{"tokens": np.array(row["tokens"])} for row in ROWS], FrameBudget(20))
    assert num_seqs(DATA[kind](tmp_path), FrameBudget(20)) == expected


def test_a_text_counts_where_nothing_else_has_a_time_axis(tmp_path):
    path = write_jsonl(tmp_path, [{"label": row["label"], "id": row["id"]} for row in ROWS])
    assert num_seqs(path, FrameBudget(len(ROWS[0]["id"]) * 4)) == [4] * 10


def test_a_text_that_is_named_counts(tmp_path):
    batching = FrameBudget(len(ROWS[0]["id"]) * 4, data_key="id")
    assert num_seqs(write_jsonl(tmp_path), batching) == [4] * 10


def test_between_two_keys_behind_a_text_the_user_chooses(tmp_path):
    path = write_jsonl(tmp_path, [{**row, "more": row["tokens"]} for row in ROWS])
    with pytest.raises(ConfigError, match=r"'id' is a text; these have a time axis: 'tokens', 'more'"):
        num_seqs(path, FrameBudget(20))


def test_bytes_that_were_asked_for_count(tmp_path):
    path = write_jsonl(tmp_path)
    source = headrace.open_source(path, fields={"text": {"field": "id", "vocab": "bytes"}, "tokens": "tokens"})
    assert num_seqs(source, FrameBudget(len(ROWS[0]["id"]) * 4)) == [4] * 10


def test_the_mark_outlives_being_stored_and_tells_no_layouts_apart():
    text, plain = DataSpec("uint8", sparse=True, dim=256, is_text=True), DataSpec("uint8", sparse=True, dim=256)
    assert text == plain
    assert [DataSpec.from_json(spec.to_json()).is_text for spec in (text, plain)] == [True, False]
