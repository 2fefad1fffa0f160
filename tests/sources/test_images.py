"""Images: the same pixels in folders, tars and tables; what is decided of modes, orientation and damage."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError, SourceError
from headrace.sources import ImageFolderSource, ParquetSource, TarSource, open_source
from headrace.testing import check_source

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.extra
RNG = np.random.default_rng(5)
PIXELS = [RNG.integers(0, 256, (size, 6, 3), np.uint8) for size in (4, 4, 9)]


def encoded(pixels: Any, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, form, **options)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, pixels in zip(("cats/a", "cats/b", "dogs/a"), PIXELS, strict=True):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / f"{name}.png").write_bytes(encoded(pixels))
    return tmp_path / "photos"


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_a_folder_gives_pixels_and_classes(folder: Path) -> None:
    source = open_source(folder)
    assert isinstance(source, ImageFolderSource)
    assert list(source.index.tags) == ["cats/a", "cats/b", "dogs/a"]
    assert source.specs["data"].shape == (None, 6, 3)
    assert not source.specs["data"].has_time
    assert source.labels["classes"] == ["cats", "dogs"]
    for corpus_idx in (2, 0, 1):
        np.testing.assert_array_equal(source.read(corpus_idx, "data"), PIXELS[corpus_idx])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(2, "data"), PIXELS[2])
    check_source(source)
    assert ImageFolderSource(str(folder / "cats/*.png")).specs["data"].shape == (4, 6, 3)
    with hr.DataLoader(ImageFolderSource(folder, size=(8, 5)), batch_size=2, num_workers=2) as loader:
        shapes = [(batch["data"].shape, batch["classes"].shape) for batch in loader]
        assert shapes == [((2, 8, 5, 3), (2,)), ((1, 8, 5, 3), (1,))]
    (folder / "dogs" / "a.png").write_bytes(encoded(PIXELS[0]))
    with pytest.raises(SourceError, match="changed"):
        source.read(2, "data")
    assert ImageFolderSource(folder).specs["data"].shape == (4, 6, 3)


def test_a_tar_and_a_table_have_the_same_pixels(folder: Path, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = [encoded(pixels) for pixels in PIXELS]
    tar = write_tar(
        tmp_path / "a.tar",
        {f"{i}.{end}": data for i, own in enumerate(files) for end, data in (("png", own), ("cls", b"1"))},
    )
    pq.write_table(pa.table({"image": files, "tag": ["x", "y", "z"]}), tmp_path / "a.parquet")
    table = ParquetSource(tmp_path / "a.parquet", fields={"png": {"field": "image", "mode": "RGB"}})
    for source in (TarSource(tar), table):
        for corpus_idx in (1, 2, 0):
            np.testing.assert_array_equal(source.read(corpus_idx, "png"), PIXELS[corpus_idx])
        check_source(source)
    raw = TarSource(tar, fields={"png": {"field": "png", "mode": "bytes"}})
    assert raw.read(0, "png").tobytes() == files[0]
    gray = TarSource(tar, fields={"png": {"field": "png", "mode": "L", "size": (3, 2)}})
    assert gray.specs["png"].shape == (3, 2, 1)
    check_source(gray)


def test_features_of_hugging_face_say_what_an_image_is(folder: Path) -> None:
    pytest.importorskip("datasets.arrow_dataset")  # a folder of these tests has the name of the package
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "text": datasets.Value("string"),
        }
    )
    rows = {"image": [{"bytes": encoded(pixels), "path": None} for pixels in PIXELS], "label": [0, 1, 0]}
    dataset = datasets.Dataset.from_dict({**rows, "text": ["a", "bc", ""]}, features=features)
    source = hr.HuggingFaceSource(dataset)
    for corpus_idx in (2, 1, 0):
        np.testing.assert_array_equal(source.read(corpus_idx, "image"), PIXELS[corpus_idx])
    assert source.labels["label"] == ["cat", "dog"]
    assert source.read(1, "text").tobytes() == b"bc"
    check_source(source)
    by_path = [{"bytes": None, "path": str(folder / f"{name}.png")} for name in ("cats/a", "cats/b", "dogs/a")]
    dataset = datasets.Dataset.from_dict({**rows, "image": by_path, "text": ["a", "b", "c"]}, features=features)
    np.testing.assert_array_equal(hr.HuggingFaceSource(dataset, audio_root=folder).read(2, "image"), PIXELS[2])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright_as_exif_says(tmp_path: Path, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    for form in ("PNG", "JPEG", "WEBP"):
        path = tmp_path / f"a.{form.lower()}"
        path.write_bytes(encoded(PIXELS[2], form, exif=exif))
        source = ImageFolderSource([path], suffixes=[path.suffix], targets={})
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(source.read(0, "data"), expected)
        assert source.specs["data"].shape == expected.shape


def test_modes_become_the_one_that_is_wanted(tmp_path: Path) -> None:
    gray = RNG.integers(0, 256, (3, 4), np.uint8)
    rgba = RNG.integers(0, 256, (3, 4, 4), np.uint8)
    deep = RNG.integers(0, 1 << 16, (3, 4), np.uint16)
    images = {
        "gray.png": encoded(gray),
        "rgba.png": encoded(rgba),
        "palette.gif": encoded(Image.fromarray(PIXELS[0]).quantize(4), "GIF"),
        "bits.png": encoded(Image.fromarray(gray > 99)),
        "cmyk.jpg": encoded(Image.fromarray(PIXELS[0]).convert("CMYK"), "JPEG"),
    }
    for name, data in images.items():
        (tmp_path / name).write_bytes(data)
        for mode, channels in (("RGB", 3), ("RGBA", 4), ("L", 1)):
            source = ImageFolderSource([tmp_path / name], mode=mode)
            with Image.open(tmp_path / name) as image:
                expected = np.asarray(image.convert(mode)).reshape(*image.size[::-1], channels)
            np.testing.assert_array_equal(source.read(0, "data"), expected)
    (tmp_path / "deep.png").write_bytes(encoded(deep))
    source = ImageFolderSource([tmp_path / "deep.png"], mode="I;16")
    np.testing.assert_array_equal(source.read(0, "data"), deep[:, :, None])
    with pytest.raises(SourceError, match=r'(?s)deep.*mode="I;16" reads images of 16 bits'):
        ImageFolderSource([tmp_path / "deep.png"]).read(0, "data")
    with pytest.raises(SourceError, match="16 bits"):
        ImageFolderSource([tmp_path / "gray.png"], mode="I;16").read(0, "data")


def test_a_damaged_image_is_named(folder: Path, tmp_path: Path) -> None:
    whole = encoded(RNG.integers(0, 256, (50, 50, 3), np.uint8), "JPEG")
    (folder / "cats" / "z.jpg").write_bytes(whole[: len(whole) // 2])
    source = ImageFolderSource(folder)  # its header is whole
    with pytest.raises(SourceError, match=r"(?s)truncated.*cats/z"):
        source.read(2, "data")
    (folder / "cats" / "z.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"(?s)cannot be read: its format is not known\n.*cats/z\.jpg"):
        ImageFolderSource(folder)
    path = write_tar(tmp_path / "a.tar", {"x.png": b"none"})
    with pytest.raises(SourceError, match="cannot be read"):
        TarSource(path)


def test_wrong_options_and_a_missing_pillow_say_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (
        {"mode": "HSV"},
        {"size": 3},
        {"size": (0, 1)},
        {"targets": {"x": "text"}},
        {"targets": {"data": "tag"}},
    ):
        with pytest.raises(ConfigError):
            ImageFolderSource(folder, **options)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"headrace\[image\]"):
        ImageFolderSource(folder)


def test_an_image_that_claims_more_than_there_is_memory_for_is_refused(folder: Path) -> None:
    """In a process of its own, whose memory is limited."""
    path = folder / "cats" / "b.png"
    image = bytearray(path.read_bytes())
    image[16:24] = (13_000).to_bytes(4, "big") * 2  # width and height; below what Pillow takes for an attack
    image[29:33] = zlib.crc32(image[12:29]).to_bytes(4, "big")
    path.write_bytes(image)
    code = """
import resource, sys
from headrace.errors import SourceError
from headrace.sources import ImageFolderSource
source = ImageFolderSource(sys.argv[1], size=(4, 4), index=None)
source.read_seq(0)
num_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
for corpus_idx in range(len(source)):
    try:
        source.read_seq(corpus_idx)
    except SourceError as error:
        print(corpus_idx, error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert re.match(r"1 the image cannot be read: not enough memory.*\n  where: .*cats/b", done.stdout)
