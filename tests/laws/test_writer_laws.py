"""What any writer takes it gives back bit for bit, or it refuses it and leaves nothing."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import open_source
from headrace.sources.formats import FORMATS
from headrace.sources.registry import open_writer
from headrace.specs import DataSpec

Corpus = tuple[dict[str, DataSpec], list[tuple[str, dict[str, NDArray[Any]]]]]

WRITERS = [name for name, entry in FORMATS.items() if entry.writer]
NEEDS = {"parquet": "pyarrow", "arrow": "pyarrow"}
DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


@st.composite
def specs(draw: st.DrawFn) -> DataSpec:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, None, 0]), max_size=3)))
    has_time = draw(st.booleans())
    if np.dtype(dtype).kind in "iu" and draw(st.booleans()):
        dim = draw(st.sampled_from([None, 1, 5, 127]))
        return DataSpec(dtype, shape if draw(st.booleans()) else (), sparse=True, dim=dim, has_time=has_time)
    return DataSpec(dtype, shape, dim=shape[-1] if shape else 1, has_time=has_time)


def arrays_of(spec: DataSpec, rng: np.random.Generator) -> NDArray[Any]:
    shape = [int(rng.integers(0, 4)) if size is None else size for size in spec.shape]
    if spec.has_time:
        shape.insert(0, int(rng.integers(0, 5)))
    dtype = np.dtype(spec.dtype)
    if spec.sparse:
        return rng.integers(0, min(spec.dim or 100, 100), shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    array = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4)
    if dtype.kind == "c":
        array = array + 1j * rng.standard_normal(shape)
    return np.asarray(array).astype(dtype)


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    keys = draw(
        st.sampled_from([["data"], ["classes"], ["data", "orth"], ["x", "data", "a b"], ["a;b", "jpg;", "x.y/z:", ""]])
    )
    layout = {key: draw(specs()) for key in keys}
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    tags = [f"seq-{number}" for number in range(draw(st.integers(0, 3)))]
    return layout, [(tag, {key: arrays_of(spec, rng) for key, spec in layout.items()}) for tag in tags]


def write(name: str, path: str, corpus: Corpus, *, tells_specs: bool) -> None:
    layout, seqs = corpus
    with open_writer(FORMATS[name], path, specs=layout if tells_specs else None) as writer:
        for tag, arrays in seqs:
            writer.append(tag, arrays)


def read(name: str, path: str, keys: Mapping[str, DataSpec]) -> Any:
    entry = FORMATS[name]
    options: dict[str, Any] = {} if entry.key_option is None else {entry.key_option: next(iter(keys))}
    return open_source(path, source_class=entry.source, index=None, **options)


@pytest.mark.parametrize("name", WRITERS)
@examples(60)
@given(corpus=corpora(), tells_specs=st.booleans())
@example(({"emb": DataSpec("float32", (3,), dim=3, has_time=False)}, [("a", {"emb": np.arange(3, dtype="f4")})]), True)
@example(({"pcm": DataSpec("int16", (), dim=1)}, [("a", {"pcm": np.array([-3, 4], "i2")})]), True)
@example(({"image": DataSpec("uint8", (3, 3), dim=3)}, [("a", {"image": np.full((2, 3, 3), 255, "u1")})]), True)
def test_what_is_written_is_read_back_to_the_bit_or_refused_and_nothing_is_left(
    name: str, corpus: Corpus, tells_specs: bool
) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    layout, seqs = corpus
    if not tells_specs and not seqs:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"corpus{FORMATS[name].suffix}")
        try:
            write(name, path, corpus, tells_specs=tells_specs)
        except (ConfigError, SourceError):
            assert os.listdir(folder) == []
            return
        source = read(name, path, layout)
        try:
            assert len(source) == len(seqs)
            for corpus_idx, (tag, arrays) in enumerate(seqs):
                assert source.tag(corpus_idx) == tag
                found = source.read_seq(corpus_idx)
                assert found.keys() == arrays.keys()
                for key, array in arrays.items():
                    assert found[key].dtype == array.dtype, key
                    # HDF5 knows no key without a time axis: it is one frame there.
                    as_frame = [(1, *array.shape)] if not layout[key].has_time else []
                    assert found[key].shape in (array.shape, *as_frame), key
                    assert found[key].tobytes() == array.tobytes(), key
            if tells_specs:
                for key, spec in layout.items():
                    assert source.specs[key].sparse == spec.sparse, key
        finally:
            source.close()
