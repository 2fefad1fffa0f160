"""Files of tokens in Megatron's format: another reader finds in them what was written."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.sources import TokenSource, TokenWriter

pytest.importorskip("returnn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    megatron = pytest.importorskip("returnn.datasets.megatron")

pytestmark = [pytest.mark.filterwarnings("ignore")]


@given(
    documents=st.lists(st.lists(st.integers(0, 100), max_size=9), min_size=1, max_size=6),
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16", "int32", "int64"]),
)
@examples(25)
def test_what_is_written_is_read_by_the_documented_dataset(tmp_path, documents, dtype):
    path = tmp_path / "tokens.bin"
    with TokenWriter(path, dtype=dtype, overwrite=True) as writer:
        for number, document in enumerate(documents):
            writer.append(f"doc-{number}", {"data": np.array(document, np.int64)})
    dataset = megatron.MegatronDataset(data_file=str(path), index_file=str(path.with_suffix(".idx")), vocab_size=101)
    dataset.initialize()
    dataset.init_seq_order(epoch=1)
    source = TokenSource(path, by="document", index=None)
    assert dataset.num_seqs == len(source) == len(documents)
    for seq_idx, document in enumerate(documents):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        assert dataset.get_data(seq_idx, "data").tolist() == source.read(seq_idx, "data").tolist() == document
        assert dataset.get_tag(seq_idx) == f"tokens/{source.tag(seq_idx)}/seq-0"
        assert source.read(seq_idx, "data").dtype == np.dtype(dtype)
