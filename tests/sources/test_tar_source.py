"""`TarSource`: what it makes of archives that others wrote, what it refuses, and that it reads no more than it must."""

import contextlib
import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import TarSource
from headrace.sources.tar.archive import open_archive, scan_members
from headrace.specs import DataSpec
from headrace.testing import check_source

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}
SAMPLES = np.linspace(-0.5, 0.5, 400, dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def info_of(name, data=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


def write_tar(path, members, tar_format=tarfile.PAX_FORMAT):
    """Write members, as webdataset does: pairs of name (or `TarInfo`) and bytes."""
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            archive.addfile(name if isinstance(name, tarfile.TarInfo) else info_of(name, data), io.BytesIO(data))
    return path


def arrays(num_seqs, first=0):
    return [np.arange(3 * (idx % 5), dtype=np.float32).reshape(-1, 3) + idx for idx in range(first, first + num_seqs)]


def write_arrays(path, num_seqs=4, first=0, **options):
    members = []
    for idx, array in enumerate(arrays(num_seqs, first), first):
        members += [(f"train/{idx:06d}.npy", npy(array)), (f"train/{idx:06d}.cls", b"%d" % (idx % 7))]
    return write_tar(path, members, **options)


@contextlib.contextmanager
def opened(files, **options):
    """A source that is built without a cache, and closed at the end of the block."""
    source = TarSource(files, **{"index": None, **options})
    try:
        yield source
    finally:
        source.close()


# --- what it reads ---


@pytest.mark.parametrize("tar_format", FORMATS)
def test_members_with_one_key_are_a_sequence_in_every_format_of_tar(tmp_path, tar_format):
    path = write_arrays(tmp_path / "shard.tar", tar_format=FORMATS[tar_format])
    with opened(path) as source:
        assert source.index.tags[:] == [f"train/{idx:06d}" for idx in range(4)]
        assert list(source.specs) == ["npy", "cls"]
        assert source.specs["npy"] == DataSpec("float32", (3,), dim=3)
        assert source.specs["cls"] == DataSpec("int32", sparse=True, dim=4, has_time=False)
        assert source.index.lengths("npy").tolist() == [0, 1, 2, 3]
        for idx, array in enumerate(arrays(4)):
            np.testing.assert_array_equal(source.read(idx, "npy"), array)
            assert source.read(idx, "cls").tolist() == idx
        check_source(source)


def test_several_archives_are_one_corpus_and_keys_may_repeat_in_another(tmp_path):
    paths = [write_arrays(tmp_path / f"{name}.tar", 3) for name in "ab"]
    with opened(paths) as source:
        assert source.index.tags[:] == [f"train/{idx:06d}" for idx in range(3)] * 2
        check_source(source)
    with opened(paths, tag_field="shard/key") as source:
        assert source.index.tags[2:4] == ["a/train/000002", "b/train/000000"]
    with pytest.raises(ConfigError, match="not a path"):
        TarSource([paths[0], 3])


def test_ranges_in_braces_name_archives_unless_a_file_is_really_called_so(tmp_path):
    for number in range(8, 11):
        write_arrays(tmp_path / f"x-{number:03d}.tar", 1, number)
    with opened(tmp_path / "x-{008..010}.tar") as source:
        assert source.index.tags[:] == ["train/000008", "train/000009", "train/000010"]
    write_arrays(tmp_path / "x-{008..010}.tar", 2)
    with opened(str(tmp_path / "x-{008..010}.tar")) as source:
        assert len(source) == 2
    for name in ("x-{3..1}.tar", "x-{0..99999999999}.tar"):
        with pytest.raises(ConfigError, match="range"):
            TarSource(name)


def test_long_names_and_odd_letters_are_read_as_tarfile_writes_them(tmp_path):
    names = ["x" * 150 + "/" + "y" * 90, "größe/" + "ü" * 120, "z" * 99, "dir.with.dots/key"]
    for tar_format in ("pax", "gnu"):
        members = [(f"{name}.txt", name.encode()) for name in names]
        path = write_tar(tmp_path / f"{tar_format}.tar", members, FORMATS[tar_format])
        with opened(path) as source:
            assert source.index.tags[:] == names
            assert [bytes(source.read(idx, "txt")).decode() for idx in range(4)] == names


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)


@examples(40)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=5), st.sampled_from(["pax", "gnu"]))
def test_members_are_found_where_tarfile_finds_them_whatever_their_names(tmp_path, members, tar_format):
    members = [(f"a{name}", data) for name, data in members if ".." not in name and not name.endswith("/")]
    path = write_tar(tmp_path / "shard.tar", members, FORMATS[tar_format])
    with tarfile.open(path) as archive:
        wanted = [(member.name, member.offset_data, member.size) for member in archive]
    with open_archive(str(path)) as archive:
        assert [tuple(member) for member in scan_members(archive, str(path))] == wanted


