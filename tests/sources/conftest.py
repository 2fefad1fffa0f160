"""Hand-made files for the tests of sources."""

import resource

import h5py
import msgspec
import numpy as np
import pytest

from headrace.index.storage import describe_columns, open_stored, write_index

HDF_LENGTHS = [3, 0, 5, 1]


@pytest.fixture
def write_layout():
    """Return a function that writes an HDF5 file in RETURNN's layout, part by part.

    By default it has four sequences, the input `inputs` and the target "classes", the tags a..d, and no descriptions.
    `parts` replaces a part, adds one, or leaves one out (None); `h5py.Group` makes a group. Further options are those
    of the datasets with numbers.
    """

    def write(path, parts=None, attrs=None, sizes=None, **storage):
        everything = {
            "inputs": np.arange(9 * 4, dtype=np.float32).reshape(9, 4),
            "targets/data/classes": np.arange(9, dtype=np.int32),
            "seqLengths": np.array([HDF_LENGTHS, HDF_LENGTHS], np.int32).T,
            "seqTags": np.array([b"a", b"b", b"c", b"d"]),
            **(parts or {}),
        }
        with h5py.File(path, "w") as file:
            for name, value in everything.items():
                if value is h5py.Group:
                    file.create_group(name)
                elif isinstance(value, list):
                    file.create_dataset(name, data=value, dtype=h5py.string_dtype())
                elif value is not None:
                    is_data = isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and name != "seqLengths"
                    file.create_dataset(name, data=value, **(storage if is_data else {}))
            if sizes is not None:
                file.require_group("targets/size").attrs.update(sizes)
            file.attrs.update(attrs or {})
        return path

    return write


@pytest.fixture
def damage_index():
    """Return a function that writes one number all over a column of an index file, with the right checksums."""

    def damage(path, name, value):
        stored = open_stored(path)
        columns = {key: np.array(column) for key, column in stored.columns.items()}
        columns[name] = np.full(len(columns[name]), value, columns[name].dtype)
        write_index(path, msgspec.structs.replace(stored.header, columns=describe_columns(columns)), columns)

    return damage


@pytest.fixture
def small_disk():
    """A limit of 1 MB a file stands for a full disk: the system refuses to write more, by an error of the same kind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
