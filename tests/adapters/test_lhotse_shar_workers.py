"""Shar that workers read: what stays in the shard, who sees it, and when lhotse's own reader is taken."""

import copy
import gzip
import io
import itertools
import logging
import os
import pickle
import shutil
import tarfile
import threading
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lhotse")
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.audio import AudioSource
    from lhotse.dataset import DynamicCutSampler
    from lhotse.shar import SharWriter
    from lhotse.shar.readers import lazy
    from lhotse.shar.readers.tar import TarIterator, parse_tarinfo
    from lhotse.utils import fastcopy
pytest.importorskip("soundfile")

import soundfile

from headrace import LhotseDataLoader
from headrace.adapters.lhotse import shar as shar_module
from headrace.adapters.lhotse.draws import left_to_workers
from headrace.adapters.lhotse.payload import Payload
from headrace.errors import SourceError
from servers.leaks import nothing_left

pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own
RATE, NUM, SAMPLES = 8000, 9, 40_000


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    with nullcontext() if "as_command" in request.node.name else nothing_left():  # lhotse does not close its pipes
        yield


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch):
    monkeypatch.setattr(shar_module, "_logged", set())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shar")
    rng = np.random.default_rng(1)
    with SharWriter(folder, fields={"recording": "wav"}, shard_size=3) as writer:
        for number in range(NUM):
            path = folder.parent / f"{number}.wav"
            soundfile.write(path, rng.integers(-9000, 9000, SAMPLES).astype(np.int16), RATE)
            recording = Recording.from_file(path, recording_id=f"rec-{number}")
            writer.write(MonoCut(f"cut-{number}", 0.0, recording.duration, 0, recording=recording))
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "shar"))


def drawn(cuts):
    with left_to_workers():
        return list(cuts)


def held(cut):
    """What a cut's recording has in the place of bytes."""
    return vars(cut.recording.sources[0])["source"]


def samples_of(cuts):
    return [(cut.id, cut.load_audio().tobytes()) for cut in cuts]


