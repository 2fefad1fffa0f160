"""Every format that sources read, as a small corpus on the disk: a new format is one entry of `FORMATS`."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.sources.base import Source

NUM_SEQS = 4
LENGTHS = (5, 0, 9, 3)


@dataclass(frozen=True)
class FormatCase:
    """One format.

    Attributes:
        write: Writes the corpus into an empty folder.
        open: Opens what is in the folder, with an index (default: `None`, none that was kept).
        needs: Packages that reading takes.
        counts_lines: Whether the number of sequences follows from what is there, so that nothing tells a part that was
            cut off at the right byte, or one more line feed; or whether lengths follow so, as of recordings.
        stamped: Whether size and time of each file are in the index. Of recordings that a manifest lists they are not:
            these are compared with the number of samples and the sample rate.
    """

    write: Callable[[Path], None]
    open: Opener
    needs: tuple[str, ...] = ()
    counts_lines: bool = False
    stamped: bool = True

    @property
    def is_available(self) -> bool:
        """Whether the packages are there."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


def seqs(dtype: str = "<f4", axes: tuple[int, ...] = (3,)) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return tags and arrays, the same each time."""
    rng = np.random.default_rng(1)
    return [
        (f"seq/{i}", {"data": rng.integers(1, 100, (length, *axes)).astype(dtype)}) for i, length in enumerate(LENGTHS)
    ]


def content(source: Source) -> list[Any]:
    """Return everything that a source gives: tags, and each array by key."""
    return [(source.tag(i), {key: source.read(i, key) for key in source.specs}) for i in range(len(source))]


def same(left: list[Any], right: list[Any]) -> bool:
    """Tell whether two contents are equal, dtypes and shapes included."""
    return len(left) == len(right) and all(
        tag == other_tag
        and list(arrays) == list(other)
        and all(
            array.dtype == other[key].dtype
            and array.shape == other[key].shape
            and array.tobytes() == other[key].tobytes()
            for key, array in arrays.items()
        )
        for (tag, arrays), (other_tag, other) in zip(left, right, strict=True)
    )


def files_of(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _written(writer: str, name: str, **options: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with getattr(hr, writer)(folder / name, **options) as corpus:
            for tag, arrays in seqs():
                corpus.append(tag, arrays)

    return write


@dataclass(frozen=True)
class Opener:
    """Opens a corpus in a folder.

    Attributes:
        source: The class that reads it.
        name: Of its file or folder.
        options: Of the class; functions are called with the folder.
    """

    source: str
    name: str
    options: dict[str, Any]

    def __call__(self, folder: Path, index: Any = None) -> Source:
        """Open it."""
        options = {name: value(folder) if callable(value) else value for name, value in self.options.items()}
        source: Source = getattr(hr, self.source)(folder / self.name, index=index, **options)
        return source


def _opened(source: str, name: str, **options: Any) -> Opener:
    return Opener(source, name, options)


def _write_hdf(dtype: str, lengths: str = "<i4", **dataset: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        import h5py

        arrays = [found["data"] for _, found in seqs(dtype)]
        with h5py.File(folder / "x.hdf", "w") as file:
            file.create_dataset("inputs", data=np.concatenate(arrays), **dataset)
            file["seqLengths"] = np.array(LENGTHS, lengths)[:, None]
            file["seqTags"] = np.array([tag.encode() for tag, _ in seqs()])
            file.attrs["inputPattSize"] = 3

    return write


def _write_tar_members(folder: Path) -> None:
    with tarfile.open(folder / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number, (_, arrays) in enumerate(seqs(">i4")):
            out, packed = io.BytesIO(), io.BytesIO()
            np.save(out, arrays["data"])
            np.savez_compressed(packed, a=arrays["data"])
            values = {
                "npy": out.getvalue(),
                "npz": packed.getvalue(),
                "json": json.dumps({"numbers": [number, 2**40], "word": "a" * number}).encode(),
                "txt": "é".encode() * number,
                "cls": str(number).encode(),
            }
            for ext, data in values.items():
                info = tarfile.TarInfo(f"{'long' * 40}/ä{number}.{ext}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def _write_lines(folder: Path) -> None:
    lines = [{"tag": f"{i}", "n": 2**40 + i, "x": [[i, 0.5]] * i, "word": "é" * i} for i in range(NUM_SEQS)]
    (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_csv(folder: Path) -> None:
    lines = [f'{i},{2**40 + i},{i}.5,"{"é" * i}, ""\n"\n' for i in range(NUM_SEQS)]
    (folder / "x.csv").write_text("tag,n,x,word\n" + "".join(lines), encoding="utf-8")


def _write_images(folder: Path) -> None:
    from PIL import Image

    for number, name in enumerate(("a/1.png", "a/2.bmp", "b/3.tiff")):
        (folder / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.arange(90 + 30 * number, dtype="u1").reshape(-1, 10, 3)).save(folder / "x" / name)


def _write_text(folder: Path) -> None:
    (folder / "x.txt").write_text("a line\n\nénd of it\nlast", encoding="utf-8")


def _write_raw_tokens(folder: Path) -> None:
    np.arange(29, dtype="<u2").tofile(folder / "x.bin")


def _write_npy_tokens(folder: Path) -> None:
    np.save(folder / "x.npy", np.arange(29, dtype=">u4"))
    np.save(folder / "starts.npy", np.array([0, 9, 9, 20], ">i8"))


def _write_megatron(folder: Path) -> None:
    with hr.TokenWriter(folder / "x.bin", dtype="uint16") as corpus:
        for tag, length in zip("abcd", LENGTHS, strict=True):
            corpus.append(tag, {"data": np.arange(length, dtype=np.uint16)})


def _wav(num_samples: int, *, big: bool = False) -> bytes:
    order, form = (">", b"RIFX") if big else ("<", b"RIFF")
    data = (np.arange(num_samples) * 7).astype(f"{order}i2").tobytes()
    head = struct.pack(f"{order}HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"WAVEfmt " + struct.pack(f"{order}I", 16) + head + b"data" + struct.pack(f"{order}I", len(data)) + data
    return form + struct.pack(f"{order}I", len(body)) + body


def _write_recordings(folder: Path) -> None:
    import soundfile

    (folder / "x").mkdir()
    samples = (np.arange(3000) % 50 / 100).astype("f4")
    (folder / "x" / "a.wav").write_bytes(_wav(40))
    (folder / "x" / "b.wav").write_bytes(_wav(40, big=True))
    for name, form in (("c.flac", "FLAC"), ("d.ogg", "OGG"), ("e.aiff", "AIFF")):
        soundfile.write(folder / "x" / name, samples, 8000, format=form)
    soundfile.write(folder / "x" / "f.opus", samples, 8000, format="OGG", subtype="OPUS")


def _write_manifest(folder: Path) -> None:
    _write_recordings(folder)
    names = sorted(os.listdir(folder / "x"))
    lines = [{"tag": name, "audio": f"x/{name}", "word": name} for name in names]
    (folder / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_ogg_zip(folder: Path) -> None:
    _write_recordings(folder)
    texts = []
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a.wav", "d.ogg", "f.opus"):
            archive.write(folder / "x" / name, f"x/{name}")
            texts.append({"text": f"text é of {name}", "duration": 0.1, "file": name})
        archive.writestr("x.txt", repr(texts))
    for path in files_of(folder / "x"):
        path.unlink()


_FIELDS = {"npy": "npy", "a": "npz:a", "numbers": "json:numbers", "word": "json:word", "txt": "txt", "cls": "cls"}
_AUDIO = ("soundfile",)
_ARROW = ("pyarrow",)
FORMATS: dict[str, FormatCase] = {
    "hdf": FormatCase(_written("HDFWriter", "x.hdf"), _opened("HDFSource", "x.hdf")),
    "hdf-gzip": FormatCase(_written("HDFWriter", "x.hdf", compression="gzip"), _opened("HDFSource", "x.hdf")),
    "hdf-big-endian": FormatCase(_write_hdf(">f8", ">i2"), _opened("HDFSource", "x.hdf")),
    "hdf-lzf": FormatCase(_write_hdf(">i2", ">u4", compression="lzf", chunks=(2, 3)), _opened("HDFSource", "x.hdf")),
    "tar": FormatCase(_written("TarWriter", "x.tar"), _opened("TarSource", "x.tar")),
    "tar-members": FormatCase(_write_tar_members, _opened("TarSource", "x.tar", fields=_FIELDS)),
    "parquet": FormatCase(_written("ParquetWriter", "x.parquet"), _opened("ParquetSource", "x.parquet"), _ARROW),
    "arrow": FormatCase(_written("ArrowWriter", "x.arrow"), _opened("ArrowSource", "x.arrow"), _ARROW),
    "arrow-stream": FormatCase(
        _written("ArrowWriter", "x.arrow", form="stream"), _opened("ArrowSource", "x.arrow"), _ARROW
    ),
    "arrow-zstd": FormatCase(
        _written("ArrowWriter", "x.arrow", compression="zstd"), _opened("ArrowSource", "x.arrow"), _ARROW
    ),
    "jsonl": FormatCase(_write_lines, _opened("JsonlSource", "x.jsonl"), counts_lines=True),
    "csv": FormatCase(_write_csv, _opened("CsvSource", "x.csv"), counts_lines=True),
    "images": FormatCase(_write_images, _opened("ImageFolderSource", "x"), ("PIL",)),
    "text": FormatCase(_write_text, _opened("TextSource", "x.txt"), counts_lines=True),
    "tokens-raw": FormatCase(
        _write_raw_tokens, _opened("TokenSource", "x.bin", dtype="uint16", block_length=8), counts_lines=True
    ),
    "tokens-npy": FormatCase(
        _write_npy_tokens,
        _opened("TokenSource", "x.npy", by="document", documents=lambda folder: folder / "starts.npy"),
    ),
    "tokens-idx": FormatCase(_write_megatron, _opened("TokenSource", "x.bin", by="document")),
    "recordings": FormatCase(
        _write_recordings, _opened("AudioFolderSource", "x", sample_rate=8000), _AUDIO, counts_lines=True
    ),
    "manifest": FormatCase(
        _write_manifest,
        _opened("AudioSource", "m.jsonl", sample_rate=8000, targets={"orth": "word"}),
        ("soundfile", "soxr"),
        counts_lines=True,
        stamped=False,
    ),
    "ogg-zip": FormatCase(
        _write_ogg_zip,
        _opened("OggZipSource", "x.zip", audio={"features": "raw", "peak_normalization": False}),
        _AUDIO,
    ),
    "ogg-zip-headers": FormatCase(
        _write_ogg_zip,
        _opened(
            "OggZipSource",
            "x.zip",
            audio={"features": "raw", "peak_normalization": False, "sample_rate": 8000},
            data_lengths="header",
        ),
        _AUDIO,
    ),
}
