"""HDF5 files, in both directions, against the documented reader and writers themselves."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.sources import HDFSource, HDFWriter
from headrace.specs import DataSpec

pytest.importorskip("returnn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hdf = pytest.importorskip("returnn.datasets.hdf")
    generating = pytest.importorskip("returnn.datasets.generating")

pytestmark = [pytest.mark.filterwarnings("ignore")]

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
EDGES = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


def open_peer(*paths):
    dataset = hdf.HDFDataset(files=[str(path) for path in paths], cache_byte_size=0)
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, dataset.num_seqs)
    return dataset


def assert_same_array(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


def assert_same_corpus(source, dataset):
    """Compare everything that both sides say of a file."""
    assert len(source) == dataset.num_seqs
    assert source.index.tags[:] == list(dataset.get_all_tags())
    keys = dataset.get_data_keys()
    assert list(source.specs) == keys
    for key in keys:
        spec = source.specs[key]
        assert spec.dtype == dataset.get_data_dtype(key)
        assert spec.sparse == dataset.is_data_sparse(key)
        dim, ndim = dataset.num_outputs[key]
        assert spec.ndim == ndim
        # Of an input with more axes the reference reports the second as the dim; of a target the last, as we always do.
        assert spec.dim == dim or (key == "data" and ndim > 2)
        assert list(source.labels.get(key, [])) == list(dataset.labels.get(key, []))
    for idx in range(len(source)):
        assert source.tag(idx) == dataset.get_tag(idx)
        lengths = dataset.get_seq_length(idx)
        for key in keys:
            assert source.seq_lengths(idx)[key] == lengths[key]
            assert_same_array(source.read(idx, key), dataset.get_data(idx, key))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_we_write_the_reference_reads_to_the_bit(tmp_path_factory, data):
    keys = data.draw(st.lists(st.sampled_from(["data", "classes", "b-ä", "0"]), min_size=1, max_size=3, unique=True))
    shapes = {key: tuple(data.draw(st.lists(st.integers(1, 3), max_size=2))) for key in keys}
    dtypes = {key: data.draw(st.sampled_from(DTYPES)) for key in keys}
    tags = data.draw(st.lists(st.text(EDGES, min_size=1, max_size=8), min_size=1, max_size=5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    seqs = [{key: rng.integers(0, 99, (data.draw(st.integers(1, 6)), *shapes[key])) for key in keys} for _ in tags]
    seqs = [{key: array.astype(dtypes[key]) for key, array in seq.items()} for seq in seqs]
    path = tmp_path_factory.mktemp("ours") / "corpus.hdf"
    with HDFWriter(path, compression=data.draw(st.sampled_from([None, "gzip", "lzf"]))) as writer:
        for tag, seq in zip(tags, seqs, strict=True):
            writer.append(tag, seq)
    dataset = open_peer(path)
    for idx, (tag, seq) in enumerate(zip(tags, seqs, strict=True)):
        assert dataset.get_tag(idx) == tag
        for key in keys:
            assert_same_array(dataset.get_data(idx, key), seq[key])
    assert_same_corpus(HDFSource(path, index=None), dataset)


def test_labels_dims_and_empty_sequences_of_ours_reach_the_reference(tmp_path):
    specs = {"data": DataSpec("float32", (4,), dim=4), "classes": DataSpec("int32", (), sparse=True, dim=3)}
    with HDFWriter(tmp_path / "corpus.hdf", specs=specs, labels={"classes": ["x", "y", "ü"]}) as writer:
        for idx, frames in enumerate([2, 0, 5]):
            classes = np.full(frames, 1, np.int32)
            writer.append(f"s-{idx}", {"data": np.full((frames, 4), idx, np.float32), "classes": classes})
    dataset = open_peer(tmp_path / "corpus.hdf")
    assert dataset.labels["classes"] == ["x", "y", "ü"]
    assert_same_corpus(HDFSource(tmp_path / "corpus.hdf", index=None), dataset)


def test_several_files_of_ours_are_the_same_corpus_to_the_reference(tmp_path):
    paths = [tmp_path / f"{idx}.hdf" for idx in range(3)]
    for number, path in enumerate(paths):
        with HDFWriter(path) as writer:
            for idx in range(1 + number):
                writer.append(f"{number}/{idx}", {"data": np.full((idx + 1, 2), number * 10 + idx, np.float32)})
    assert_same_corpus(HDFSource(paths, index=None), open_peer(*paths))


def test_a_file_of_the_simple_writer_is_read_to_the_bit(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "simple.hdf"
    writer = hdf.SimpleHDFWriter(
        str(path), dim=4, extra_type={"classes": (7, 1, "int32"), "attention": (3, 2, "float32")}
    )
    for batch in range(3):
        lengths = [5, 3, 1] if batch else [2, 2, 1]
        extra = {
            "classes": rng.integers(0, 7, (3, 4)).astype(np.int32),
            "attention": rng.random((3, 2, 3), dtype=np.float32),
            "score": rng.random(3).astype(np.float32),
        }
        inputs = rng.random((3, max(lengths), 4), dtype=np.float32)
        tags = [f"batch-{batch}/ö{idx}" for idx in range(3)]
        writer.insert_batch(inputs, lengths, tags, extra=extra)
    writer.close()
    assert_same_corpus(HDFSource(path, index=None), open_peer(path))


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_file_of_the_simple_writer_with_only_one_key_is_read_to_the_bit(tmp_path, ndim):
    path = tmp_path / "simple.hdf"
    writer = hdf.SimpleHDFWriter(str(path), dim=6, ndim=ndim, labels=list("abcdef"))
    inputs = np.arange(12, dtype=np.int32).reshape(2, 6) % 6 if ndim == 1 else np.ones((2, 6, 6), np.float32)
    writer.insert_batch(inputs, [6, 4], ["x", "y"])
    writer.close()
    assert_same_corpus(HDFSource(path, index=None), open_peer(path))


def test_a_file_of_the_dataset_writer_is_read_to_the_bit(tmp_path):
    path = tmp_path / "dumped.hdf"
    dataset = generating.Task12AXDataset(num_seqs=20)
    dataset.init_seq_order(epoch=1)
    writer = hdf.HDFDatasetWriter(str(path))
    writer.dump_from_dataset(dataset, use_progress_bar=False)
    writer.close()
    source = HDFSource(path, index=None)
    assert len(source) == 20
    assert_same_corpus(source, open_peer(path))