def test_a_leading_dot_folders_notes_and_files_without_extension_make_no_difference(tmp_path):
    members = [
        (info_of("./", type=tarfile.DIRTYPE), b""),
        (info_of("./sub", type=tarfile.DIRTYPE), b""),
        ("README", b"read me"),
        ("./sub/.hidden.txt", b"hidden"),
        ("__notes__/any.json", b"{"),
        ("./sub/a.b.txt", b"text"),
    ]
    with opened(write_tar(tmp_path / "shard.tar", members)) as source:
        assert source.index.tags[:] == ["sub/a"]
        assert list(source.specs) == ["b"]
        assert bytes(source.read(0, "b")) == b"text"


def old_header(name, num_bytes, *, signed=False):
    """Return a header of the format before POSIX: no magic, and perhaps a sum of numbers with a sign."""
    fields = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o " % num_bytes + b"0" * 11 + b" "
    rest = b"\0" * (512 - 156)
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in fields + b" " * 8 + rest)
    return fields + b"%06o\0 " % total + rest


@pytest.mark.parametrize("signed", [False, True])
def test_archives_of_old_programs_are_read(tmp_path, signed):
    path = tmp_path / "shard.tar"
    name = "größe.txt".encode()
    folder = old_header(b"folder/", 0, signed=signed)
    path.write_bytes(folder + old_header(name, 3, signed=signed) + b"abc".ljust(512, b"\0") + bytes(1024))
    with opened(path) as source:
        assert source.index.tags[:] == ["größe"]
        assert bytes(source.read(0, "txt")) == b"abc"


@pytest.mark.parametrize("tar_format", ["gnu", "pax"])
def test_members_beyond_eight_gib_are_found(tmp_path, tar_format):
    path = tmp_path / "shard.tar"
    size = (8 << 30) + 700
    last = info_of("b.bin", b"xyz").tobuf(tarfile.USTAR_FORMAT) + b"xyz".ljust(512, b"\0") + bytes(1024)
    with open(path, "wb") as file:  # a hole: the disk need not have that room
        first = info_of("a.bin")
        first.size = size
        file.write(first.tobuf(FORMATS[tar_format]))
        end = file.seek(-(-(file.tell() + size) // 512) * 512)
        file.write(last)
    with opened(path) as source:
        assert source.index.lengths("bin").tolist() == [size, 3]
        assert source.read_slice(0, "bin", size - 2, size).tolist() == [0, 0]
        assert bytes(source.read(1, "bin")) == b"xyz"
    os.truncate(path, end)
    refused(path, "truncated")


ODD_ARRAYS = {
    "another frame shape": ([np.ones((2, 3)), np.zeros((1, 5))], DataSpec("float64", (None,))),
    "columns first": ([np.ones((2, 3), "i2"), np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3))], None),
    "another byte order": ([np.arange(3, dtype=">f4"), np.arange(4, dtype="<f4")], DataSpec("float32", dim=1)),
    "no time": ([np.float32(3), np.float32(4)], DataSpec("float32", dim=1, has_time=False)),
    "no frames": ([np.zeros((0, 3), bool)], DataSpec("bool", (3,), dim=3)),
    "complex": ([np.ones((2, 2, 2), "c8")], DataSpec("complex64", (2, 2), dim=2)),
}


@pytest.mark.parametrize("case", ODD_ARRAYS)
def test_arrays_of_all_layouts_are_read_as_they_were_saved(tmp_path, case):
    given_arrays, spec = ODD_ARRAYS[case]
    path = write_tar(tmp_path / "shard.tar", [(f"{idx}.x.npy", npy(a)) for idx, a in enumerate(given_arrays)])
    with opened(path) as source:
        assert spec is None or source.specs["x"] == spec
        for idx, array in enumerate(given_arrays):
            read = source.read(idx, "x")
            assert read.dtype.isnative
            np.testing.assert_array_equal(read, array)
        check_source(source)


