"""`check_format` must find what is wrong: each of these formats breaks one promise."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.sources import Format, JsonlSource, JsonlWriter, formats, register_format
from headrace.sources.shared.plain_files import PlainFiles
from headrace.testing import check_format


class GoodWriter(JsonlWriter):
    """Holds few layouts, so that the checks are quick."""

    def _accept(self, specs):
        held = {"float32": (2,), "int32": ()}
        if any(held.get(spec.dtype) != spec.shape or not spec.has_time for spec in specs.values()):
            raise ConfigError(f"this holds float32[T, 2] and int32[T], not {specs}")
        return super()._accept(specs)


class GoodSource(JsonlSource):
    """Lines."""


@pytest.fixture
def check(monkeypatch):
    """Check a format that is registered while the test runs."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which takes most of the time
    before = dict(formats._formats)

    def run(writer=GoodWriter, source=GoodSource):
        entry = Format("own", "own lines", source, writer, suffixes=(".own",))
        return check_format(register_format(entry))

    yield run
    formats._formats.clear()
    formats._formats.update(before)


def test_a_format_that_keeps_the_contract_passes(check):
    assert check() > 10


class HoldsNothing(GoodWriter):
    def __init__(self, path, **options):
        raise ConfigError("a sample_rate is needed", where=f"{path} {options}")


def test_a_format_that_holds_none_of_the_corpora_does_not_pass(check):
    with pytest.raises(AssertionError, match=r"(?s)holds none of the corpora.*a sample_rate is needed"):
        check(HoldsNothing)


class LosesLabels(GoodWriter):
    def _finish(self):
        self.labels = {}
        super()._finish()


class LosesDim(GoodWriter):
    def _finish(self):
        self.specs = {key: spec if not spec.sparse else type(spec)(spec.dtype) for key, spec in self.specs.items()}
        super()._finish()


class StripsTags(GoodWriter):
    def _put(self, tag, arrays, where):
        super()._put(tag.strip(), arrays, where)


class RoundsNumbers(GoodWriter):
    def _put(self, tag, arrays, where):
        super()._put(tag, {key: np.round(array, 3) for key, array in arrays.items()}, where)


class LeavesOutEmptySeqs(GoodWriter):
    def _put(self, tag, arrays, where):
        if all(map(len, arrays.values())):
            super()._put(tag, arrays, where)


class LeavesOutUnknownKeys(GoodWriter):
    def append(self, tag, data):
        if isinstance(data, dict) and self.specs and set(data) > set(self.specs):
            data = {key: data[key] for key in self.specs}
        super().append(tag, data)


class ClipsClasses(GoodWriter):
    def append(self, tag, data):
        if self.labels and isinstance(data, dict) and "classes" in data and data["classes"].dtype == np.int32:
            data = {**data, "classes": np.minimum(data["classes"], 4)}
        super().append(tag, data)


class KeepsWhatItRefused(GoodWriter):
    def append(self, tag, data):
        try:
            super().append(tag, data)
        except SourceError:
            if self._num_seqs and tag == "wrong":
                self._file.write(b'{"tag": "wrong", "data": [], "classes": []}\n')
            raise


class TakesHalfOfPair(GoodWriter):
    def append(self, tag, data):
        super().append(tag.replace("\ud800", "?") if isinstance(tag, str) else tag, data)


class LeavesAFile(GoodWriter):
    def abort(self):
        if self._is_open and self._num_seqs == 1:
            Path(self.path + ".left").touch()
        super().abort()


class LeavesAFileWhenRefused(GoodWriter):
    def __init__(self, path, **options):
        Path(f"{path}.log").touch()
        super().__init__(path, **options)


class ReplacesAnything(GoodWriter):
    def __init__(self, path, **options):
        super().__init__(path, **{**options, "overwrite": True})


class ReplacesWhatCameMeanwhile(GoodWriter):
    def close(self):
        self._overwrite = self._files._overwrite = True
        super().close()


class TakesMoreAfterClose(GoodWriter):
    def append(self, tag, data):
        if self._is_open or not self._num_seqs:
            super().append(tag, data)


class CountsWrong(GoodWriter):
    @property
    def num_seqs(self):
        return self._num_seqs + 1


class TakesUnknownLabels(GoodWriter):
    def __init__(self, path, *, labels=None, **options):
        known = {key: names for key, names in (labels or {}).items() if key != "no such key"}
        super().__init__(path, labels=known, **options)


class ReadsWhatIsLeft(GoodSource):
    """Gives what is left of a file that was cut."""

    def __init__(self, files, **options):
        path = os.fspath(files)
        specs = Path(path + ".specs.json")
        lines = Path(path).read_bytes()
        whole = lines[: lines.rfind(b"\n") + 1]
        Path(path).write_bytes(whole)
        specs.write_text(re.sub(r'"num_bytes":\s*\d+', f'"num_bytes":{len(whole)}', specs.read_text()))
        super().__init__(files, **options)


class _AnyFiles(PlainFiles):
    def _open(self, file_idx):
        self._stamps = [type(stamp).of(stamp.path) for stamp in self._stamps]
        return super()._open(file_idx)


class ReadsReplacedFiles(GoodSource):
    def _prepare_files(self):
        self._files = _AnyFiles(self._index.files)


class WritesBeyondAnArray(GoodSource):
    def read_into(self, corpus_indices, data_key, outs):
        super().read_into(corpus_indices, data_key, outs)
        for out in outs:
            out.base[:, -1] = 0


class ForgetsForOthers(GoodSource):
    def for_another_reader(self):
        other = super().for_another_reader()
        other._closed = self._closed = []
        return other

    def close(self):
        super().close()
        if hasattr(self, "_closed"):
            self._closed.append(True)

    def _encode(self, record, corpus_idx, data_key, where):
        array = super()._encode(record, corpus_idx, data_key, where)
        return array * 0 if getattr(self, "_closed", None) else array


WRITERS = {
    LosesLabels: "labels of .* came back as {}",
    LosesDim: "the layout .* came back as",
    StripsTags: "the tag ' ' came back as ''",
    RoundsNumbers: "came back as another array",
    LeavesOutEmptySeqs: "4 sequences were written, 3 are read",
    LeavesOutUnknownKeys: "one key too many is taken",
    ClipsClasses: "a class beyond the last is taken",
    KeepsWhatItRefused: "sequences were written",
    TakesHalfOfPair: r"the tag 'half a pair \\ud800' is taken",
    LeavesAFile: "an aborted writer changed .*left",
    LeavesAFileWhenRefused: "was refused, and left .*log",
    ReplacesAnything: "a target that exists is replaced",
    ReplacesWhatCameMeanwhile: "a second writer replaced",
    TakesMoreAfterClose: "a closed writer takes a sequence",
    CountsWrong: "num_seqs is 5 after 4",
    TakesUnknownLabels: "labels of a data key that is not there are taken",
}
SOURCES = {
    ReadsWhatIsLeft: "was cut to .* which is no error",
    ReadsReplacedFiles: "came back as another array",
    WritesBeyondAnArray: "writes beyond an array",
    ForgetsForOthers: "also after another's close",
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_that_breaks_a_promise_is_found(check, writer):
    with pytest.raises(AssertionError, match=WRITERS[writer]):
        check(writer=writer)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_breaks_a_promise_is_found(check, source):
    with pytest.raises(AssertionError, match=SOURCES[source]):
        check(source=source)
