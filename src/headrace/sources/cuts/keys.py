"""Maps the parts of a cut to data keys: audio, features, custom arrays, texts and labels.

One codec for each kind, whose values are cuts. Data are read through lhotse's own `Cut`, and nothing else here is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from ..shared.codec import Codec, SpecLearner
from ..shared.data_types import find_mismatch
from ..shared.fields import Field, parse_field
from .library import import_lhotse, lhotse_errors, part_of, strict_lengths

if TYPE_CHECKING:
    from types import ModuleType

AUDIO, FEATURES, TEXT = "audio", "features", "text"
RECORDING = "recording"  # lhotse's name of what is heard as "audio"
_SUPERVISION_FIELDS = (TEXT, "speaker", "language", "gender")
_SUPERVISION = "supervision."
_FLOAT = np.dtype(np.float32)
_TRUNCATED = (
    "replace a truncated recording, correct the manifest, or allow recordings to be too short by tolerance=, in seconds"
)


class CutKey(Codec):
    """One data key, whose values are cuts.

    Attributes:
        field: What the user called it: "audio", "features", "text", or the name of a custom attribute.
        sample_rate: Sample rate of audio, in Hz; None before a cut was seen, and for all else.
        reads_parts: Whether `encode_part` reads parts of some arrays.
    """

    field: str
    sample_rate: int | None = None
    reads_parts = False

    @property
    def shar_field(self) -> str:
        """The field of Shar that it is read from, if there is one."""
        return self.field

    @property
    def learnt(self) -> int | None:
        """The sample rate."""
        return self.sample_rate

    def encode_part(self, cut: Any, start: int, end: int, where: str) -> NDArray[Any] | None:
        """Read a part of the array of a cut along time; None: only the whole can be read."""
        del cut, start, end, where
        return None


class _ArrayKey(CutKey):
    """A value with a manifest of its own; all cuts have the layout of the first one."""

    must_see_all = False
    _default = DataSpec("float32", (None,), dim=None)  # of a corpus without a cut

    def __init__(self, field: str) -> None:
        self.field = field
        self._learner = SpecLearner(repr(field), fix="make one source for each layout")

    @property
    def identity(self) -> list[Any]:
        return [type(self).__name__.strip("_"), self.field]

    @property
    def spec(self) -> DataSpec:
        return self._learner.known or self._default

    @property
    def scanned(self) -> tuple[DataSpec | None, int | None]:
        return self._learner.known, self.sample_rate

    def join(self, scanned: tuple[DataSpec | None, int | None]) -> None:
        self._learner.join(scanned[0])
        self._take_rate(scanned[1], "")

    def _take_rate(self, rate: int | None, where: str) -> None:
        """Take the sample rate of recordings, which is one for all of them; `None`: there were none."""
        if rate is not None and self.sample_rate not in (None, rate):
            raise SourceError(
                f"the sample rate of {self.field!r} is {rate} Hz, and that of the cuts before {self.sample_rate} Hz",
                where=where,
                fix=f"write the manifest with one rate: cuts.resample({self.sample_rate}).to_file(...)",
            )
        self.sample_rate = self.sample_rate if rate is None else int(rate)

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:
        del labels
        self._learner.settle(spec)
        self.sample_rate = learnt

    def _checked(self, array: Any, where: str) -> NDArray[Any]:
        """Check that what was read has the promised layout, and return it."""
        spec = self.spec
        found = np.asarray(array)
        fits = np.can_cast(found.dtype, spec.dtype, "same_kind")
        own = np.ascontiguousarray(found, dtype=spec.dtype) if fits else found
        mismatch = find_mismatch(own, spec)
        if mismatch is not None:
            raise SourceError(
                f"{self.field!r} is not what its manifest says: {mismatch}",
                where=where,
                fix="write the data again, or correct the manifest",
            )
        return own if own.flags.writeable and own.flags.owndata else own.copy()


class _AudioKey(_ArrayKey):
    """Samples: float32[T, channels]. "audio" is the cut's recording; else it is a custom one.

    Args:
        field: "audio", or the name of the attribute.
        tolerance: Seconds that a recording may end before the cut does.
    """

    _default = DataSpec("float32", (1,), dim=1)

    def __init__(self, field: str, tolerance: float) -> None:
        super().__init__(field)
        self._tolerance = tolerance
        self.reads_parts = field == AUDIO

    @property
    def shar_field(self) -> str:
        return RECORDING if self.field == AUDIO else self.field

    def scan(self, cut: Any, where: str) -> int:
        if self.field == AUDIO:
            if not cut.has_recording:
                raise _missing(self.field, where)
            rate, channels, num_samples = cut.sampling_rate, cut.num_channels, cut.num_samples
        else:
            recording = _custom_of(cut, self.field, where)
            selected = cut.custom.get(f"{self.field}_channel_selector")
            channels = recording.num_channels if selected is None else np.size(selected)
            rate, num_samples = recording.sampling_rate, recording.num_samples
            if not cut.custom.get(f"{self.field}_unaligned", False):
                num_samples = import_lhotse().utils.compute_num_samples(cut.duration, rate)
        self._take_rate(rate, where)
        self._learner.learn(_FLOAT, (int(num_samples), int(channels)), where)
        return int(num_samples)

    def encode(self, cut: Any, where: str) -> NDArray[Any]:
        with (
            lhotse_errors(f"load {self.field!r}", where, _TRUNCATED),
            strict_lengths(import_lhotse(), cut, self._tolerance),
        ):
            samples = cut.load_audio() if self.field == AUDIO else cut.load_custom(self.field)
        return self._checked(np.transpose(samples), where)

    def encode_part(self, cut: Any, start: int, end: int, where: str) -> NDArray[Any] | None:
        if not self.reads_parts or self.sample_rate is None:
            return None
        part = part_of(cut, start, end, self.sample_rate)
        if part is None:
            return None
        with (
            lhotse_errors(f"load {self.field!r}", where, _TRUNCATED),
            strict_lengths(import_lhotse(), cut, self._tolerance),
        ):
            samples = self._checked(np.transpose(part.load_audio()), where)
        return samples if len(samples) == end - start else None


class _FeaturesKey(_ArrayKey):
    """Features: float32[T, features], whatever they are stored as."""

    def scan(self, cut: Any, where: str) -> int:
        if not cut.has_features:
            raise _missing(self.field, where)
        self._learner.learn(_FLOAT, (int(cut.num_frames), int(cut.num_features)), where)
        return int(cut.num_frames)

    def encode(self, cut: Any, where: str) -> NDArray[Any]:
        with lhotse_errors("load the features", where):
            features = cut.load_features()
        return self._checked(features, where)


class _CustomKey(_ArrayKey):
    """A custom array. One with time is cut to the cut's region, along its first axis; one without has no time here."""

    def scan(self, cut: Any, where: str) -> int:
        lhotse = import_lhotse()
        array = _custom_of(cut, self.field, where)
        has_time = isinstance(array, lhotse.array.TemporalArray)
        if has_time and array.temporal_dim != 0:
            raise SourceError(
                f"time is axis {array.temporal_dim} of {self.field!r}, where lhotse does not cut it",
                where=where,
                fix="store it with time as its first axis",
            )
        if self._learner.known is None:  # a manifest does not say the dtype
            with lhotse_errors(f"load {self.field!r}", where):
                dtype = np.asarray(cut.load_custom(self.field)).dtype
        else:
            dtype = np.dtype(self._learner.known.dtype)
        self._learner.learn(dtype, tuple(map(int, array.shape)), where, has_time=has_time)
        return _num_frames_within(array, cut, lhotse) if has_time else 1

    def encode(self, cut: Any, where: str) -> NDArray[Any]:
        with lhotse_errors(f"load {self.field!r}", where):
            array = cut.load_custom(self.field)
        return self._checked(array, where)