def test_an_index_is_built_without_reading_the_data_of_members(tmp_path):
    path = write_tar(tmp_path / "shard.tar", [(f"{idx}.npy", npy(np.zeros(1_000_000))) for idx in range(10)])

    def num_read():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    before = num_read()
    assert len(TarSource(path, index=None)) == 10
    assert num_read() - before < 4_000_000  # of 80; the stamp and the end mark take some


ANYTHING = {"npy": npy(np.ones((2, 3))), "txt": "größe".encode(), "cls": b"3", "json": b'{"a": [1, 2]}'}
SHARD = [
    ("a.txt", "größe\n".encode()),
    ("a.json", json.dumps({"word": "zwei", "n": 7, "more": {"xs": [1, 2.5], "ok": [True]}, "id": "u1"}).encode()),
    ("a.cls", b"3\n"),
    ("a.pkl", b"\xff\xd8\xff"),
    ("b.txt", b"klein"),
    ("b.json", json.dumps({"word": "eins", "n": -1, "more": {"xs": [], "ok": [False]}, "id": "u2"}).encode()),
    ("b.cls", b"0"),
    ("b.pkl", b""),
]


def test_extensions_say_how_members_are_read(tmp_path):
    with opened(write_tar(tmp_path / "shard.tar", SHARD)) as source:
        assert list(source.specs) == ["txt", "json", "cls", "pkl"]
        assert source.specs["txt"] == source.specs["json"] == DataSpec("uint8", sparse=True, dim=256)
        assert source.specs["pkl"] == DataSpec("uint8", dim=1)
        assert bytes(source.read(0, "txt")) == SHARD[0][1]
        assert bytes(source.read(0, "pkl")) == b"\xff\xd8\xff"
        assert source.index.lengths("pkl").tolist() == [3, 0]
        check_source(source)


def test_fields_name_members_values_in_json_and_vocabularies(tmp_path):
    fields = {
        "orth": "txt",
        "chars": {"field": "txt", "vocab": "chars"},
        "word": {"field": "json:word", "vocab": None},
        "n": "json:n",
        "xs": "json:more.xs",
        "ok": "json:more.ok",
        "name": "json:word",
        "classes": {"field": "cls", "vocab": list("wxyz")},
        "index": {"field": "cls", "vocab": 9},
    }
    path = write_tar(tmp_path / "shard.tar", SHARD)
    with opened(path, fields=fields, tag_field="json:id") as source:
        assert source.index.tags[:] == ["u1", "u2"]
        assert list(source.specs) == list(fields)
        assert {key: list(labels) for key, labels in source.labels.items()} == {
            "chars": sorted(set("größeklein")),
            "word": ["eins", "zwei"],
            "classes": list("wxyz"),
        }
        first = {key: array.tolist() for key, array in source.read_seq(0).items()}
        assert "".join(source.labels["chars"][i] for i in first["chars"]) == "größe"  # without the line's end
        assert (first["word"], first["n"], first["xs"], first["ok"]) == (1, 7, [1.0, 2.5], [True])
        assert (first["classes"], first["index"], bytes(first["name"])) == (3, 3, b"zwei")
        assert source.specs["n"] == DataSpec("int32", sparse=True, has_time=False)  # as `JsonlSource` reads them
        assert source.specs["xs"] == DataSpec("float32", dim=1)
        assert source.specs["index"].dim == 9
        check_source(source)
        copy = pickle.loads(pickle.dumps(source))
        assert copy.read(1, "word").tolist() == 0
        copy.close()


def write_audio(path, form="WAV", rates=(8000, 8000), samples=SAMPLES):
    soundfile = pytest.importorskip("soundfile")
    members = []
    for idx, rate in enumerate(rates):
        stream = io.BytesIO()
        soundfile.write(stream, samples[: len(samples) - idx], rate, format=form)
        members += [(f"{idx}.{form.lower()}", stream.getvalue()), (f"{idx}.txt", b"text")]
    return write_tar(path, members)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_recordings_are_samples_or_features_and_their_lengths_come_from_headers(tmp_path, form):
    path = write_audio(tmp_path / "shard.tar", form)
    with opened(path) as source:
        assert source.specs[form.lower()] == DataSpec("float32", (1,), dim=1)
        assert source.index.lengths(form.lower()).tolist() == [400, 399]
        np.testing.assert_allclose(
            source.read(1, form.lower())[:, 0], SAMPLES[:399], atol=0.2 if form == "OGG" else 1e-4
        )
        check_source(source)
    data = {"field": form.lower(), "features": {"num_mels": 12}, "sample_rate": 16000}
    with opened(path, fields={"data": data}) as source:
        pytest.importorskip("soxr")
        assert source.read(0, "data").shape == (source.index.lengths("data")[0], 12)
        check_source(source)


