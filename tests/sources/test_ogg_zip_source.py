"""`OggZipSource`: archives of recordings and texts, and what is refused."""

import ast
import gzip
import io
import os
import shutil
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import OggZipDataset
from headrace.errors import ConfigError, NotCarriedOverError, SourceError
from headrace.features import LogMel
from headrace.sources import OggZipSource, open_source
from headrace.sources.ogg_zip.archives import scan_entries
from headrace.sources.ogg_zip.samples import OggZipSamples
from headrace.testing import check_source
from ogg_zips import write_ogg_zip

soundfile = pytest.importorskip("soundfile")

RAW = {"features": "raw", "peak_normalization": False}
LETTERS = {"class": "CharacterTargets", "labels": list("abcdefghijklmnopqrstuvwxyzöß '"), "unknown_label": None}
TEXTS = ["größe", "", "it's a word", 'with "both"']
LENGTHS = [400, 0, 250, 90]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def samples_of(number):
    return np.random.default_rng(number).uniform(-0.5, 0.5, LENGTHS[number]).astype(np.float32)[:, None]


def write(path, numbers=(0, 1, 2, 3), **options):
    seqs = [(f"s/{number}", samples_of(number), TEXTS[number]) for number in numbers]
    return write_ogg_zip(path, seqs, **options)


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.zip")


def wav(num_samples, rate=8000):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(num_samples), rate, format="WAV")
    return file.getvalue()


def write_by_hand(path, entries, members, text_name=None, method=zipfile.ZIP_STORED):
    """Write an archive of any members; `entries` may be any text."""
    name = path.name.removesuffix(".zip")
    text = entries if isinstance(entries, str | bytes) else repr(entries)
    with pytest.MonkeyPatch.context() as patch, zipfile.ZipFile(path, "w", method) as archive:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of names that come twice
        archive.writestr(text_name or f"{name}.txt", text)
        for member, content in members:
            archive.writestr(member, content)
    return path


def entry(file="a.wav", text="a", duration=0.1, **more):
    return {"text": text, "duration": duration, "file": file, **more}


# --- what comes out ---


@pytest.mark.parametrize("audio_format", ["wav", "flac", "ogg"])
@pytest.mark.parametrize("data_lengths", [None, "header"])
def test_an_archive_keeps_the_contract_of_a_source(tmp_path, audio_format, data_lengths):
    path = write(tmp_path / "a.zip", (0, 1, 2) if audio_format == "wav" else (0, 2), audio_format=audio_format)
    source = OggZipSource(path, audio=RAW, targets=LETTERS, data_lengths=data_lengths)
    check_source(source)
    assert list(source.specs) == ["data", "classes", "orth"]
    assert source.index.has_lengths("data") == (data_lengths is not None)
    source.close()


def test_what_was_written_is_read_back(corpus):
    source = OggZipSource(corpus, audio=RAW)
    assert list(source.index.tags) == ["s/0", "s/1", "s/2", "s/3"]
    for number, text in enumerate(TEXTS):
        np.testing.assert_array_equal(source.read(number, "data"), samples_of(number), strict=True)
        assert source.read_text(number) == source.read(number, "orth").tobytes().decode() == text
    assert source.index.lengths("seq_len").tolist() == [int(length / 8000 * 100) for length in LENGTHS]
    source.close()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_stored_and_deflated_archives_are_read_and_several_are_one_corpus(tmp_path, corpus, method):
    members = [(f"other/{name}.wav", wav(number)) for number, name in enumerate(("x", "größe"), start=5)]
    other = write_by_hand(tmp_path / "other.zip", [entry("x.wav"), entry("größe.wav", "b")], members, method=method)
    source = OggZipSource([corpus, other], audio=RAW, targets=None, data_lengths="header")
    assert list(source.index.tags)[4:] == ["x.wav", "größe.wav"]
    assert source.index.lengths("data").tolist()[4:] == [5, 6]
    check_source(source)
    source.close()


def test_names_inside_can_be_told(tmp_path, corpus):
    (tmp_path / "renamed.zip").symlink_to(corpus)
    with pytest.raises(SourceError, match=r"no renamed\.txt.*corpus\.txt"):
        OggZipSource(tmp_path / "renamed.zip", audio=None)
    for options in ({"content_name": "corpus"}, {"resolve_symlink_for_name": True}):
        assert len(OggZipSource(tmp_path / "renamed.zip", audio=RAW, **options)) == 4
    flat = write_by_hand(tmp_path / "flat.zip", [entry("x/a.wav")], [("x/a.wav", wav(3))])
    with pytest.raises(SourceError, match=r"'flat/x/a\.wav' is missing"):
        OggZipSource(flat, audio=RAW)
    assert OggZipSource(flat, audio=RAW, zip_audio_files_have_name_as_prefix=False).read(0, "data").shape == (3, 1)


