"""`TarSource`: random access to sequences in tar archives of the WebDataset format.

An archive is walked through once, for its index; from then on a sequence is read from its position in the file, and
nothing is unpacked to the disk. Read `archive.py` for archives and for what makes a sequence,
`members.py` for how members become arrays, `gather.py` for what is indexed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean

from ..shared.paths import Files, IndexOption, list_paths
from ..shared.source import IndexedSource, PlainKey, column_view
from .gather import SHARD_AND_KEY, TarOptions, gather_index
from .members import MemberDecoder, parse_fields, parse_members, split_field

_MISSING = ("error", "skip")


@dataclass(frozen=True, slots=True)
class _Column:
    """Precomputed values of one key, for fast reads.

    Attributes:
        decoder: How bytes become an array.
        plain: What reading needs, if the arrays lie in the archives as they are returned.
        ends: `int64[N]`, where each member ends in its file.
        sizes: `int64[N]`, the size of each member.
    """

    decoder: MemberDecoder
    plain: PlainKey | None
    ends: memoryview[int]
    sizes: memoryview[int]


class TarSource(IndexedSource):
    """Random access to sequences in tar archives, as WebDataset, Energon and `TarWriter` write them ("shards").

    Consecutive members `<key>.<extension>` with one key are a sequence; the corpus is the sequences of the archives,
    one archive after the other. The key is the tag (where `TarWriter` wrote it, the tag that it was given). It may
    repeat in another archive, but not in one. What an extension makes of a member:

    | extension | array |
    |---|---|
    | `npy` | the array; its first axis is time |
    | `cls`, `cls2`, `class` | a class index: `int32[]`, of a batch `int32[B]` |
    | `count`, `index`, `inx`, `id` | a number: `int64[]`, of a batch `int64[B]` |
    | `wav`, `flac`, `ogg`, `opus`, `mp3`, ... | samples: `float32[T, 1]`, or features. Needs `headrace[audio]` |
    | `txt`, `json` and other text | UTF-8 bytes: `uint8[T]`, 256 classes |
    | any other | the bytes: `uint8[T]` |

    Args:
        files: One path, or several; `train-{000000..000099}.tar` is a hundred.
        fields: A list of extensions, `["jpg", "cls"]`, or data key -> extension. In place of an extension, several of
            images or of recordings (`"jpg;png"`), or a dict `{"field": extension, ...}` with options: "vocab" for text
            and numbers (None: labels, the sorted distinct values; a list of labels; "bytes"; "chars"; a number of
            classes; a vocabulary) and for arrays of class indices (their number, or a list of labels), "features",
            "sample_rate", "channel" for recordings, as `AudioSource` takes them. `"json:name"` is a value in the member
            with the extension `json`, `"npz:name"` an array in `npz`. If `None`, all members of the first sequence are
            data keys; `x.npy` is called `x`.
        tag_field: What the tag is: the key if `None`; `"shard/key"` puts the name of the archive before it; else an
            extension or `"json:name"`, for a text.
        missing: `"skip"` leaves out sequences without one of the members, or of the fields in a JSON member (`null` is
            none); `"error"` refuses them.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always walks through the archives; a path opens the index that `TarSource(...).index.save(path)` wrote with
            the same options.

    Raises:
        ConfigError: An option is wrong, or does not fit what is there.
        SourceError: An archive is missing, truncated, damaged, compressed, or has members that are no plain files
            inside of it (links, paths that lead out), a member twice, sequences whose members do not follow one
            another, or that have not the same members; or the given index is not one of these files as they are now.
    """

    _options: TarOptions
    _changed_fix = "the archive changed since it was indexed: open it again"

    def __init__(
        self,
        files: Files,
        *,
        fields: Mapping[str, str | Mapping[str, Any]] | Sequence[str] | None = None,
        tag_field: str | None = None,
        missing: Literal["error", "skip"] = "error",
        index: IndexOption = "auto",
    ) -> None:
        paths = list_paths(files, "TarSource", may_be_empty=True)
        if missing not in _MISSING:
            raise ConfigError(f"missing is {missing!r}", where="TarSource", fix=did_you_mean(str(missing), _MISSING))
        if not isinstance(tag_field, str | None):
            raise ConfigError(f"tag_field is a str, not {tag_field!r}", where="TarSource")
        by_name = tag_field is None or tag_field == SHARD_AND_KEY
        options = TarOptions(
            members=None if fields is None else parse_fields(fields),
            tag=tag_field if by_name else split_field(tag_field or "", "TarSource(tag_field=...)"),
            missing=missing,
        )
        self._open(options, paths, lambda: gather_index(paths, options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        index = self._index
        self._file_of = column_view(index.locator("file"))
        self._sizes = [stamp.size for stamp in index.files]
        self._columns = {key: self._column(key) for key in self.specs}
        self._plain = {key: column.plain for key, column in self._columns.items() if column.plain is not None}

    def _column(self, data_key: str) -> _Column:
        index = self._index
        decoder = (self._options.members or {}).get(data_key) or parse_members(
            data_key, index.meta["extensions"][data_key], is_found=True
        )
        decoder.codec.settle(self.specs[data_key], self.labels.get(data_key), index.meta["learnt"][data_key])
        ends, sizes = index.locator(f"end/{data_key}"), index.locator(f"bytes/{data_key}")
        plain = PlainKey.of(self.specs[data_key], index.lengths(data_key)) if decoder.is_plain else None
        return _Column(decoder, plain, column_view(ends), column_view(sizes))

    def _locate(self, corpus_idx: int, data_key: str) -> tuple[int, int, int]:
        column = self._columns[data_key]
        file_idx, end, num_bytes = self._file_of[corpus_idx], column.ends[corpus_idx], column.sizes[corpus_idx]
        plain = column.plain  # its numbers are at the end of the member, after a header
        size = num_bytes if plain is None else plain.lengths[corpus_idx] * plain.frame_bytes
        # A damaged index must not read other bytes: what it says is compared with the file, here where it is used.
        if not 0 <= file_idx < len(self._sizes) or not 0 <= size <= num_bytes <= end <= self._sizes[file_idx]:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is in {num_bytes} bytes up to {end}")
        return file_idx, end - size, size

    def _decode(self, data: bytes, data_key: str, where: str) -> NDArray[Any]:
        decoder = self._columns[data_key].decoder
        return decoder.decode(data, f"{where}, .{decoder.ext}")

    def _where(self, corpus_idx: int) -> str:
        return f"{self._index.files[self._file_of[corpus_idx]].path}, tag {self._index.tags[corpus_idx]!r}"