def test_recordings_of_different_rates_or_torn_ones_or_wrong_options_are_refused(tmp_path):
    path = write_audio(tmp_path / "shard.tar", rates=(8000, 16000))
    with pytest.raises(ConfigError, match="different sample rates: 8000, 16000 Hz") as caught:
        TarSource(path, index=None)
    assert "'1.wav'" in caught.value.where
    truncated = write_tar(tmp_path / "truncated.tar", [("a.wav", b"RIFF")])
    with pytest.raises(SourceError, match="truncated") as caught:
        TarSource(truncated, index=None)
    assert "'a.wav'" in caught.value.where
    with pytest.raises(ConfigError, match="unknown option 'rate'"):
        TarSource(path, fields={"data": {"field": "wav", "rate": 3}})


def picture(number, form):
    stream = io.BytesIO()
    pixels = np.full((4, 6, 3), number * 20, np.uint8)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(stream, form)
    return stream.getvalue()


@pytest.mark.extra
def test_of_several_extensions_of_images_each_sequence_has_one_and_capitals_do_not_matter(tmp_path):
    forms = {"png": "PNG", "bmp": "BMP", "PNG": "PNG"}
    members = []
    for number, (ext, form) in enumerate(forms.items()):
        members += [(f"{number}.{ext}", picture(number, form)), (f"{number}.Cls", b"%d" % number)]
    path = write_tar(tmp_path / "a.tar", members)
    with opened(path, fields={"image": "png;bmp", "classes": "cls"}) as source:
        assert len(source) == 3
        for number in range(3):
            assert (source.read(number, "image") == number * 20).all()
            assert source.read(number, "classes") == number
    with pytest.raises(ConfigError, match="of several extensions, all are of images"):
        TarSource(path, fields={"x": "png;cls"})


def test_a_list_of_extensions_names_the_members_to_read(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.x.npy", npy(np.arange(3))), ("0.cls", b"1"), ("0.txt", b"no")])
    with opened(path, fields=["x.npy", "cls"]) as source:
        assert list(source.specs) == ["x", "cls"]
        assert source.read(0, "x").tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="the same data key"):
        TarSource(path, fields=["x.npy", "x.txt"])
    with pytest.raises(ConfigError, match="fields cannot be read: 3"):
        TarSource(path, fields=3)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_several_in_a_member_are_read_by_name_without_reading_it_for_the_index(tmp_path, monkeypatch, save):
    members = []
    for idx in range(3):
        stream = io.BytesIO()
        save(stream, features=np.random.default_rng(idx).random((idx * 1000, 40)), classes=np.arange(idx), spoken=idx)
        members.append((f"{idx}.npz", stream.getvalue()))
    path = write_tar(tmp_path / "shard.tar", members)
    fields = {
        "data": "npz:features",
        "classes": {"field": "npz:classes", "vocab": ["a", "b"]},
        "spoken": {"field": "npz:spoken", "vocab": 3},
    }
    asked = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (asked.append(size), pread(fd, size, at))[1])
    with opened(path, fields=fields) as source:
        assert sum(asked) < 800_000  # of 960 kB, of which the stamps look at 130
        assert source.index.lengths("data").tolist() == [0, 1000, 2000]
        assert source.specs["classes"] == DataSpec("int64", sparse=True, dim=2)
        assert source.labels == {"classes": ["a", "b"]}
        np.testing.assert_array_equal(source.read(2, "data"), np.random.default_rng(2).random((2000, 40)))
        assert source.read(2, "spoken") == 2
        check_source(source)
    refused(path, "no array 'x', only features, classes", fields={"data": "npz:x"})
    path.write_bytes(path.read_bytes().replace(b"PK\x05\x06", b"PK\x05\x07"))
    refused(path, "arrays cannot be read", fields=fields)