class _LabelKey(CutKey):
    """Texts and labels: of the supervisions, or custom ones. Texts of several supervisions are joined by spaces.

    Args:
        coder: From values to arrays.
    """

    def __init__(self, coder: Field) -> None:
        self._coder = coder
        self.field, self.must_see_all = coder.name, coder.must_see_all
        self.guesses_labels = coder.guesses_labels

    @property
    def identity(self) -> list[Any]:
        return ["LabelKey", *self._coder.identity]

    @property
    def spec(self) -> DataSpec:
        return self._coder.spec

    def scan(self, cut: Any, where: str) -> int:
        return self._coder.scan(self._value_of(cut, where), where)

    @property
    def scanned(self) -> Any:
        return self._coder.scanned

    def join(self, scanned: Any) -> None:
        self._coder.join(scanned)

    def end_scan(self) -> None:
        self._coder.end_scan()
        self.labels = self._coder.labels

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:
        self._coder.settle(spec, labels, learnt)
        self.labels = labels

    def encode(self, cut: Any, where: str) -> NDArray[Any]:
        return self._coder.encode(self._value_of(cut, where), where)

    def _value_of(self, cut: Any, where: str) -> Any:
        field = self.field
        if field not in _SUPERVISION_FIELDS and not field.startswith(_SUPERVISION):
            return _custom_of(cut, field, where)
        supervisions = sorted(cut.supervisions, key=lambda supervision: float(supervision.start))
        if field in _SUPERVISION_FIELDS:
            values = [getattr(supervision, field) for supervision in supervisions]
        else:
            name = field.removeprefix(_SUPERVISION)
            values = [(supervision.custom or {}).get(name) for supervision in supervisions]
        values = [value for value in values if value is not None]
        if not values:
            raise _missing(field, where)
        if field == TEXT and len(values) > 1:
            return " ".join(values)
        if any(value != values[0] for value in values):
            raise SourceError(
                f"the supervisions of a cut have different values of {field!r}: {values}",
                where=where,
                fix="split it first: cuts.trim_to_supervisions()",
            )
        return values[0]


