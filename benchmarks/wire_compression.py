"""Whether it would pay to compress what remote workers send: how much is left of batches, and how long that takes.

Run `python benchmarks/wire_compression.py` (`--quick` for a short look, `--json PATH` for the figures); needs pyarrow,
whose LZ4 and Zstandard (level 1) are used. The batches are made up: speech of 16 bit (tones under a slow envelope, and
noise), 8 bit images (smooth, with the noise of a sensor), float32 features padded to the longest of 16, and int64
token numbers, of which few are frequent. One thread packs and unpacks pieces of 1 MiB, the fastest of several times.

The trainer takes in the values of all workers in one thread, so what it unpacks it does not receive meanwhile. "pays
below" is the speed of its network, in Gbit/s of all workers together, below which batches arrive sooner packed: where
the network needs longer for a byte as it is than the thread does to receive what is left of it and unpack it. Workers
are taken to pack on processors that have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

PIECE_BYTES = 1 << 20
NUM_BYTES = 8 << 20
RECEIVED_BYTES_PER_SECOND = 2.5e9
"""Of one thread: `benchmarks/remote.py`."""
CODECS = {"LZ4": lambda: pa.Codec("lz4_raw"), "Zstandard": lambda: pa.Codec("zstd", compression_level=1)}


def speech(rng: np.random.Generator) -> np.ndarray:
    """Return 16 kHz of tones that come and go, with noise."""
    seconds = np.arange(NUM_BYTES // 2) / 16000
    envelope = np.abs(np.sin(2 * np.pi * 1.5 * seconds)) ** 2
    tones = sum(np.sin(2 * np.pi * 120 * number * seconds) / number for number in range(1, 12))
    return (3000 * envelope * tones + rng.normal(0, 40, seconds.size)).astype(np.int16)


def images(rng: np.random.Generator) -> np.ndarray:
    """Return smooth images of 256 x 256 x 3, with noise."""
    count = NUM_BYTES // (256 * 256 * 3)
    coarse = rng.uniform(0, 255, (count, 9, 9, 3))
    place = np.linspace(0, 7.999, 256)
    low, part = place.astype(int), (place % 1)[:, None, None]
    rows = coarse[:, low] * (1 - part) + coarse[:, low + 1] * part
    part = part[:, 0][:, None].reshape(1, 1, 256, 1)
    smooth = rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part
    return np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)


def features(rng: np.random.Generator) -> np.ndarray:
    """Return batches of 16 sequences of 80 numbers a frame, 1000 to 1400 frames each, padded with zeros."""
    batches = []
    for _ in range(NUM_BYTES // (16 * 1400 * 80 * 4) + 1):
        batch = rng.normal(0, 1, (16, 1400, 80)).astype(np.float32)
        for seq, num_frames in zip(batch, rng.integers(1000, 1400, 16), strict=True):
            seq[num_frames:] = 0
        batches.append(batch)
    return np.concatenate(batches)


def tokens(rng: np.random.Generator) -> np.ndarray:
    """Return token numbers of a vocabulary of 50,000."""
    return np.minimum(rng.zipf(1.2, NUM_BYTES // 8), 49_999).astype(np.int64)


KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "speech, 16 bit": speech,
    "images, 8 bit": images,
    "padded features, float32": features,
    "token numbers, int64": tokens,
}


def fastest(work: Callable[[], object], repeats: int) -> float:
    """Return the processor seconds of the fastest time."""
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def measure(data: np.ndarray, codec: pa.Codec, repeats: int) -> dict[str, float]:
    """Return what is left of an array, and how fast it is packed and unpacked."""
    raw = memoryview(data).cast("B")
    pieces = [raw[start : start + PIECE_BYTES] for start in range(0, raw.nbytes, PIECE_BYTES)]
    packed = [codec.compress(piece, asbytes=True) for piece in pieces]
    if any(codec.decompress(one, piece.nbytes) != piece for one, piece in zip(packed, pieces, strict=True)):
        raise AssertionError("what was unpacked is not what was packed")
    left = sum(map(len, packed)) / raw.nbytes
    packing = fastest(lambda: [codec.compress(piece) for piece in pieces], repeats)
    unpacking = fastest(
        lambda: [codec.decompress(one, piece.nbytes) for one, piece in zip(packed, pieces, strict=True)], repeats
    )
    thread_seconds = unpacking / raw.nbytes + left / RECEIVED_BYTES_PER_SECOND
    return {
        "left": left,
        "packed_bytes_per_second": raw.nbytes / packing,
        "unpacked_bytes_per_second": raw.nbytes / unpacking,
        "pays_below_bits_per_second": 8 / thread_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure each a few times only")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    print("| batches | codec | what is left | packs GB/s | unpacks GB/s | pays below Gbit/s |")
    print("|---|---|---|---|---|---|")
    for kind, make in KINDS.items():
        data = make(np.random.default_rng(1))
        results[kind] = {}
        for name, open_codec in CODECS.items():
            figures = results[kind][name] = measure(data, open_codec(), 3 if options.quick else 20)
            pays = f"{figures['pays_below_bits_per_second'] / 1e9:.1f}" if figures["left"] < 0.99 else "never"
            print(
                f"| {kind} | {name} | {figures['left']:.0%} | {figures['packed_bytes_per_second'] / 1e9:.2f} | "
                f"{figures['unpacked_bytes_per_second'] / 1e9:.2f} | {pays} |"
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
