"""`headrace convert`."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from examples_of_laws import examples
from headrace.cli.convert import shards as convert_shards
from headrace.cli.convert.conversion import Conversion, SomeKeys
from headrace.cli.convert.shard_plan import Sharding, plan_shards
from headrace.cli.convert.shards import Target
from headrace.errors import ConfigError
from headrace.sources import AudioSource, HDFSource, HDFWriter, MemorySource, open_source
from headrace.sources.formats import FORMATS
from headrace.specs import DataSpec
from headrace.testing import check_source

Invoke = Callable[..., Any]
CORPUS = Path(__file__).parents[2] / "data" / "spoken_numbers"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The first five recordings, in a folder of their own."""
    pytest.importorskip("soundfile")
    folder = tmp_path / "small"
    lines = (CORPUS / "manifest.jsonl").read_text().splitlines()[:5]
    for line in lines:
        audio = json.loads(line)["audio"]
        (folder / audio).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CORPUS / audio, folder / audio)
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("compression", ["none", "gzip", "lzf"])
@pytest.mark.parametrize("features", ["raw", "log_mel"])
def test_what_is_written_is_what_the_source_gives(
    invoke: Invoke, small: Path, tmp_path: Path, features: str, compression: str
) -> None:
    manifest, out = small / "manifest.jsonl", tmp_path / "out.hdf"
    options = ["--features", features, "--label", "classes=word", "--text", "orth=word", "--compression", compression]
    result = invoke("convert", manifest, out, *options)
    assert result.exit_code == 0, result.output
    assert "5 sequences" in result.stdout
    source = AudioSource(
        manifest, features=features, targets={"classes": "word", "orth": {"field": "word", "vocab": "bytes"}}
    )
    written = HDFSource(out, index=None)
    assert list(written.index.tags) == list(source.index.tags)
    assert list(written.labels["classes"]) == list(source.labels["classes"])
    for corpus_idx in range(5):
        wanted, found = source.read_seq(corpus_idx), written.read_seq(corpus_idx)
        assert wanted.keys() == found.keys() == {"data", "classes", "orth"}
        for key, array in wanted.items():
            assert found[key].dtype == array.dtype
            assert np.array_equal(found[key], array if source.specs[key].has_time else array[None])
    source.close()
    written.close()


