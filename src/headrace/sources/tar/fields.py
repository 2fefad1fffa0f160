"""Maps members to data keys, by the user's options or by the extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError, did_you_mean

from ..audio.codec import RecordingCodec
from ..images import EXTENSIONS as IMAGE_EXTENSIONS
from ..images import IMAGE_OPTIONS, ImageCodec
from ..shared.fields import IndexField, NumberField, parse_field
from ..shared.json_fields import JsonField
from .members import BytesDecoder, FileDecoder, MemberDecoder, NpyDecoder, NpzDecoder, ValueDecoder

AUDIO_EXTENSIONS = frozenset(("wav", "flac", "ogg", "oga", "opus", "mp3", "aiff", "aif", "au", "w64", "rf64", "caf"))
_TEXT_EXTENSIONS = frozenset(("txt", "text", "transcript", "lab", "json", "jsn", "jsonl", "csv", "tsv", "srt", "xml"))
_CLASS_EXTENSIONS = frozenset(("cls", "cls2", "class"))
_NUMBER_EXTENSIONS = _CLASS_EXTENSIONS | {"count", "index", "inx", "id"}
_ARRAY_EXTENSIONS = frozenset(("npy", "npz"))
_NAMED_EXTENSIONS = frozenset(("json", "jsn", "npz"))  # of members that hold values by name
_FORMS = (
    'valid: an extension such as "npy", "json:name" or "npz:name" for something inside, or {"field": one of these, ...}'
)
_AUDIO_OPTIONS = ("field", "features", "sample_rate", "channel")
_VALUE_OPTIONS = ("field", "vocab", "labels")


def default_data_key(ext: str) -> str:
    """Return the data key of the members with an extension: `x` for `x.npy`, and else the extension itself."""
    name, dot, last = ext.rpartition(".")
    return name if dot and (last.lower() in AUDIO_EXTENSIONS | IMAGE_EXTENSIONS | {"npy", "txt"}) else ext


def parse_fields(fields: Any) -> dict[str, MemberDecoder]:
    """Choose how each data key is read: `fields` is a dict, or a list of extensions with their usual data keys.

    Raises:
        ConfigError: It has another form, or a field has.
    """
    if isinstance(fields, list | tuple) and all(isinstance(one, str) for one in fields):
        given, fields = fields, {default_data_key(one.removeprefix(".").partition(";")[0]): one for one in fields}
        if len(fields) < len(given):
            raise ConfigError(
                f"two of the fields {given} have the same data key", where="TarSource", fix="give {data key: extension}"
            )
    if not isinstance(fields, Mapping):
        raise ConfigError(
            f"fields cannot be read: {fields!r}",
            where="TarSource",
            fix='give {data key: extension, ...}, or a list of extensions such as ["jpg", "cls"]',
        )
    return {key: parse_members(key, target) for key, target in fields.items()}


def parse_members(data_key: str, target: Any, *, is_found: bool = False) -> MemberDecoder:
    """Choose how one data key is read.

    Args:
        data_key: Its name, for errors.
        target: An extension; several of images, or of recordings, of which a sequence has one: `"jpg;png"`;
            `"json:name"` for a value in the JSON object of the member with the extension "json" (dots lead into objects
            inside), `"npz:name"` for an array of several; or a dict with that as "field", and "vocab" (see
            `parse_field`; for arrays, a number of classes or a list of labels), or "features", "sample_rate", "channel"
            (see `AudioSource`) for recordings, or "mode" and "size" (see `ImageCodec`) for
            images; their mode "bytes" gives the bytes of the file.
        is_found: Whether it is the extension of members that are there, in which ";" and ":" have no meaning.

    Raises:
        ConfigError: It has another form, or options that do not fit.
    """
    where = f"TarSource(fields=...), data key {data_key!r}"
    options = {"field": target} if isinstance(target, str) else target
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str) or not options["field"]:
        raise ConfigError(f"a field cannot be read: {target!r}", where=where, fix=_FORMS)
    field, steps = (target, ()) if is_found else split_field(options["field"], where)
    lasts = {one.rpartition(".")[2].lower() for one in ([field] if is_found else field.split(";"))}
    last = field.rpartition(".")[2].lower()
    if lasts <= AUDIO_EXTENSIONS:
        _refuse_options(options, _AUDIO_OPTIONS, where)
        features, sample_rate = options.get("features", "raw"), options.get("sample_rate")
        return FileDecoder("audio", field, RecordingCodec(features, sample_rate, options.get("channel")))
    if lasts <= IMAGE_EXTENSIONS:
        _refuse_options(options, ("field", *IMAGE_OPTIONS), where)
        if options.get("mode") == "bytes" and "size" not in options:
            return BytesDecoder(field, is_text=False)
        return FileDecoder("image", field, ImageCodec.parse(f"members .{field}", options))
    if len(lasts) > 1:
        raise ConfigError(
            f"a field cannot be read: {field!r}",
            where=where,
            fix='of several extensions, all are of images, as in "jpg;png", or all of recordings',
        )
    _refuse_options(options, _VALUE_OPTIONS, where)
    if last in _ARRAY_EXTENSIONS and (steps or last == "npy"):
        vocab = _classes_of(options, where)
        return NpzDecoder(field, ".".join(steps), vocab) if steps else NpyDecoder(field, vocab)
    is_bare = options.keys() == {"field"}
    if steps:
        named = JsonField(options["field"]) if is_bare else parse_field(data_key, options)
        return ValueDecoder(field, "json", steps, named)
    if is_bare:
        return _decoder_of_ext(field, last)
    said = options.get("vocab")
    if last in _NUMBER_EXTENSIONS and isinstance(said, int | list | tuple):
        return ValueDecoder(field, "number", (), _index_field(data_key, field, said))
    return ValueDecoder(field, "text", (), parse_field(data_key, {**options, "field": field}))


def _decoder_of_ext(ext: str, last: str) -> MemberDecoder:
    if last in _NUMBER_EXTENSIONS:
        return ValueDecoder(ext, "number", (), NumberField(ext, is_class=last in _CLASS_EXTENSIONS))
    return BytesDecoder(ext, is_text=last in _TEXT_EXTENSIONS)


def split_field(field: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the extension, and the names that lead to a value inside: `json:a.b` is `b` in the object `a`.

    Raises:
        ConfigError: It names nothing.
    """
    ext, colon, path = field.removeprefix(".").partition(":")
    steps = tuple(path.split(".")) if colon else ()
    has_names = ext.rpartition(".")[2].lower() in _NAMED_EXTENSIONS
    if not ext or "/" in ext or (colon and not (has_names and all(steps))):
        raise ConfigError(f"{field!r} names no members", where=where, fix=_FORMS)
    return ext, steps