def test_a_text_beside_the_archive_replaces_its_own(tmp_path, corpus):
    other = tmp_path / "corpus.txt.gz"
    entries = [entry("00000002.wav", "two"), entry("00000000.wav", "zero", seq_name="null")]
    other.write_bytes(gzip.compress(repr(entries).encode()))
    source = OggZipSource([corpus, other], audio=RAW)
    assert list(source.index.tags) == ["00000002.wav", "null"]
    assert source.read_text(1) == "zero"
    np.testing.assert_array_equal(source.read(0, "data"), samples_of(2))
    check_source(source)
    source.close()
    with pytest.raises(ConfigError, match=r"no archive other\.zip"):
        OggZipSource([corpus, other.rename(tmp_path / "other.txt.gz")], audio=RAW)


def test_a_folder_takes_the_place_of_an_archive(tmp_path, corpus):
    with zipfile.ZipFile(corpus) as archive:
        archive.extractall(tmp_path / "out")
    source = OggZipSource(tmp_path / "out" / "corpus", audio=RAW, targets=None, data_lengths="header")
    zipped = OggZipSource(corpus, audio=RAW, data_lengths="header")
    assert source.index.digest == zipped.index.digest
    np.testing.assert_array_equal(source.read(2, "data"), zipped.read(2, "data"))
    check_source(source)
    (tmp_path / "out" / "corpus.txt").write_text(repr([entry("../../corpus.zip")]))
    with pytest.raises(SourceError, match="outside its root"):
        OggZipSource(tmp_path / "out" / "corpus", audio=RAW)
    for one in (source, zipped):
        one.close()


def test_a_folder_of_archives_is_one_corpus(tmp_path, corpus):
    folder = tmp_path / "many"
    folder.mkdir()
    with pytest.raises(SourceError, match=r"no \.zip files, and there is no many\.txt beside it"):
        OggZipSource(folder, audio=RAW)
    for name in ("b.zip", "a.zip", ".hidden.zip"):
        shutil.copy(corpus, folder / name)
    (folder / "README").write_text("of other things")
    with OggZipDataset(folder, content_name="corpus", audio=RAW, targets=None) as dataset:
        listed = OggZipSource([folder / "a.zip", folder / "b.zip"], content_name="corpus", audio=RAW)
        assert len(listed) == 8
        assert dataset.get_all_tags() == list(listed.index.tags)
        listed.close()
    (folder / "a.txt.gz").write_bytes(gzip.compress(repr([]).encode()))
    for name in ("a", "b"):
        (folder / f"{name}.zip").unlink()
        write_by_hand(folder / f"{name}.zip", [entry("0.wav")], [(f"{name}/0.wav", wav(0))])
    assert len(open_source(folder)) == 1  # the text beside a.zip replaces that in it


def test_tags_and_subsets_choose_sequences(tmp_path, corpus):
    (tmp_path / "tags").write_text("s/3\ns/0\nnone\n")
    (tmp_path / "tags.gz").write_bytes(gzip.compress(b"s/3\ns/0\n"))
    for file in ("tags", "tags.gz"):
        source = OggZipSource(corpus, audio=None, segment_file=tmp_path / file)
        assert list(source.index.tags) == ["s/0", "s/3"]
    order = list(range(4))
    np.random.RandomState(42).shuffle(order)
    for subset, num_seqs in ((3, 3), (0.5, 2), (99, 4)):
        source = OggZipSource(corpus, audio=None, fixed_random_subset=subset)
        assert list(source.index.tags) == [f"s/{i}" for i in order[:num_seqs]]


# --- samples ---


def test_samples_have_the_documented_values():  # those of RETURNN
    times = np.arange(2000)
    samples = (0.3 * np.sin(times * times / 9000) + 0.1 * np.sin(times / 3)).astype(np.float32)
    found = OggZipSamples.parse({"features": "raw", "preemphasis": 0.97})(samples, 8000, "x")
    assert found.shape == (2000, 1)
    np.testing.assert_allclose(found[7], [-0.09786], rtol=1e-4, atol=1e-4)
    assert abs(float(np.abs(found).mean()) - 0.29228) < 1e-3 * 0.29228


@pytest.mark.parametrize("audio", [{}, {"features": "mfcc"}, {"features": "log_mel_filterbank", "window_len": 0.02}])
def test_the_features_of_returnn_are_for_a_transform(corpus, audio):
    with pytest.raises(NotCarriedOverError, match=r"(?s)not offered.*features.*raw.*transform.*LogMel"):
        OggZipDataset(corpus, audio=audio, targets=None)
    mel = LogMel(8000)
    dataset = OggZipDataset(
        corpus, audio=RAW, targets=None, transform=lambda seq: {**seq, "data": mel(seq["data"][:, 0])}
    )
    dataset.init_seq_order(1)
    dataset.load_seqs(0, 1)
    assert dataset.get_data(0, "data").shape == (mel.num_frames(LENGTHS[0]), 40)