def test_an_existing_file_is_replaced_on_request_only(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.hdf"
    out.write_text("precious")
    result = invoke("convert", small / "manifest.jsonl", out)
    assert result.exit_code == 2
    assert "--overwrite" in result.stderr
    assert out.read_text() == "precious"
    assert invoke("convert", small / "manifest.jsonl", out, "--overwrite").exit_code == 0
    assert len(HDFSource(out, index=None)) == 5


def test_a_recording_that_fails_leaves_nothing_and_the_old_file_alone(
    invoke: Invoke, small: Path, tmp_path: Path
) -> None:
    (small / "en" / "3.flac").write_bytes(b"truncated")
    folder = tmp_path / "out"
    folder.mkdir()
    old = folder / "old.hdf"
    old.write_text("precious")
    for out in (folder / "new.hdf", old):
        result = invoke("convert", small / "manifest.jsonl", out, "--overwrite")
        assert result.exit_code == 1
        assert "3.flac" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["old.hdf"]
    assert old.read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "classes"], "expected KEY=FIELD"),
        (["--text", "=word"], "expected KEY=FIELD"),
        (["--label", "a=word", "--text", "a=word"], "'a' exists already"),
        (["--label", "data=word"], "'data' exists already"),
        (["--features", "mfcc"], "mfcc"),
    ],
)
def test_a_wrong_option_is_exit_code_2(
    invoke: Invoke, small: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    result = invoke("convert", small / "manifest.jsonl", tmp_path / "out.hdf", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out.hdf").exists()


@pytest.mark.parametrize("path", ["../outside.flac", "/etc/passwd"])
def test_audio_outside_of_the_folder_is_refused(invoke: Invoke, small: Path, tmp_path: Path, path: str) -> None:
    shutil.copy(CORPUS / "en" / "0.flac", tmp_path / "outside.flac")
    (small / "manifest.jsonl").write_text(
        json.dumps({"tag": "x", "audio": path, "sample_rate": 8000, "num_samples": 1})
    )
    result = invoke("convert", small / "manifest.jsonl", tmp_path / "out.hdf")
    assert result.exit_code == 1
    assert not (tmp_path / "out.hdf").exists()


# --- any format, shards, and going on ---


class FreeSource(MemorySource):
    """Pictures of free sizes, a label and a number without a time axis: what HDF5 does not hold, or holds otherwise."""

    def __init__(self, files: str, shapes: str = "same") -> None:
        sizes = {"same": (2, 2), "free": (2, 3)}[shapes]
        seqs = [
            {"data": np.zeros((4, 2, size), np.float32), "mark": np.int32(7), "level": np.float32(1)} for size in sizes
        ]
        specs = {
            "data": DataSpec("float32", (None, None)),
            "mark": DataSpec("int32", sparse=True, dim=9, has_time=False),
            "level": DataSpec("float32", dim=1, has_time=False),
        }
        super().__init__(seqs, specs=specs)


class UnknownClassesSource(MemorySource):
    """Whole numbers that nobody says the number of, of which the largest is in the last sequence."""

    def __init__(self, files: str) -> None:
        specs = {"data": DataSpec("int32", sparse=True)}
        super().__init__([{"data": np.arange(number + 1, dtype=np.int32)} for number in range(4)], specs=specs)

    def _complete(self, key: str, spec: DataSpec, given_dim: int | None) -> DataSpec:
        return spec


FREE, UNKNOWN = f"{__name__}:FreeSource", f"{__name__}:UnknownClassesSource"


def shards_of(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.glob(f"{out.stem}-*"))


def read_all(path: Path | str) -> list[tuple[str, dict[str, list[Any]]]]:
    source = open_source(path, index=None)
    seqs = [
        (source.tag(i), {key: array.tolist() for key, array in source.read_seq(i).items()}) for i in range(len(source))
    ]
    source.close()
    return seqs


def test_files_of_any_format_become_one_file(
    invoke: Invoke, tmp_path: Path, hdf: Path, write_corpus: Callable[..., Path]
) -> None:
    other, out = write_corpus(tmp_path / "b.hdf", num_seqs=3, prefix="other"), tmp_path / "both.hdf"
    result = invoke("convert", hdf, other, out)
    assert result.exit_code == 0, result.output
    assert "13 sequences" in result.stdout
    assert "verified: digest" in result.stdout
    assert read_all(out) == read_all(hdf) + read_all(other)


@pytest.mark.parametrize(
    "options",
    [
        ["--shard-seqs", 4],
        ["--shard-bytes", "150 B"],
        ["--shard-bytes", "0.15kB"],
        ["--shard-seqs", 3, "--num-workers", 2],
    ],
)
def test_shards_hold_the_same_sequences_in_order(
    invoke: Invoke, tmp_path: Path, hdf: Path, options: list[object]
) -> None:
    out = tmp_path / "part.hdf"
    result = invoke("convert", hdf, out, *options)
    assert result.exit_code == 0, result.output
    names = shards_of(out)
    assert names == [f"part-{number:05d}.hdf" for number in range(len(names))]
    assert len(names) in (3, 4, 5)
    assert read_all(str(tmp_path / "part-*.hdf")) == read_all(hdf)


@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    max_seqs=st.integers(1, 5),
    max_bytes=st.integers(1, 100),
)
@examples(40)
def test_every_sequence_is_in_one_shard_that_is_not_too_large(
    lengths: list[int], max_seqs: int, max_bytes: int
) -> None:
    seqs = [{"data": np.zeros((length, 2), np.float32)} for length in lengths] or []
    specs = {"data": DataSpec("float32", (2,), dim=2)}
    source = MemorySource(seqs, specs=specs)
    for sharding in (Sharding(max_seqs=max_seqs), Sharding(max_bytes=max_bytes)):
        shards = plan_shards(source, "/out/x.hdf", ".hdf", sharding)
        assert [i for shard in shards for i in range(shard.start, shard.stop)] == list(range(len(lengths)))
        assert len({shard.path for shard in shards}) == len(shards) >= 1
        for shard in shards:
            num_seqs, num_bytes = shard.stop - shard.start, 8 * sum(lengths[shard.start : shard.stop])
            assert num_seqs > 0 or len(shards) == 1
            if sharding.max_bytes is None:
                assert num_seqs <= max_seqs
            else:
                assert num_bytes <= max_bytes or num_seqs == 1


def test_shards_that_are_whole_are_kept_and_a_lost_one_is_made_again(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    out, command = tmp_path / "part.hdf", ("convert", hdf, tmp_path / "part.hdf", "--shard-seqs", 4)
    first = invoke(*command)
    inodes = [(tmp_path / name).stat().st_ino for name in shards_of(out)]
    again = invoke(*command)
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert [(tmp_path / name).stat().st_ino for name in shards_of(out)] == inodes
    whole = (tmp_path / "part-00001.hdf").read_bytes()
    (tmp_path / "part-00001.hdf").unlink()
    assert invoke(*command).exit_code == 0
    assert (tmp_path / "part-00001.hdf").read_bytes() == whole
    assert (tmp_path / "part-00000.hdf").stat().st_ino == inodes[0]
    assert "--no-verify" in invoke(*command, "--no-verify").stderr


@pytest.mark.parametrize("options", [["--shard-seqs", 3], ["--shard-bytes", 60]])
def test_shards_of_another_conversion_are_refused_and_replaced_on_request(
    invoke: Invoke, tmp_path: Path, hdf: Path, options: list[object]
) -> None:
    out = tmp_path / "part.hdf"
    assert invoke("convert", hdf, out, "--shard-seqs", 4).exit_code == 0
    before = read_all(str(tmp_path / "part-*.hdf"))
    result = invoke("convert", hdf, out, *options)
    assert result.exit_code == 2
    assert "part-00000.hdf" in result.stderr
    assert "--overwrite" in result.stderr
    assert read_all(str(tmp_path / "part-*.hdf")) == before
    assert invoke("convert", hdf, out, *options, "--overwrite").exit_code == 0
    assert read_all(str(tmp_path / "part-*.hdf")) == read_all(hdf)


def test_shards_of_a_corpus_that_changed_are_refused(
    invoke: Invoke, tmp_path: Path, hdf: Path, write_corpus: Callable[..., Path]
) -> None:
    command = ("convert", hdf, tmp_path / "part.hdf", "--shard-seqs", 4)
    assert invoke(*command).exit_code == 0
    hdf.unlink()
    write_corpus(hdf, first_value=5)  # the same tags and lengths
    result = invoke(*command)
    assert result.exit_code == 2
    assert "does not hold sequences 0 to 3" in " ".join(result.stderr.split())


def test_files_that_would_be_read_as_further_shards_are_refused(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    out = tmp_path / "part.hdf"
    assert invoke("convert", hdf, out, "--shard-seqs", 2).exit_code == 0
    before = read_all(str(tmp_path / "part-*.hdf"))
    for options in (["--shard-seqs", 4], ["--shard-seqs", 4, "--overwrite"]):
        result = invoke("convert", hdf, out, *options)
        assert result.exit_code == 2
        assert "part-00003.hdf" in result.stderr
    assert read_all(str(tmp_path / "part-*.hdf")) == before
    for number in (3, 4):
        (tmp_path / f"part-0000{number}.hdf").unlink()
    assert invoke("convert", hdf, out, *options).exit_code == 0
    assert read_all(str(tmp_path / "part-*.hdf")) == read_all(hdf)


def test_what_others_made_is_not_replaced(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    (tmp_path / "part-00001.hdf").write_text("precious")
    result = invoke("convert", hdf, tmp_path / "part.hdf", "--shard-seqs", 4)
    assert result.exit_code == 2
    assert "part-00001.hdf" in result.stderr
    assert (tmp_path / "part-00001.hdf").read_text() == "precious"
    assert not (tmp_path / "part-00000.hdf").exists()


def test_a_file_of_somebody_else_beside_the_target_is_not_replaced(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    (tmp_path / "out.idx").write_text("precious")
    result = invoke("convert", hdf, tmp_path / "out.bin", "--key", "classes")
    assert result.exit_code == 2
    assert "out.idx" in result.stderr
    assert (tmp_path / "out.idx").read_text() == "precious"
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize("target", ["hdf", "tar", "tokens"])
def test_a_file_that_comes_into_being_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    out = tmp_path / f"x{FORMATS[target].suffix}"
    source = MemorySource([{"data": np.array([1, 2], np.int32)}])
    read_seq = source.read_seq

    def read_while_another_process_writes(corpus_idx: int) -> dict[str, Any]:
        out.write_bytes(b"theirs")
        return read_seq(corpus_idx)

    monkeypatch.setattr(source, "read_seq", read_while_another_process_writes)
    with pytest.raises(ConfigError, match="exists"):
        Conversion(source, out, Target(FORMATS[target])).run(Console(quiet=True), quiet=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {out.name: b"theirs"}


def test_what_a_format_cannot_hold_is_said_before_or_with_the_sequence(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "out.hdf"
    result = invoke("convert", tmp_path, out, "--from", FREE)
    assert result.exit_code == 0, result.output
    assert "warning: 'level' has no time axis, and reads back as one frame" in result.stderr
    assert "mark" not in result.stderr
    assert "mark int32[T] of 9 classes" in result.stdout  # as RETURNN stores labels
    result = invoke("convert", tmp_path, out, "--from", FREE, "--set", "shapes=free", "--overwrite")
    assert result.exit_code == 1
    assert "sequence 1 of the corpus" in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [out.name]
    result = invoke("convert", tmp_path, tmp_path / "part.hdf", "--from", FREE, "--shard-bytes", "1GiB")
    assert result.exit_code == 2
    assert "--shard-seqs" in result.stderr


def test_shards_agree_in_a_number_of_classes_that_only_the_data_say(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("convert", tmp_path, tmp_path / "part.hdf", "--from", UNKNOWN, "--shard-seqs", 1)
    assert result.exit_code == 0, result.output
    source = open_source(str(tmp_path / "part-*.hdf"), index=None)
    assert source.specs["data"].dim == 4
    source.close()


def test_a_file_that_reads_back_otherwise_is_refused_and_not_left(
    invoke: Invoke, tmp_path: Path, hdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = HDFWriter.append
    monkeypatch.setattr(
        HDFWriter, "append", lambda self, tag, data: append(self, tag, {**data, "data": data["data"] + 1})
    )
    result = invoke("convert", hdf, tmp_path / "out.hdf")
    assert result.exit_code == 1
    assert "reads back differently" in result.stderr
    assert not (tmp_path / "out.hdf").exists()
    assert invoke("convert", hdf, tmp_path / "out.hdf", "--no-verify").exit_code == 0


@pytest.mark.parametrize("name", ["old.hdf", "old.bin"])
def test_an_old_target_is_replaced_by_a_verified_one_only(
    invoke: Invoke, tmp_path: Path, hdf: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    options = ("--key", "classes") if name == "old.bin" else ()
    assert invoke("convert", hdf, folder / name, *options).exit_code == 0

    def content() -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before, top = content(), {path.name for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(convert_shards.SeqsDigest, "hexdigest", lambda self: f"{id(self)}")
        result = invoke("convert", hdf, folder / name, *options, "--overwrite")
    assert result.exit_code == 1
    assert "reads back differently" in result.stderr
    assert f"{folder / name}" in result.stderr.replace("\n", "")
    assert content() == before
    with HDFWriter(tmp_path / "other.hdf") as writer:
        writer.append("alone", {"data": np.ones((2, 3), np.float32), "classes": np.zeros(2, np.int32)})
    result = invoke("convert", tmp_path / "other.hdf", folder / name, *options, "--overwrite")
    assert result.exit_code == 0, result.stderr
    with contextlib.closing(open_source(str(folder / name), index=None)) as written:
        assert list(written.index.tags) == ["alone"]
    assert {path.name for path in folder.iterdir()} == top


def test_a_link_to_an_old_target_stays_a_link(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    real, link = tmp_path / "real.tar", tmp_path / "link.tar"
    real.write_text("old")
    link.symlink_to(real)
    assert invoke("convert", hdf, link, "--overwrite").exit_code == 0
    assert link.is_symlink()
    assert len(open_source(str(real), index=None)) > 0


def test_a_foreign_folder_is_not_replaced(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter.txt").write_text("precious")
    result = invoke("convert", hdf, folder, "--to", "hdf", "--overwrite")
    assert result.exit_code != 0
    assert (folder / "letter.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.hdf", "x.unknown"], "--to, one of"),
        (["a.hdf", "x", "--to", "hfd"], "unknown format 'hfd'"),
        (["a.hdf", "x.jsonl"], "--to, one of arrow, hdf, parquet, tar, tokens"),
        (["a.hdf", "x", "--to", "manifest"], "can be read, but not written"),
        (["a.hdf", "x.hdf", "--from", "HDFSorce"], "unknown source class"),
        (["a.hdf", "x.hdf", "--set", "nonsense=1"], "HDFSource has no option 'nonsense'"),
        (["a.hdf", "x.hdf", "--set-out", "compresion=gzip"], "did you mean 'compression'"),
        (["a.hdf", "x.hdf", "--label", "a=b"], "options of recordings"),
        (["a.hdf", "x.hdf", "--shard-seqs", "2", "--shard-bytes", "1GB"], "give one of them"),
        (["a.hdf", "x.hdf", "--shard-bytes", "many"], "number of bytes\n  fix: for example 500GB"),
        (["a.hdf", "x.hdf", "--shard-bytes", "0"], "holds nothing"),
        (["a.hdf", "x.hdf", "--num-workers", "2"], "--shard-seqs or --shard-bytes"),
        (["a.hdf", "a.hdf", "--overwrite"], "one of the files to convert"),
    ],
)
def test_a_wrong_command_is_exit_code_2_and_writes_nothing(
    invoke: Invoke, tmp_path: Path, hdf: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("convert", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [hdf.name]


OPTIONAL = {"parquet": "pyarrow", "arrow": "pyarrow"}
WRITTEN = {name: entry for name, entry in FORMATS.items() if entry.writer is not None}


@pytest.mark.parametrize("name", WRITTEN)
def test_there_and_back_through_every_format_that_is_written(
    invoke: Invoke, tmp_path: Path, hdf: Path, name: str
) -> None:
    pytest.importorskip(OPTIONAL.get(name, "numpy"))
    out, back = tmp_path / f"out{WRITTEN[name].suffix}", tmp_path / "back.hdf"
    some: list[object] = ["--key", "classes"] if name == "tokens" else []
    there = invoke("convert", hdf, out, *some)
    assert there.exit_code == 0, there.output
    assert invoke("inspect", out).exit_code == 0
    again = invoke("convert", out, back, *(["--set", "data_key=classes"] if some else []))
    assert again.exit_code == 0, again.output
    keys = ["classes"] if some else ["classes", "data"]
    assert read_all(back) == [(tag, {k: v for k, v in seq.items() if k in keys}) for tag, seq in read_all(hdf)]
    digests = {line for result in (there, again) for line in result.stdout.splitlines() if "verified" in line}
    assert len(digests) == 1
    source = open_source(back, index=None)
    assert list(source.labels["classes"]) == ["x", "y", "z"]
    source.close()


def test_only_the_data_keys_that_are_named_are_converted(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    assert invoke("convert", hdf, tmp_path / "out.bin").exit_code == 2  # tokens: one key
    result = invoke("convert", hdf, tmp_path / "out.hdf", "--key", "clases")
    assert result.exit_code == 2
    assert "did you mean 'classes'" in result.stderr
    assert invoke("convert", hdf, tmp_path / "out.hdf", "--key", "data", "--key", "data").exit_code == 2
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [hdf.name]


def test_tags_that_come_twice_are_refused_before_anything_is_written(
    invoke: Invoke, tmp_path: Path, hdf: Path, write_corpus: Callable[..., Path]
) -> None:
    twin = write_corpus(tmp_path / "b.hdf")
    result = invoke("convert", hdf, twin, tmp_path / "out.tar")
    assert result.exit_code == 2
    assert "10 sequences have the tag of an earlier one" in result.stderr
    assert not (tmp_path / "out.tar").exists()


def test_a_source_with_some_keys_of_another_is_a_source(hdf: Path) -> None:
    source = SomeKeys(HDFSource(hdf, index=None), ["classes"])
    check_source(source)
    assert list(source.specs) == ["classes"]
    source.close()


@pytest.mark.extra
@pytest.mark.parametrize("name", ["hdf", "tar", "parquet", "arrow"])
def test_images_of_a_tar_are_kept_as_numbers_in_every_format_that_holds_several_keys(
    invoke: Invoke, tmp_path: Path, name: str
) -> None:
    if name in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    images = [np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8) for seed in range(3)]
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for number, image in enumerate(images):
            pixels = io.BytesIO()
            np.save(pixels, image)
            for member, content in ((f"{number}.img.npy", pixels.getvalue()), (f"{number}.bin", bytes(range(250)))):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    out = tmp_path / f"out{FORMATS[name].suffix}"
    result = invoke("convert", tmp_path / "images.tar", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("warning") == 0
    with contextlib.closing(open_source(str(out), index=None)) as written:
        assert written.specs["img"] == DataSpec("uint8", (4, 3), dim=3)
        assert written.specs["bin"] == DataSpec("uint8", dim=1)
        for number, image in enumerate(images):
            assert written.read(number, "img").tobytes() == image.tobytes()
            assert written.read(number, "bin").tobytes() == bytes(range(250))


def test_a_missing_argument_is_the_first_one_that_nothing_was_written_for(invoke: Invoke, hdf: Path) -> None:
    result = invoke("convert", hdf)
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: OUT is missing: there is only ")
    assert f"headrace convert {hdf} OUT" in "".join(lines).replace("  ", "")
    for command, missing in (("convert", "IN"), ("inspect", "FILES"), ("run", "CONFIG")):
        result = invoke(command)
        assert result.exit_code == 2
        assert f"error: {missing} is missing" in result.stderr