def parse_key(data_key: str, option: Any, tolerance: float, kinds: Mapping[str, str]) -> CutKey:
    """Return the key for one entry of `fields`.

    Args:
        data_key: Its name.
        option: A field, or a dict with "field" and "vocab", see `parse_field`.
        tolerance: Seconds that a recording may end before the cut does.
        kinds: Custom attribute -> "audio" or "array", as the first cut has them.

    Raises:
        ConfigError: It has another form.
    """
    name = option.get("field") if isinstance(option, Mapping) else option
    if not isinstance(name, str):
        raise ConfigError(
            f"a field of cuts cannot be read: {option!r}",
            where=f"data key {data_key!r}",
            fix='give "audio", "features", "text", a custom attribute, or {"field": ..., "vocab": ...}',
        )
    name = AUDIO if name == RECORDING else name
    kind = name if name in (AUDIO, FEATURES) else kinds.get(name)
    if kind is None:
        if name == TEXT and isinstance(option, str):
            option = {"field": TEXT, "vocab": "bytes"}
        return _LabelKey(parse_field(data_key, option))
    if isinstance(option, Mapping) and len(option) > 1:
        raise ConfigError(
            f"{name!r} is an array, which takes no option {sorted(set(option) - {'field'})}",
            where=f"data key {data_key!r}",
        )
    if kind == AUDIO:
        return _AudioKey(name, tolerance)
    return _FeaturesKey(name) if kind == FEATURES else _CustomKey(name)


def custom_kinds(cut: Any) -> dict[str, str]:
    """Return custom attribute -> "audio" or "array" for what a cut has beside its recording and features."""
    lhotse = import_lhotse()
    arrays = (lhotse.array.Array, lhotse.array.TemporalArray)
    kinds = {}
    for name, value in (cut.custom or {}).items():
        if isinstance(value, lhotse.Recording):
            kinds[name] = AUDIO
        elif isinstance(value, arrays):
            kinds[name] = "array"
    return kinds


def default_fields(cut: Any) -> dict[str, str]:
    """Return data key -> field for all of a cut that has an array form, and its text."""
    found = [AUDIO] if cut.has_recording else []
    found += [FEATURES] if cut.has_features else []
    found += list(custom_kinds(cut))
    found += [TEXT] if any(supervision.text is not None for supervision in cut.supervisions) else []
    return {name: name for name in found}


def _custom_of(cut: Any, name: str, where: str) -> Any:
    if not cut.has_custom(name):
        raise _missing(name, where)
    return getattr(cut, name)


def _missing(name: str, where: str) -> SourceError:
    return SourceError(
        f"the cut has no {name!r}",
        where=where,
        fix="filter the cuts, or name by fields= what all of them have",
    )


def _num_frames_within(array: Any, cut: Any, lhotse: ModuleType) -> int:
    """Return how many frames lhotse reads of an array for a cut: those of its region."""
    num, to_frames = int(array.shape[0]), lhotse.array.seconds_to_frames
    left = 0
    if abs(cut.start - array.start) > 1e-9 * max(cut.start, array.start, 1.0):
        left = to_frames(max(cut.start - array.start, 0.0), array.frame_shift, max_index=num)
    return min(left + int(to_frames(cut.duration, array.frame_shift, max_index=num)), num) - left
