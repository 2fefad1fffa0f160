"""A recording that ends too early is refused by its header: libsndfile reads it as a shorter one, without a word."""

import io

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources.audio.decode import read_header, read_samples
from headrace.sources.audio.truncated import what_is_missing

soundfile = pytest.importorskip("soundfile")

_NUM_SAMPLES = 801
_FORMATS = [
    ("WAV", "PCM_16", "FILE"),
    ("WAV", "FLOAT", "FILE"),
    ("WAV", "PCM_24", "BIG"),
    ("WAVEX", "PCM_16", "FILE"),
    ("RF64", "PCM_16", "FILE"),
    ("RF64", "DOUBLE", "FILE"),
    ("W64", "PCM_16", "FILE"),
    ("W64", "FLOAT", "FILE"),
    ("AIFF", "PCM_16", "FILE"),
    ("AIFF", "FLOAT", "FILE"),
    ("CAF", "PCM_16", "FILE"),
    ("CAF", "FLOAT", "LITTLE"),
    ("AU", "PCM_16", "BIG"),
    ("AU", "ULAW", "LITTLE"),
    ("NIST", "PCM_16", "LITTLE"),
    ("NIST", "ULAW", "FILE"),
    ("OGG", "VORBIS", "FILE"),
]


def _recording(form: str, subtype: str, endian: str) -> bytes:
    file = io.BytesIO()
    samples = np.sin(np.arange(2 * _NUM_SAMPLES) / 30).reshape(-1, 2) / 2
    soundfile.write(file, samples.astype(np.float32), 8000, format=form, subtype=subtype, endian=endian)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # libsndfile seeks before the start
@pytest.mark.parametrize(("form", "subtype", "endian"), _FORMATS)
def test_a_recording_that_is_cut_anywhere_is_refused(form, subtype, endian):
    whole = _recording(form, subtype, endian)
    assert read_header(whole) == (_NUM_SAMPLES, 8000)
    cuts = {*range(min(len(whole), 160)), *range(0, len(whole), 61), len(whole) - 1}
    accepted = []
    for cut in sorted(cuts):
        try:
            accepted.append((cut, read_header(whole[:cut])))
        except SourceError:
            continue
    assert not accepted


@pytest.mark.parametrize(
    ("form", "name", "distance", "size"),
    [
        ("RF64", b"ds64", 16, b"\xff" * 8),
        ("W64", b"data\xf3\xac\xd3\x11", 16, b"\xff" * 8),
        ("CAF", b"data", 4, b"\xff" * 8),
        ("AU", b".snd", 8, b"\xff" * 4),
    ],
)
def test_a_size_that_was_not_known_when_the_header_was_written_refuses_nothing(form, name, distance, size):
    recording = bytearray(_recording(form, "PCM_16", "FILE"))
    assert what_is_missing(io.BytesIO(recording[:-1])) is not None
    place = recording.index(name) + distance
    recording[place : place + len(size)] = size
    assert what_is_missing(io.BytesIO(recording[:-1])) is None


def test_a_compressed_sphere_file_is_not_judged_by_its_number_of_samples():
    recording = _recording("NIST", "PCM_16", "LITTLE")
    assert what_is_missing(io.BytesIO(recording[:2000])) is not None
    head = recording[:1024].replace(b"sample_coding -s3 pcm", b"sample_coding -s26 pcm,embedded-shorten-v2.00")[:1024]
    assert what_is_missing(io.BytesIO(head.ljust(1024) + recording[1024:2000])) is None


def test_a_recording_that_claims_more_samples_than_there_is_memory_for_is_refused():
    recording = bytearray(_recording("FLAC", "PCM_16", "FILE"))
    recording[21] |= 0x0F  # of the 36 bits that count the samples
    recording[22:26] = b"\xff" * 4
    assert read_header(bytes(recording))[0] == 2**36 - 1
    with pytest.raises(SourceError, match="not enough memory"):  # half a TiB
        read_samples(bytes(recording), 0)
