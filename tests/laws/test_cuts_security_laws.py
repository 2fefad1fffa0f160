"""Whatever a manifest of cuts says: no program is started, no file outside of its roots is read, no raw error.

The laws run in a process of their own (`_attack`), with an audit hook that sees every program, connection and file that
Python opens. What libraries open below Python is known by its content: files outside of the root hold a number that no
array may ever hold.
"""

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request")
SECRET = 0.625  # what files outside of the root hold


@pytest.mark.extra
@pytest.mark.parametrize("form", ["manifest", "shar"])
def test_no_manifest_starts_a_program_or_reaches_a_file_outside_of_its_root(form, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lhotse")
    pytest.importorskip("soundfile")
    command = [sys.executable, "-P", "-W", "ignore", __file__, form, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "examples: " in done.stdout


# --- in the process of its own ---


def _write_files(root, outside):
    """Write recordings, arrays and links; return a record of a manifest that names them all."""
    import h5py
    import numpy as np
    import soundfile

    for folder, value in ((root, 0.25), (outside, SECRET)):
        folder.mkdir()
        samples = np.full(800, value, np.float32)
        for name in ("a.wav", "b.flac", "x;touch PWNED;.sph", "c.ogg"):
            kind = {"sph": "NIST", "ogg": "OGG"}.get(name.rpartition(".")[2])
            soundfile.write(folder / name, samples, 8000, format=kind)
        np.save(folder / "feats.npy", np.full((10, 4), value, np.float32))
        np.save(folder / "evil.npy", np.array([{"a": 1}], object))
        with h5py.File(folder / "feats.h5", "w") as file:
            file["feats"] = np.full((10, 4), value, np.float32)
            file["link"] = h5py.ExternalLink(str(outside / "feats.h5"), "feats")
    (root / "link.wav").symlink_to(outside / "a.wav")
    (root / "folder").symlink_to(outside)
    recording = {
        "id": "r", "sources": [{"type": "file", "channels": [0], "source": str(root / "a.wav")}],
        "sampling_rate": 8000, "num_samples": 800, "duration": 0.1,
    }  # fmt: skip
    features = {
        "type": "fbank", "num_frames": 10, "num_features": 4, "frame_shift": 0.01, "sampling_rate": 8000, "start": 0,
        "duration": 0.1, "storage_type": "numpy_files", "storage_path": str(root), "storage_key": "feats.npy",
        "recording_id": "r", "channels": 0,
    }  # fmt: skip
    stored = {"storage_type": "numpy_hdf5", "storage_path": str(root / "feats.h5"), "storage_key": "feats"}
    shaken = {
        **recording, "num_samples": 889, "duration": 0.111125,
        "transforms": [
            {"name": "Speed", "kwargs": {"factor": 0.9}},
            {"name": "Volume", "kwargs": {"factor": 2.0}},
            {"name": "Clipping", "kwargs": {"hard": False, "gain_db": 1.0}},
            {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": copy.deepcopy(recording), "rir_channels": [0]}},
        ],
    }  # fmt: skip
    supervision = {
        "id": "s", "recording_id": "r", "start": 0.0, "duration": 0.1, "channel": 0, "text": "one", "speaker": "x",
        "custom": {"lang": "y"}, "alignment": {"word": [["one", 0.0, 0.1, 0.5]]},
    }  # fmt: skip
    cut = {
        "id": "c", "start": 0.0, "duration": 0.1, "channel": 0, "type": "MonoCut", "supervisions": [supervision],
        "recording": recording, "features": features,
        "custom": {
            "target": shaken, "style": "calm", "number": 3,
            "emb": {**stored, "shape": [10, 4]},
            "ali": {
                "array": {**features_storage(features), "shape": [10, 4]}, "temporal_dim": 0, "frame_shift": 0.01,
                "start": 0,
            },
        },
    }  # fmt: skip
    padding = {
        "id": "p",
        "duration": 0.1,
        "sampling_rate": 8000,
        "feat_value": -23.0,
        "num_samples": 800,
        "type": "PaddingCut",
    }
    plain = {name: cut[name] for name in ("id", "start", "duration", "channel", "supervisions", "recording")}
    track = {"cut": plain, "type": "MonoCut", "offset": 0.0}
    mixed = {
        "id": "m", "type": "MixedCut",
        "tracks": [track, {"cut": padding, "type": "PaddingCut", "offset": 0.05, "snr": 3.0}],
        "transforms": [{"name": "Volume", "kwargs": {"factor": 0.5}}],
    }  # fmt: skip
    del padding["type"]
    return cut, mixed


def features_storage(features):
    return {name: features[name] for name in ("storage_type", "storage_path", "storage_key")}


def _paths(value, path=()):
    """Yield the way to every part of a record."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _paths(child, (*path, key))


def _put(record, path, value):
    if not path:
        return value if isinstance(value, dict) else record
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return record


def _hostile(root, outside):
    from hypothesis import strategies as st

    texts = [
        "touch PWNED", "pipe:touch PWNED", "./pipe:touch PWNED;", " pipe:touch PWNED", "touch PWNED|", "-", "", "\0",
        "x;touch PWNED;.sph", "$(touch PWNED).sph", "`touch PWNED`.opus", "http://127.0.0.1:9/a.wav", "s3://a/b",
        "command", "url", "memory", "shar", "file", "kaldiio", "memory_raw", "memory_npy", "memory_lilcom",
        "lilcom_url", "numpy_files", "lilcom_files", "numpy_hdf5", "lilcom_hdf5", "chunked_lilcom_hdf5",
        "lilcom_chunky", "pickled",
        "os.system", "Speed", "Resample", "DereverbWPE", "Narrowband", "Compress", "LoudnessNormalization", "__class__",
        "MixedCut", "PaddingCut", "MultiCut", "Cut", "evil.npy", "link", "feats", "0,1,2", "-5,9999999999",
        "/dev/stdin", "/dev/zero", "/proc/self/fd/0", "/etc/passwd", "../outside/a.wav", "folder/a.wav", "x" * 5000,
        "\ud83d\ude00", *(str(folder / name) for folder in (root, outside, root / "folder", root / "../outside")
        for name in ("a.wav", "b.flac", "c.ogg", "x;touch PWNED;.sph", "feats.npy", "evil.npy", "feats.h5", "")),
        str(root / "link.wav"), str(root / "pipe:touch PWNED;"), str(root), str(outside),
    ]  # fmt: skip
    numbers = [0, 1, 2, 3, -1, 7, 2**31, 2**40, 2**63, 2**64, 1e308, -1e308, 1e-308, 0.5, 9.99e7, -0.0, True, False]
    deep = []
    for _ in range(200):
        deep = [deep]
    leaf = st.sampled_from([*texts, *numbers, None]) | st.text(max_size=8) | st.floats(allow_nan=False)
    other = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
    return st.sampled_from([*texts, *numbers, None, [], {}, deep]) | leaf | other


def _attack(form, folder):
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    import headrace as hr
    from headrace.sources import CutSource

    root, outside = folder / "root", folder / "outside"
    records = _write_files(root, outside)
    os.chdir(root)
    hostile = _hostile(root, outside)
    ways = [(number, path) for number, record in enumerate(records) for path in _paths(record)]
    num = [0, 0]
    seen = _watch(root)

    @settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def law(data):
        which, path = data.draw(st.sampled_from(ways))
        record = _put(copy.deepcopy(records[which]), path, copy.deepcopy(data.draw(hostile)))
        for _ in range(data.draw(st.integers(0, 2))):
            again = data.draw(st.sampled_from(list(_paths(record))))
            record = _put(record, again, copy.deepcopy(data.draw(hostile)))
        try:
            lines = json.dumps(record).encode("utf-8", "surrogatepass") + b"\n"
            num[0] += 1
            num[1] += _read(form, lines, root, hr, CutSource)
        except hr.HeadraceError:
            pass
        assert not seen, seen
        assert not any(root.rglob("*PWNED*")) or {path.name for path in root.rglob("*PWNED*")} == {"x;touch PWNED;.sph"}

    for number, record in enumerate(records):  # unchanged, they are read
        fields = None if number == 0 else {"audio": "audio"}
        (root / "cuts.jsonl").write_bytes(json.dumps(record).encode() + b"\n")
        assert CutSource(root / "cuts.jsonl", fields=fields, index=None).read_seq(0), number
    assert _read(form, json.dumps(records[0]).encode() + b"\n", root, hr, CutSource) > 0
    st.recursive(st.none(), st.lists).example()
    seen.clear()  # what lhotse and Hypothesis open when they are first used
    law()
    sys.stdout.write(f"examples: {num}\n")


def _read(form, lines, root, hr, kind):
    """Read everything that a manifest names; return how many arrays."""
    import numpy as np

    if form == "manifest":
        (root / "cuts.jsonl").write_bytes(lines)
        source = kind(root / "cuts.jsonl", index=None)
    else:
        source = _as_shar(lines, root, kind)
    arrays = list(source.read_seq(0).values())
    cut = source._table.cut(0, source._options.files.fields)
    for load in [
        cut.load_audio,
        cut.load_features,
        *(getattr(cut, f"load_{name}", None) for name in ("target", "emb")),
    ]:
        try:
            arrays.append(load())
        except Exception:  # noqa: BLE001 - lhotse's own; what counts is what it does
            continue
    for array in arrays:
        if array is not None and np.asarray(array).dtype.kind == "f":
            is_secret = np.mean(np.abs(np.asarray(array) - SECRET) < 1e-3) > 0.5 if np.size(array) else False
            assert not is_secret, "a file outside of the root was read"
    return len(arrays)


def _as_shar(lines, root, kind):
    """Write the recording of a cut as a field of Shar, with the hostile manifest beside its data."""
    import io
    import tarfile

    record = json.loads(lines)
    part = record.get("recording") if isinstance(record, dict) else None
    part = part if isinstance(part, dict) else record
    place = root / "shar"
    place.mkdir(exist_ok=True)
    cut = {"id": "c", "start": 0.0, "duration": 0.1, "channel": 0, "type": "MonoCut", "supervisions": []}
    (place / "cuts.000000.jsonl").write_text(json.dumps(cut) + "\n")
    with tarfile.open(place / "recording.000000.tar", "w") as tar:
        contents = {"c.wav": (root / "a.wav").read_bytes(), "c.json": json.dumps(part).encode()}
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (place / "emb.000000.jsonl").write_text(json.dumps({"cut_id": "c", "emb": record}) + "\n")
    return kind(place, fields={"data": "audio"}, index=None)


def _watch(root):
    """Note what is started, connected to, or opened outside of a folder and of Python's own files."""
    seen = []
    own = (str(root), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/proc/self/", "/usr/", "/sys/")

    def hook(event, args):
        if event in REFUSED or event in NETWORK:
            seen.append((event, args))
        elif event == "open" and not isinstance(args[0], int):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith(own):
                seen.append((event, path))

    sys.addaudithook(hook)
    return seen


if __name__ == "__main__":
    _attack(sys.argv[1], Path(sys.argv[2]))
