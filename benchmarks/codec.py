"""Encoding and decoding: Headrace's codec against pickle protocol 5, on the same values, in one process.

Run `python benchmarks/codec.py`. A sequence is a dict of five arrays, a tag and a number. The contenders take turns and
medians are shown, in microseconds for each item. Both write into the same kind of warm slot; pickle in two ways:
with its buffers out of band, copied into the slot one by one, and as one string of bytes with everything in it.
The decoded values are compared with the original before anything is measured.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.engine.codec.codec import decode, encode
from measuring.plain_slot import PlainSlot

SEED = 1
ALIGNMENT = 64
Encode = Callable[[Any, PlainSlot], Any]
Decode = Callable[[Any, PlainSlot], Any]


def make_seqs(num_seqs: int, num_bytes: int, *, ragged: bool) -> list[dict[str, Any]]:
    """Make sequences of about `num_bytes` bytes, of which most are features."""
    rng = np.random.default_rng(SEED)
    seqs = []
    for idx in range(num_seqs):
        frames = max(1, num_bytes // 64)
        frames = int(rng.integers(frames // 2, frames * 3 // 2 + 1)) if ragged else frames
        seqs.append(
            {
                "data": rng.random((frames, 10), dtype=np.float32),
                "classes": rng.integers(0, 1000, frames, dtype=np.int32),
                "energy": rng.random(frames, dtype=np.float32),
                "text": rng.integers(0, 255, frames // 2 + 1, dtype=np.uint8),
                "times": rng.random(frames // 2 + 1),
                "tag": f"corpus/recording-{idx // 10}/segment-{idx}",
                "corpus_idx": idx,
            }
        )
    return seqs


def make_values(num_seqs: int) -> dict[str, tuple[Any, int]]:
    """Return name -> value and number of items in it."""
    rng = np.random.default_rng(SEED)
    small, large = make_seqs(num_seqs, 1024, ragged=True), make_seqs(32, 65536, ragged=True)
    mixed = [{**seq, "data": seq["data"].T} if idx % 2 else seq for idx, seq in enumerate(small)]
    return {
        f"1 KiB x {num_seqs}, ragged": (small, num_seqs),
        f"1 KiB x {num_seqs}, equal lengths": (make_seqs(num_seqs, 1024, ragged=False), num_seqs),
        f"1 KiB x {num_seqs}, half of data in F order": (mixed, num_seqs),
        "1 KiB x 16, ragged": (small[:16], 16),
        "1 KiB x 1": (small[0], 1),
        "64 KiB x 32, ragged": (large, 32),
        "64 KiB x 1": (large[0], 1),
        "one array of 1 KiB": (rng.random(256, dtype=np.float32), 1),
        "one array of 1 MiB": (rng.random((4096, 64), dtype=np.float32), 1),
        "one array of 16 MiB": (rng.random((65536, 64), dtype=np.float32), 1),
        "the number 1": (1, 1),
    }


def codec_encode(value: Any, slot: PlainSlot) -> bytes:
    return encode(value, slot)


def codec_decode(message: bytes, slot: PlainSlot) -> Any:
    return decode(message, slot.buffer)


def out_of_band_encode(value: Any, slot: PlainSlot) -> tuple[bytes, list[tuple[int, int]]]:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    places, total = [], 0
    for part in parts:
        places.append((total, part.nbytes))
        total += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
    position, target = slot.reserve(total)
    memory = memoryview(target)
    for part, (start, num_bytes) in zip(parts, places, strict=True):
        memory[start : start + num_bytes] = part
    return data, [(position + start, num_bytes) for start, num_bytes in places]


def out_of_band_decode(message: tuple[bytes, list[tuple[int, int]]], slot: PlainSlot) -> Any:
    data, places = message
    memory = memoryview(slot.buffer)
    return pickle.loads(data, buffers=[memory[start : start + num_bytes] for start, num_bytes in places])


def in_band_encode(value: Any, slot: PlainSlot) -> tuple[int, int]:
    data = pickle.dumps(value, 5)
    position, target = slot.reserve(len(data))
    memoryview(target)[:] = data
    return position, len(data)


def in_band_decode(message: tuple[int, int], slot: PlainSlot) -> Any:
    start, num_bytes = message
    return pickle.loads(slot.buffer[start : start + num_bytes])


CONTENDERS: dict[str, tuple[Encode, Decode]] = {
    "headrace": (codec_encode, codec_decode),
    "pickle 5, out of band": (out_of_band_encode, out_of_band_decode),
    "pickle 5, in band": (in_band_encode, in_band_decode),
}


def check(value: Any, decoded: Any) -> None:
    """Fail if a contender does not give back what it got."""
    if isinstance(value, list):
        assert len(value) == len(decoded)
        for one, other in zip(value, decoded, strict=True):
            check(one, other)
    elif isinstance(value, dict):
        assert list(value) == list(decoded)
        check(list(value.values()), list(decoded.values()))
    else:
        np.testing.assert_array_equal(value, decoded, strict=isinstance(value, np.ndarray))


def measure(value: Any, contender: tuple[Encode, Decode], slot: PlainSlot, seconds: float) -> tuple[float, float]:
    """Return the median seconds of encoding and of decoding, the latter with the release of its result."""
    encoder, decoder = contender
    encode_seconds, decode_seconds = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(encode_seconds) < 5:
        slot.reset()
        start = time.perf_counter()
        message = encoder(value, slot)
        middle = time.perf_counter()
        decoder(message, slot)
        encode_seconds.append(middle - start)
        decode_seconds.append(time.perf_counter() - middle)
    return statistics.median(encode_seconds), statistics.median(decode_seconds)


def measure_all(value: Any, num_rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Return contender -> medians over rounds in which the contenders take turns."""
    slot = PlainSlot(64 * 1024 * 1024)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for contender in CONTENDERS.values():
        slot.reset()
        check(value, contender[1](contender[0](value, slot), slot))
    for _ in range(num_rounds):
        for name, contender in CONTENDERS.items():
            times[name].append(measure(value, contender, slot, seconds))
    return {
        name: (statistics.median(one for one, _ in pairs), statistics.median(two for _, two in pairs))
        for name, pairs in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-seqs", type=int, default=512, help="small sequences in a slot")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contender has")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--quick", action="store_true", help="two short turns each")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 2, 0.05
    print(f"{'value':44s} {'contender':22s} {'encode':>9s} {'decode':>9s} {'items/s':>12s}   (us an item)")
    for value_name, (value, num_items) in make_values(args.num_seqs).items():
        results = measure_all(value, args.rounds, args.seconds)
        for name, (encoding, decoding) in results.items():
            encode_us, decode_us = encoding / num_items * 1e6, decoding / num_items * 1e6
            rate = 1e6 / (encode_us + decode_us)
            print(f"{value_name:44s} {name:22s} {encode_us:9.2f} {decode_us:9.2f} {rate:12,.0f}")


if __name__ == "__main__":
    main()
