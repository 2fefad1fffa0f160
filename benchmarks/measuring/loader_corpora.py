"""The corpora of the loader benchmark: speech-like lengths made up, recorded words, and lengths without data.

A corpus is a few files of one name in one folder, so that a turn in another process needs no more than folder and name:
an HDF5 file, the lengths as `.npy`, and (if asked for) the same as a manifest of Lhotse. No two sequences of a corpus
with data begin with the same frame, so that a consumer can tell which one it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.sources import AudioSource, HDFWriter

FRAMES_PER_SECOND = 100  # for peers that count seconds
_MANIFEST_LINE = (
    '{{"id": "{0}", "start": 0, "duration": {1}, "channel": 0, "custom": {{"idx": {0}}}, "type": "MonoCut"}}\n'
)


@dataclass(frozen=True)
class Corpus:
    """One corpus.

    Attributes:
        folder: Where its files are.
        name: How they are called.
        budget: Frames of a batch, padding included.
    """

    folder: str
    name: str
    budget: int

    def file(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return f"{self.folder}/{self.name}.{suffix}"

    def lengths(self) -> NDArray[np.int32]:
        """Return the frames of each sequence, `int32[N]`, mapped."""
        return np.load(self.file("npy"), mmap_mode="r")  # type: ignore[no-any-return]

    def marks(self) -> set[tuple[int, bytes]]:
        """Return length and first frame of all sequences, by which a consumer knows them again."""
        starts = np.cumsum(self.lengths(), dtype=np.int64) - self.lengths()
        with h5py.File(self.file("hdf")) as file:
            data = file["inputs"]
            return {(int(length), data[start].tobytes()) for start, length in zip(starts, self.lengths(), strict=True)}


def draw_lengths(num_seqs: int) -> NDArray[np.int32]:
    """Return frames of sequences as of read speech: log-normal, median 7 s, cut to 1 to 35 s, `int32[N]`."""
    lengths = np.random.default_rng(1).lognormal(np.log(700), 0.6, num_seqs)
    return np.clip(lengths, FRAMES_PER_SECOND, 35 * FRAMES_PER_SECOND).astype(np.int32)


def write_synthetic(corpus: Corpus, num_seqs: int, dim: int = 40) -> None:
    """Write a corpus of the lengths above."""
    lengths = draw_lengths(num_seqs)
    block = np.random.default_rng(2).random((int(lengths.max()), dim), dtype=np.float32)
    _write(corpus, lengths, lambda _, length: block[:length])


def write_words(corpus: Corpus, manifest: Path, num_seqs: int) -> str:
    """Write the recordings of a manifest as log-mel features, over and over until there are enough.

    Without the manifest, or what reads audio, words of like length are made up.

    Returns:
        What was written, for the reader of the results.
    """
    try:
        source = AudioSource(manifest, features="log_mel", index=None)
        words = [source.read(corpus_idx, "data") for corpus_idx in range(len(source))]
        what = f"{len(words)} recorded words ({manifest.parent.name})"
    except (HeadraceError, ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        rng = np.random.default_rng(3)
        lengths = np.clip(rng.lognormal(np.log(70), 0.3, 265), 30, 200).astype(int)
        words = [rng.random((length, 40), dtype=np.float32) for length in lengths]
        what = f"{len(words)} made-up words, because {reason}"
    lengths = np.array([len(words[idx % len(words)]) for idx in range(num_seqs)], np.int32)
    _write(corpus, lengths, lambda idx, _: words[idx % len(words)])
    return f"{what}, {num_seqs / len(words):.0f} times"


def _write(corpus: Corpus, lengths: NDArray[np.int32], data_of: Callable[[int, int], NDArray[np.float32]]) -> None:
    with HDFWriter(corpus.file("hdf")) as writer:
        for idx, length in enumerate(lengths.tolist()):
            data = data_of(idx, length).copy()
            data[0, 0] = idx  # the mark
            writer.append(f"seq-{idx}", {"data": data})
    np.save(corpus.file("npy"), lengths)
    write_manifest(corpus)


def write_lengths(corpus: Corpus, lengths: NDArray[np.int32], *, manifest: bool = True) -> None:
    """Write a corpus of one byte a frame that takes no room on the disk: all data are one hole in the file."""
    num_frames = int(lengths.sum(dtype=np.int64))
    with h5py.File(corpus.file("hdf"), "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((num_frames, 1))
        h5py.h5d.create(file.id, b"inputs", h5py.h5t.NATIVE_INT8, space, dcpl=layout)
        file["seqLengths"] = np.stack([lengths, lengths], axis=1)  # RETURNN wants a second column and does not use it
        file["seqTags"] = np.array([b"%d" % idx for idx in range(len(lengths))], "S10")
        file.attrs.update(inputPattSize=1, numLabels=1, numSeqs=len(lengths), numTimesteps=num_frames)
    np.save(corpus.file("npy"), lengths)
    if manifest:
        write_manifest(corpus)


def write_manifest(corpus: Corpus) -> None:
    """Write the lengths as cuts of Lhotse, one JSON object a line."""
    with open(corpus.file("jsonl"), "w") as file:
        file.writelines(_manifest_lines(corpus.lengths()))


def _manifest_lines(lengths: NDArray[np.int32]) -> Iterator[str]:
    for idx, length in enumerate(lengths.tolist()):
        yield _MANIFEST_LINE.format(idx, length / FRAMES_PER_SECOND)