def num_bytes_read():
    """Return how many bytes this process has read by system calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def test_drawing_reads_no_data(folder):
    if not os.access("/proc/self/io", os.R_OK):
        pytest.skip("the system does not count what is read")
    drawn(CutSet.from_shar(in_dir=folder))
    before = num_bytes_read()
    cuts = drawn(CutSet.from_shar(in_dir=folder))
    assert num_bytes_read() - before < NUM * SAMPLES  # a fourth of it is headers, blocks of the stamp, and manifests
    assert len(pickle.dumps(cuts)) < 1000 * NUM
    assert samples_of(cuts) == samples_of(CutSet.from_shar(in_dir=folder))


def test_only_the_thread_that_draws_for_workers_leaves_data_behind(folder):
    def kinds(cuts):
        return {type(held(cut)) for cut in cuts}

    cuts = CutSet.from_shar(in_dir=folder)
    found = []
    with left_to_workers():
        inside = iter(cuts)
        head = [next(inside)]
        with left_to_workers():  # nested: one loader's sampler reads from another loader
            pass
        head.append(next(inside))
        thread = threading.Thread(target=lambda: found.append(kinds(cuts)))
        thread.start()
        thread.join()
        rest = list(inside)
    assert kinds([*head, *rest]) == {Payload}
    assert found == [{bytes}]
    assert kinds(cuts) == {bytes}
    assert {type(cut.recording.sources[0]) for cut in cuts} == {AudioSource}


@pytest.mark.parametrize("change", ["rewritten", "truncated", "gone"])
def test_a_shard_that_changed_after_it_was_scanned_is_an_error_of_its_batches(folder, change):
    batches = [[cut] for cut in drawn(CutSet.from_shar(in_dir=folder))]
    expected = samples_of(CutSet.from_shar(in_dir=folder))
    shard = folder / "recording.000001.tar"
    if change == "rewritten":
        shutil.copy(folder / "recording.000002.tar", shard)
    elif change == "truncated":
        os.truncate(shard, 1000)
    else:
        shard.unlink()
    with LhotseDataLoader(Samples(), batches, num_workers=1) as loader:
        for number in range(NUM):
            if number in (3, 4, 5):
                with pytest.raises(SourceError, match=r"was changed since|cannot be opened") as caught:
                    next(loader)
                assert str(shard) in str(caught.value)
                assert f"batch {number} of epoch 0" in "".join(caught.value.__notes__)
            else:
                assert next(loader) == [expected[number]]
    with pytest.raises(SourceError, match=r"was changed since|cannot be opened"):
        batches[4][0].load_audio()


class Samples:
    def __getitem__(self, batch):
        assert {type(cut.recording.sources[0]) for cut in batch} == {AudioSource}
        return samples_of(batch)


def test_a_pass_may_be_broken_off_within_a_shard(folder):
    sampler = DynamicCutSampler(CutSet.from_shar(in_dir=folder).repeat(), max_cuts=2)
    expected = samples_of(CutSet.from_shar(in_dir=folder))
    with LhotseDataLoader(Samples(), sampler, num_workers=2) as loader:
        for _ in range(2):
            found = [one for batch in itertools.islice(iter(loader), 3) for one in batch]
            assert [samples for _, samples in found] == [samples for _, samples in expected[:6]]


# --- an object that stands for one of lhotse's ---


def test_a_copy_keeps_the_place_and_a_pickle_has_the_bytes(folder):
    source = drawn(CutSet.from_shar(in_dir=folder))[4].recording.sources[0]
    plain = list(CutSet.from_shar(in_dir=folder))[4].recording.sources[0]
    for copied in (copy.copy(source), copy.deepcopy(source), fastcopy(source), fastcopy(source, channels=[0])):
        assert type(vars(copied)["source"]) is Payload
        assert copied == source
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(source, protocol))
        assert (type(found), vars(found)) == (AudioSource, vars(plain))
    assert source == plain
    assert plain == source
    assert source != fastcopy(plain, source=b"")
    assert source != fastcopy(plain, channels=[1])
    assert source != "else"
    assert source.to_dict() == plain.to_dict()
    assert repr(source) == repr(plain)


def test_bytes_that_are_set_stay(folder):
    source = drawn(CutSet.from_shar(in_dir=folder))[0].recording.sources[0]
    source.source = b"other"
    for found in (source, copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert found.source == b"other"
    assert fastcopy(source, source=b"third").source == b"third"


# --- lhotse's own reader ---


def as_compressed(folder, _):
    """Write shards that lhotse unpacks, by their name or by their content."""
    for path in sorted(folder.glob("recording.*")):
        packed = gzip.compress(path.read_bytes())
        if "00000" in path.name:
            path.write_bytes(packed)
    return CutSet.from_shar(in_dir=folder)


def as_gzipped(folder, _):
    for path in sorted(folder.glob("recording.*")):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return CutSet.from_shar(in_dir=folder)


def as_command(folder, _):
    paths = sorted(folder.glob("recording.*"))
    fields = {"cuts": sorted(folder.glob("cuts.*")), "recording": [f"pipe:cat {path}" for path in paths]}
    return CutSet.from_shar(fields=fields)


def without_an_end_mark(folder, _):
    for path in folder.glob("recording.*"):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole.rstrip(b"\0")) // 512 * 512 + 512])
    return CutSet.from_shar(in_dir=folder)


def with_other_names_of_manifests(folder, _):
    """The pairs of the second shard are not named as lhotse names them, which lhotse does not look at."""
    path = folder / "recording.000001.tar"
    with tarfile.open(path) as old:
        members = [(member, old.extractfile(member).read()) for member in old]
    with tarfile.open(path, "w") as new:
        for number, (member, data) in enumerate(members):
            if number == 3:
                member.name = "other.json"
            new.addfile(member, io.BytesIO(data))
    return CutSet.from_shar(in_dir=folder)


def of_another_version(folder, monkeypatch):
    monkeypatch.setattr(lazy, "TarIterator", TarIterator)
    monkeypatch.setattr(shar_module, "_KNOWN_CALLS", [(parse_tarinfo, "Path path")])
    return CutSet.from_shar(in_dir=folder)


@pytest.mark.parametrize(
    ("form", "num_left"),
    [
        (as_compressed, 0),
        (as_gzipped, 0),
        (as_command, 0),
        (with_other_names_of_manifests, 7),  # all but those behind the odd one, in its shard
        (without_an_end_mark, NUM),  # the cuts end before, so nobody comes to the end of the tar file
        (of_another_version, 0),
    ],
)
def test_what_cannot_be_left_to_workers_is_read_by_lhotse_and_said_once(folder, form, num_left, caplog, monkeypatch):
    expected = samples_of(CutSet.from_shar(in_dir=folder))
    cuts = form(folder, monkeypatch)
    with caplog.at_level(logging.INFO, "headrace.adapters"):
        for _ in range(2):
            found = drawn(cuts)
            assert samples_of(found) == expected
            assert [type(held(cut)) for cut in found].count(Payload) == num_left
    said = ["data of Shar are read by the sampler, not by the workers"] if num_left < NUM else []
    assert [record.message.partition(":")[0] for record in caplog.records] == said


def test_a_truncated_shard_ends_as_lhotse_ends(folder):
    path = folder / "recording.000001.tar"
    os.truncate(path, path.stat().st_size // 2)
    errors = []
    for read in (list, drawn):
        with pytest.raises(tarfile.ReadError) as caught:
            read(CutSet.from_shar(in_dir=folder))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