@pytest.mark.parametrize(
    ("audio", "what"),
    [
        ({"random_permute": True}, "random_permute=True is not offered"),
        ({"with_delta": 1}, "with_delta"),
        ({"window": 3}, "window=3 is not offered"),
        ({"features": "raw", "num_feature_filters": 2}, "1 feature"),
        ({"features": "raw", "feature_options": {"n_mels": 3}}, "feature_options"),
        ({"features": "raw", "join_frames": 0}, "join_frames"),
        ({"features": "raw", "norm_mean": np.zeros(3)}, "a sample is 1 number"),
        ("raw", "a dict of options"),
    ],
)
def test_audio_options_that_are_not_offered_are_refused(corpus, audio, what):
    with pytest.raises(ConfigError, match=what):
        OggZipSource(corpus, audio=audio)


def test_recordings_of_another_rate_are_refused(corpus):
    source = OggZipSource(corpus, audio={**RAW, "sample_rate": 16000})
    with pytest.raises(SourceError, match=r"8000 Hz, not 16000\n.*s/0"):
        source.read(0, "data")
    source.close()


# --- the text ---

VALUES = st.one_of(st.text(max_size=20), st.floats(0, 1e6), st.integers(0, 10**6), st.none(), st.booleans())


@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.floats(0, 1e6), st.text(max_size=9), st.dictionaries(st.text(), VALUES)),
        max_size=5,
    ),
    st.sampled_from([", ", ",\n", " ,\n# a 'comment' {\n"]),
    st.sampled_from(["", ",", "\n"]),
)
@examples(60)
def test_any_list_of_dicts_is_read_as_python_reads_it(rows, comma, end):
    dicts = [{**more, "text": text, "duration": seconds, "seq_name": tag} for text, seconds, tag, more in rows]
    for one in dicts:
        one.pop("file", None)
    text = ("[" + comma.join(map(repr, dicts)) + (end if dicts else "") + "]\n").encode()
    assert ast.literal_eval(text.decode()) == dicts
    found = list(scan_entries(text, "x"))
    assert [(one.text, one.duration, one.tag) for one in found] == [
        (one["text"], one["duration"], one["seq_name"]) for one in dicts
    ]


def test_unusual_literals_are_read_too():
    text = b"""\xef\xbb\xbf # made by hand
    [ {"text": "it's" ' two', "duration": 1, 'file': u'a', 'x': [1, {'y': ('}', 2)}], },
      {'text': '\\u00e4\\'', 'duration': 2_0.5, "seq_name": r'b',}]"""
    assert [(one.text, one.duration, one.tag) for one in scan_entries(text, "x")] == [
        ("it's two", 1.0, "a"),
        ("ä'", 20.5, "b"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("{'text': 'a'}", 1),
        ("[\n{'text': 'a', 'duration': 1.0, 'file': 'a'}", 2),
        ("[\n{'text': 'a', 'duration': 1.0, 'file': 'a'}\n{'text'", 3),
        ("[\n{'text': 'a', 'duration': 1.0, 'file': 'a'},\n{'text': 'a', 'dura", 3),
        ("[\n{'text': open('/etc/passwd'), 'duration': 1.0, 'file': 'a'}]", 2),
        ("[{'text': __import__('os').getcwd(), 'duration': 1.0, 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': 'long', 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': -1.0, 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': 1e999, 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': 1e30, 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': 1" + "0" * 400 + ", 'file': 'a'}]", 1),
        ("[{'text': '\\ud800', 'duration': 1.0, 'file': 'a'}]", 1),
        ("[{'text': '\\ud800', 'x': [1], 'duration': 1.0, 'file': 'a'}]", 1),
        ("[{1, 2}]", 1),
        ("[{'text': 7, 'duration': 1.0, 'file': 'a'}]", 1),
        ("[{'text': 'a', 'duration': 1.0}]", 1),
        ("[{'text': 'a', 'duration': 1.0, 'file': ['a']}]", 1),
        ("[]\n[]", 1),
        ("[" + "{'a':" * 3000 + "]", 1),
    ],
)
def test_a_broken_text_is_refused_with_its_line(tmp_path, text, line):
    path = write_by_hand(tmp_path / "a.zip", text, [])
    with pytest.raises(SourceError, match=rf"a\.txt, line {line}\n"):
        OggZipSource(path, audio=None)


# --- archives ---