def _index_field(data_key: str, ext: str, vocab: Any) -> IndexField:
    if isinstance(vocab, int):
        field = parse_field(data_key, {"field": ext, "vocab": vocab})
    else:
        field = parse_field(data_key, {"field": ext, "vocab": max(len(vocab), 1)})
        field.labels = list(vocab)
    assert isinstance(field, IndexField)
    return field


def _classes_of(options: Mapping[str, Any], where: str) -> int | list[str] | None:
    """Return the number of classes of an array of class indices, or their labels."""
    vocab = options.get("vocab")
    is_count = isinstance(vocab, int) and not isinstance(vocab, bool) and vocab > 0
    is_labels = isinstance(vocab, list | tuple) and bool(vocab) and all(isinstance(label, str) for label in vocab)
    if (vocab is not None and not is_count and not is_labels) or "labels" in options:
        raise ConfigError(
            f"the vocab of an array of class indices cannot be read: {vocab!r}",
            where=where,
            fix="give the number of classes, or a list of their labels",
        )
    return list(vocab) if isinstance(vocab, list | tuple) else vocab


def _refuse_options(options: Mapping[str, Any], valid: tuple[str, ...], where: str) -> None:
    for name in options:
        if name not in valid:
            raise ConfigError(f"unknown option {name!r} here", where=where, fix=did_you_mean(str(name), valid))
