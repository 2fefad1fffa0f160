"""Archives of recordings and texts, as RETURNN has them."""

import io
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_FORMATS = {"wav": ("WAV", "FLOAT"), "flac": ("FLAC", "PCM_16"), "ogg": ("OGG", "VORBIS")}


def write_ogg_zip(
    path: Path, seqs: Iterable[tuple[str, np.ndarray, str]], audio_format: str = "wav", sample_rate: int = 8000
) -> Path:
    """Write an archive of sequences, each a tag, samples and a text; return its path."""
    import soundfile

    entries = []
    with zipfile.ZipFile(path, "w") as archive:
        for tag, samples, text in seqs:
            file, name = io.BytesIO(), f"{len(entries):08d}.{audio_format}"
            kind, subtype = _FORMATS[audio_format]
            soundfile.write(file, samples, sample_rate, format=kind, subtype=subtype)
            archive.writestr(f"{path.stem}/{name}", file.getvalue())
            entries.append({"text": text, "duration": len(samples) / sample_rate, "file": name, "seq_name": tag})
        archive.writestr(f"{path.stem}.txt", "[\n" + "".join(f"{entry!r},\n" for entry in entries) + "]\n")
    return path