@pytest.mark.parametrize("name", ["../a.wav", "/a.wav", "a/../../b", "C:/x", "..\\x"])
def test_members_that_lead_out_are_refused(tmp_path, name):
    path = write_by_hand(tmp_path / "a.zip", [entry()], [("a/a.wav", wav(3)), (name, b"")])
    with pytest.raises(SourceError, match="leads out of the archive"):
        OggZipSource(path, audio=RAW)


def test_members_that_are_there_twice_or_not_at_all_are_refused(tmp_path):
    path = write_by_hand(tmp_path / "a.zip", [entry()], [("a/a.wav", wav(3)), ("a/a.wav", wav(4))])
    with pytest.raises(SourceError, match=r"'a/a\.wav' twice"):
        OggZipSource(path, audio=RAW)
    entries = [entry(f"{i}.wav") for i in range(9)]
    path = write_by_hand(tmp_path / "b.zip", entries, [("b/3.wav", wav(3))])
    with pytest.raises(SourceError, match=r"'b/0\.wav' is missing"):
        OggZipSource(path, audio=RAW)
    assert len(OggZipSource(path, audio=None)) == 9
    path = write_by_hand(tmp_path / "c.zip", [{"text": "", "duration": 0.0, "seq_name": "x"}], [])
    with pytest.raises(SourceError, match="'x' names no 'file'"):
        OggZipSource(path, audio=RAW)


def test_a_torn_archive_and_a_damaged_member_are_refused(corpus):
    content = corpus.read_bytes()
    source = OggZipSource(corpus, audio=RAW)
    status = os.stat(corpus)
    damaged = bytearray(content)
    damaged[200:300] = bytes(100)
    corpus.write_bytes(damaged)
    os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match=r"checksum differs\n.*'s/0'"):
        source.read(0, "data")
    np.testing.assert_array_equal(source.read(2, "data"), samples_of(2))
    source.close()
    corpus.write_bytes(content[:-30])
    with pytest.raises(SourceError, match="archive cannot be read"):
        OggZipSource(corpus, audio=RAW)
    with pytest.raises(SourceError, match="does not exist"):
        OggZipSource(corpus.with_name("missing.zip"), audio=RAW)


def test_a_member_that_claims_to_be_huge_is_refused(tmp_path):
    path = write_by_hand(tmp_path / "a.zip", [entry()], [("a/a.wav", bytes(5000))], method=zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)  # the second entry of the directory
    content[place + 24 : place + 28] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    source = OggZipSource(path, audio=RAW)
    with pytest.raises(SourceError, match="the member is damaged"):
        source.read(0, "data")
    source.close()


def test_a_member_that_would_be_outside_the_archive_is_refused(tmp_path):
    path = write_by_hand(tmp_path / "a.zip", [entry()], [("a/a.wav", bytes(5000))])
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    for field, value in ((42, 1 << 31), (42, len(content)), (20, 1 << 31)):  # where it is; how many bytes
        damaged = content.copy()
        damaged[place + field : place + field + 4] = value.to_bytes(4, "little")
        path.write_bytes(damaged)
        with pytest.raises(SourceError):
            OggZipSource(path, audio=RAW).read(0, "data")


def test_a_duration_that_lies_is_found_where_lengths_come_from_durations(tmp_path):
    entries = [entry("a.wav", duration=0.01), entry("b.wav", duration=0.02)]
    path = write_by_hand(tmp_path / "a.zip", entries, [("a/a.wav", wav(80)), ("a/b.wav", wav(80))])
    audio = {**RAW, "sample_rate": 8000}
    source = OggZipSource(path, audio=audio, data_lengths="duration")
    assert source.index.lengths("data").tolist() == [80, 160]
    assert source.read(0, "data").shape == (80, 1)
    with pytest.raises(SourceError, match=r"was 160 and is 80\n.*'b\.wav'"):
        source.read(1, "data")
    source.close()
    assert OggZipSource(path, audio=audio, data_lengths="header").index.lengths("data").tolist() == [80, 80]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fixed_random_subset": 1.5}, "fixed_random_subset"),
        ({"fixed_random_subset": 0}, "fixed_random_subset"),
        ({"data_lengths": "guess"}, "data_lengths is one of"),
        ({"data_lengths": "duration"}, "needs to know their rate"),
        ({"content_name": ["a", "b"]}, "for 1 paths"),
        ({"targets_post_process": "lower"}, "not a function"),
        ({"targets": 7}, "vocabulary cannot be made"),
    ],
)
def test_wrong_options_are_refused(corpus, options, what):
    with pytest.raises(ConfigError, match=what):
        OggZipSource(corpus, **{"audio": RAW, **options})


def test_paths_that_are_no_archives_are_refused(tmp_path):
    for path in (tmp_path / "a.hdf", 7, [3]):
        with pytest.raises(ConfigError, match="zip"):
            OggZipSource(path, audio=None)