def test_classes_of_arrays_are_compared_with_their_vocab(tmp_path):
    path = write_tar(tmp_path / "shard.tar", [("a.npy", npy(np.array([1, 2]))), ("b.npy", npy(np.array([3])))])
    with opened(path, fields={"classes": {"field": "npy", "vocab": 3}}) as source:
        assert source.specs["classes"] == DataSpec("int64", sparse=True, dim=3)
        assert source.read(0, "classes").tolist() == [1, 2]
        with pytest.raises(SourceError, match=r"3\.\.3, and there are 3 classes"):
            source.read(1, "classes")
    path = write_tar(tmp_path / "reals.tar", [("a.npy", npy(np.array([1.0])))])
    with pytest.raises(ConfigError, match="vocab is for class indices"):
        TarSource(path, fields={"classes": {"field": "npy", "vocab": 3}})


# --- what it refuses ---


def refused(path, match, **options):
    with pytest.raises(SourceError, match=match) as caught:
        TarSource(path, index=None, **options)
    assert str(path) in caught.value.where
    assert caught.value.fix
    return caught.value


LINKS = [
    {"type": tarfile.LNKTYPE, "linkname": "a.txt"},
    {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    {"type": tarfile.CHRTYPE},
    {"type": tarfile.FIFOTYPE},
    {"type": b"Q"},
    {"pax_headers": {"GNU.sparse.major": "1"}},
]


@pytest.mark.parametrize("attributes", LINKS)
def test_what_is_no_plain_file_is_refused(tmp_path, attributes):
    path = write_tar(tmp_path / "shard.tar", [("a.txt", b"x"), (info_of("b.txt", **attributes), b"")])
    refused(path, "'b.txt' is a link, a device")


@pytest.mark.parametrize("name", ["/etc/passwd.txt", "../a.txt", "a/../../b.txt", ".//../a.txt", "..", "a/.."])
def test_a_member_that_leads_out_of_the_archive_is_refused(tmp_path, name):
    error = refused(write_tar(tmp_path / "shard.tar", [(name, b"x")]), "leads out of the archive")
    assert repr(name) in error.what


def test_a_member_twice_or_a_key_that_comes_again_is_refused(tmp_path):
    path = write_tar(tmp_path / "twice.tar", [("a.txt", b"x"), ("./a.txt", b"y")])
    refused(path, "is there twice")
    path = write_tar(tmp_path / "again.tar", [("a.txt", b"x"), ("b.txt", b"x"), ("a.npy", b"y")])
    error = refused(path, "'a' do not follow one another")
    assert "'a.npy'" in error.where
    assert "--sort=name" in error.fix


def test_sequences_with_other_members_than_the_first_are_refused_or_left_out(tmp_path, caplog):
    path = write_tar(tmp_path / "less.tar", [("a.txt", b"x"), ("a.cls", b"1"), ("b.txt", b"yy")])
    refused(path, r"'b' has the members \['txt'\]")
    with opened(path, fields={"data": "txt"}) as source:
        assert len(source) == 2
    with opened(path, missing="skip") as source:
        assert source.index.tags[:] == ["a"]
    assert "1 sequences lack a member" in caplog.text
    path = write_tar(tmp_path / "more.tar", [("a.txt", b"x"), ("b.txt", b"yy"), ("b.cls", b"1")])
    refused(path, r"'b' has the members \['cls', 'txt'\]")


def test_sequences_that_lack_a_field_of_a_json_member_are_left_out_if_that_is_wanted(tmp_path, caplog):
    members = [("a.json", b'{"n": 1, "o": {"t": "x"}}'), ("b.json", b'{"n": 300, "o": {}}'), ("c.json", b'{"n": 2}')]
    members += [("d.json", b'{"n": null, "o": {"t": "y"}}'), ("e.json", b'{"n": 3, "o": {"t": "y"}}')]
    path = write_tar(tmp_path / "less.tar", members)
    refused(path, "there is no field 'o.t'", fields={"n": "json:n", "t": "json:o.t"})
    with opened(path, fields={"n": "json:n", "t": "json:o.t"}, missing="skip") as source:
        assert source.index.tags[:] == ["a", "e"]
        assert [source.read(i, "n").tolist() for i in range(2)] == [1, 3]
    assert "3 sequences lack a member or a field" in caplog.text


def test_a_torn_archive_is_refused_wherever_it_ends(tmp_path):
    path = write_arrays(tmp_path / "shard.tar", 3, tar_format=tarfile.GNU_FORMAT)
    data = path.read_bytes()
    end = data.rstrip(b"\0").rfind(b"ustar")  # in the last header
    for size in {0, 1, 511, 512, 700, 1024, 1536, end, end + 400}:
        path.write_bytes(data[:size])
        refused(path, "truncated")
    long_name = write_tar(tmp_path / "long.tar", [("x" * 300 + ".txt", b"x")], tarfile.GNU_FORMAT)
    long_name.write_bytes(long_name.read_bytes()[:600])
    refused(long_name, "truncated")


def test_archives_that_were_joined_by_their_bytes_are_refused(tmp_path):
    one = write_arrays(tmp_path / "one.tar", 2)
    joined = tmp_path / "joined.tar"
    joined.write_bytes(one.read_bytes() * 2)
    refused(joined, "data behind the end mark")


@examples(40)
@given(st.integers(0, 511), st.integers(1, 255))
def test_a_header_with_any_wrong_byte_is_refused(tmp_path, position, change):
    path = write_tar(tmp_path / "shard.tar", [("a.txt", b"x")], tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    if position in range(148, 156):
        return  # `tarfile` reads a number as Python does: with signs, blanks and underscores
    data[position] ^= change
    path.write_bytes(data)
    refused(path, "checksum of a header is wrong|truncated|compressed")


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2**20), st.sampled_from(b"09/. \0\x80\xff{")), min_size=1, max_size=4))
def test_whatever_is_changed_in_an_archive_it_is_read_or_refused_by_an_error_that_says_so(tmp_path, changes):
    members = [(f"{'ü' * 60}{idx}.{ext}", data) for idx in range(2) for ext, data in ANYTHING.items()]
    path = write_tar(tmp_path / "shard.tar", members)
    data = bytearray(path.read_bytes())
    headers = [start for start in range(0, len(data), 512) if data[start + 257 : start + 262] == b"ustar"]
    for place, byte in changes:
        if place % 2:  # in what the headers say first: names and sizes
            data[headers[place % len(headers)] + place // 2 % 157] = byte
        else:
            data[place // 2 % len(data)] = byte
    for start in headers:  # a wrong sum would hide all else
        data[start + 148 : start + 156] = b" " * 8
        data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    path.write_bytes(data)
    fields = {"data": "npy", "a": "json:a", "chars": {"field": "txt", "vocab": "chars"}, "classes": "cls"}
    for chosen in (None, fields):
        with contextlib.suppress(HeadraceError), opened(path, fields=chosen) as source:
            assert all(len(source.read_seq(idx)) == len(source.specs) for idx in range(len(source)))


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08", b"BZh9", b"\x28\xb5\x2f\xfd"])
def test_a_compressed_archive_is_refused_with_what_to_do(tmp_path, magic):
    path = tmp_path / "shard.tar.gz"
    path.write_bytes(magic + bytes(600))
    assert "decompress" in refused(path, "compressed").fix


def test_what_is_no_archive_or_not_there_is_refused(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(b"text" * 500)
    refused(path, "checksum of a header is wrong")
    with pytest.raises(SourceError, match="does not exist"):
        TarSource(tmp_path / "nothing.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no tar files"):
        TarSource(tmp_path / "empty")
    refused(write_tar(path, [("README", b"x"), ("a.", b"x")]), "none of the 2 files has a name")


BAD_ARRAYS = {
    "objects": (npy(np.array([{}, None])), "pickled|objects"),
    "text": (npy(np.array(["x"])), "not an array of numbers|no plain numbers"),
    "records": (npy(np.zeros(2, [("a", "i4")])), "not an array of numbers|no plain numbers"),
    "truncated": (npy(np.zeros(9))[:-1], "takes 200 bytes with its header, and the member has 199"),
    "too long": (npy(np.zeros(9)) + b"x", "has 201"),
    "no header": (b"x" * 300, "not a file in NumPy"),
    "half a header": (npy(np.zeros(9))[:60], "header|ends"),
    "empty": (b"", "not a file in NumPy"),
    "code": (npy(np.zeros(9)).replace(b"False", b"f()  "), "header"),
    "a huge shape": (npy(np.zeros(9)).replace(b"(9,)", b"(10**30,)"), "header|shape|takes"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_an_array_that_is_none_of_numbers_or_torn_is_refused(tmp_path, case):
    data, match = BAD_ARRAYS[case]
    path = write_tar(tmp_path / "shard.tar", [("fine.npy", npy(np.zeros(9))), ("wrong.npy", data)])
    assert "'wrong.npy'" in refused(path, match).where


def test_arrays_of_another_dtype_or_number_of_axes_are_refused(tmp_path):
    for wrong in (np.zeros(9, "f4"), np.zeros((9, 1)), np.float64(9)):
        path = write_tar(tmp_path / "shard.tar", [("a.npy", npy(np.zeros(9))), ("b.npy", npy(wrong))])
        refused(path, r"members \.npy: this is float\d\d\[.*, and float64\[T\] is wanted")


BAD_VALUES = [
    ("cls", b"one", "cls", "not a whole number"),
    ("cls", b"1.5", "cls", "not a whole number"),
    ("cls", b"99999999999", "cls", "do not fit int32"),
    ("cls", b"7", {"field": "cls", "vocab": 5}, "there are 5 classes"),
    ("txt", b"\xff", {"field": "txt", "vocab": "chars"}, "not UTF-8"),
    ("json", b"{", "json:a", "not JSON"),
    ("json", b"[1]", "json:a", "no field 'a'"),
    ("json", b'{"b": 1}', "json:a", "no field 'a'"),
    ("json", b'{"a": null}', "json:a", "no field 'a'"),
    ("json", b'{"a": [[1], 2]}', "json:a", "no number, text, or list"),
    ("json", b'{"a": 100000000000000000000}', "json:a", "one dtype"),
    ("json", b'{"a": [9007199254740993, 0.5]}', "json:a", "one dtype"),
]


@pytest.mark.parametrize(("ext", "data", "field", "match"), BAD_VALUES)
def test_a_value_that_has_no_array_is_refused(tmp_path, ext, data, field, match):
    path = write_tar(tmp_path / "shard.tar", [(f"a.{ext}", data)])
    with pytest.raises(SourceError, match=match) as caught:
        TarSource(path, fields={"data": field})
    assert f"{path}, member 'a.{ext}'" in caught.value.where


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fields": {"data": 3}}, "cannot be read: 3"),
        ({"fields": {"data": {"vocab": "chars"}}}, "cannot be read"),
        ({"fields": {"data": "txt:a"}}, "names no members"),
        ({"fields": {"data": "json:a..b"}}, "names no members"),
        ({"fields": {"data": {"field": "npy", "features": 3}}}, "unknown option 'features'"),
        ({"fields": {"data": {"field": "npy", "vocab": "chars"}}}, "vocab of an array"),
        ({"fields": {"data": {"field": "npz:x", "vocab": 0}}}, "vocab of an array"),
        ({"fields": {"data": {"field": "txt", "labels": ["a"]}}}, "labels is for characters"),
        ({"fields": {"data": {"field": "json:a", "labels": ["a"]}}}, "labels is for characters"),
        ({"fields": {"data": {"field": "txt", "vocabulary": 3}}}, "unknown option 'vocabulary'"),
        ({"fields": {"data": {"field": "json:a", "features": "raw"}}}, "unknown option 'features'"),
        ({"missing": "ignore"}, "missing is 'ignore'"),
        ({"tag_field": 3}, "tag_field is a str"),
        ({"tag_field": "txt:a"}, "names no members"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path, options, match):
    with pytest.raises(ConfigError, match=match):
        TarSource(write_tar(tmp_path / "shard.tar", SHARD), **options)


def test_an_empty_archive_is_an_empty_corpus(tmp_path):
    path = write_tar(tmp_path / "shard.tar", [])
    with opened(path) as source:
        assert len(source) == 0
        assert source.specs == {}
        check_source(source)
    with pytest.raises(ConfigError, match=r"no members \.npy"):
        TarSource(path, fields={"data": "npy"})


# --- the index ---


@pytest.mark.parametrize(
    ("column", "value"), [("end/npy", 2**40), ("end/npy", -1), ("bytes/npy", -1), ("bytes/npy", 7)]
)
def test_a_damaged_index_gives_an_error_that_names_it(tmp_path, damage_index, column, value):
    path = tmp_path / "corpus.hrindex"
    shard = write_tar(tmp_path / "shard.tar", [(f"{i}.npy", npy(np.zeros(40 + i))) for i in range(3)])
    fields = {"data": "npy"}
    TarSource(shard, fields=fields, index=None).index.save(path)
    damage_index(path, f"locators/{column}", value)
    source = TarSource(shard, fields=fields, index=path)
    with pytest.raises(SourceError, match="the index is damaged") as caught:
        source.read(1, "data")
    assert caught.value.where == str(path)
    source.close()
