"""What a dataset says of itself, and what a loader makes of that: budgets, digests, workers, options."""

import copy
import json
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headrace import ConfigError, NumbersDict, ResumeError, TransformError
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget
from headrace.datasets import (
    CachedDataset2,
    CombinedDataset,
    ConcatDataset,
    Dataset,
    DatasetSeq,
    DistributeFilesDataset,
    MapDataset,
    MixDataset,
    MultiEpochDataset,
    MultiProcDataset,
    PostprocessingDataset,
    StaticDataset,
    init_dataset,
)
from headrace.engine import EngineOptions, Skipping
from headrace.loading import DataLoader


def corpus(num_seqs=12, first=0):
    return [{"data": np.full((2 + i % 5, 1), first + i, np.float32)} for i in range(num_seqs)]


def static(first=0, **options):
    return {"class": "StaticDataset", "data": corpus(first=first), **options}


def lengthen(features):
    return {"data": np.repeat(features["data"], 3, axis=0)}


def shorten(features):
    return {"data": features["data"][:1]}


def wraps(part):
    return {
        "itself": part,
        "concat": {"class": "ConcatDataset", "datasets": [part, static(first=50)]},
        "mix": {"class": "MixDataset", "datasets": {"a": part, "b": static(first=50)}},
        "epochs": {"class": "MultiEpochDataset", "dataset": part, "multi_epoch": 2},
        "meta": {
            "class": "MetaDataset",
            "datasets": {"x": part},
            "data_map": {"data": ("x", "data")},
            "seq_order_control_dataset": "x",
        },
        "workers": {"class": "MultiProcDataset", "dataset": part, "num_workers": 0, "buffer_size": 3},
        "function": {
            "class": "PostprocessingDataset",
            "dataset": part,
            "map_seq": same,
            "map_seq_preserves_lengths": True,
        },
        "nested": {
            "class": "MultiEpochDataset",
            "dataset": {"class": "ConcatDataset", "datasets": [{"class": "ConcatDataset", "datasets": [part]}]},
            "multi_epoch": 1,
        },
    }


def same(seq, **_):
    return seq


class DoubledKeys(StaticDataset):
    def get_data(self, seq_idx, key):
        return super().get_data(seq_idx, key) * 2


class DoubledSeqs(StaticDataset):
    def get_seq(self, seq_idx):
        seq = super().get_seq(seq_idx)
        return DatasetSeq(seq_idx, seq.features["data"] * 2, seq_tag=seq.seq_tag)


class DoubledOnceLoaded(StaticDataset):
    def load_seqs(self, start, end):
        super().load_seqs(start, end)
        self.factor = 2

    def get_seq(self, seq_idx):
        seq = super().get_seq(seq_idx)
        return DatasetSeq(seq_idx, seq.features["data"] * self.factor, seq_tag=seq.seq_tag)


class Renamed(StaticDataset):
    def get_tag(self, seq_idx):
        return f"my-{super().get_tag(seq_idx)}"


WAYS = [DoubledKeys, DoubledSeqs, DoubledOnceLoaded]


@pytest.mark.parametrize("wrap", list(wraps({})))
@pytest.mark.parametrize("cls", WAYS)
def test_what_a_class_of_ones_own_makes_of_a_sequence_is_what_a_loader_delivers(cls, wrap):
    options = {"data": corpus(first=1)}
    plain = list(init_dataset(wraps({"class": StaticDataset, **options})[wrap]).epoch(1))
    inside = {seq["data"].tobytes() for seq in StaticDataset(**options).epoch(1)}
    expected = [seq["data"] * (2 if seq["data"].tobytes() in inside else 1) for seq in plain]
    with DataLoader(wraps({"class": cls, **options})[wrap], batching=FixedCount(1), num_workers=0) as loader:
        for data, batch in zip(expected, loader, strict=True):
            np.testing.assert_array_equal(batch["data"][0], data)
    for data, seq in zip(expected, init_dataset(wraps({"class": cls, **options})[wrap]).epoch(1), strict=True):
        np.testing.assert_array_equal(seq["data"], data)


@pytest.mark.parametrize("wrap", list(wraps({})))
@pytest.mark.parametrize("ordering", ["random", "laplace:.4"])
def test_to_ask_for_the_order_of_an_epoch_leaves_the_one_that_is_read_as_it_is(wrap, ordering):
    config = wraps(static(seq_ordering=ordering, repeat_epoch=2))[wrap]
    with init_dataset(config) as dataset, init_dataset(config) as other:
        expected = [seq["data"].tobytes() for seq in other.epoch(2)]
        read = []
        for number, seq in enumerate(dataset.epoch(2)):
            order, counted = dataset.get_corpus().order(1 + number % 4, counts=True)
            assert counted is None or len(counted) == len(order)
            read.append(seq["data"].tobytes())
            dataset.get_corpus().order_text(number + 1), dataset.get_corpus().digest_text()
        assert read == expected
        other.init_seq_order(epoch=3)
        np.testing.assert_array_equal(dataset.get_corpus().order(3)[0], other.get_current_seq_order())


class WithNamesOfItsOwn(CachedDataset2):
    """A class written for RETURNN: its attributes have the names that come to mind."""

    NAMES = (
        "parts",
        "workers",
        "corpus",
        "corpus_tags",
        "order",
        "lengths",
        "reader",
        "cursor",
        "stream",
        "open",
        "index",
    )

    def __init__(self, seqs, **kwargs):
        super().__init__(**kwargs)
        for name in self.NAMES:
            setattr(self, name, [name])
        self.seqs = seqs
        self.num_inputs, self.num_outputs = 1, {"data": (1, 2)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self._num_seqs = len(self.seqs) if epoch is not None else 0
        return True

    def _collect_single_seq(self, seq_idx):
        return DatasetSeq(seq_idx, self.seqs[seq_idx]["data"])


def test_a_class_of_ones_own_may_have_attributes_of_any_name_that_comes_to_mind():
    with DataLoader(WithNamesOfItsOwn(corpus()), batching=FixedCount(4)) as loader:
        assert [len(batch.tags) for batch in loader] == [4, 4, 4]
    wrapped = init_dataset({"class": "PostprocessingDataset", "dataset": WithNamesOfItsOwn(corpus()), "map_seq": same})
    with wrapped:
        assert len(list(wrapped.epoch(1))) == 12
        wrapped.seed_by_tag()


class Longer(StaticDataset):
    def get_data(self, seq_idx, key):
        return np.repeat(super().get_data(seq_idx, key), 2, axis=0)


class LongerAndSaysSo(Longer):
    def get_seq_length(self, seq_idx):
        return super().get_seq_length(seq_idx) * 2


WRAPS_THAT_ASK = ["itself", "concat", "mix", "meta", "workers", "function"]


@pytest.mark.parametrize("wrap", WRAPS_THAT_ASK)
def test_the_lengths_that_a_class_of_ones_own_says_are_those_of_the_plan(wrap):
    config = wraps({"class": LongerAndSaysSo, "data": corpus(first=1)})[wrap]
    with DataLoader(config, batching=FrameBudget(24), num_workers=0) as loader:
        batches = list(loader)
    assert all(len(batch.tags) * max(batch.lengths["data"]) <= 24 for batch in batches)
    with init_dataset(config) as dataset:
        assert sum(sum(batch.lengths["data"]) for batch in batches) == sum(len(seq["data"]) for seq in dataset.epoch(1))
    first = next(iter(LongerAndSaysSo(data=corpus()).epoch(1)))
    assert len(first["data"]) == 4


@pytest.mark.parametrize("wrap", WRAPS_THAT_ASK)
def test_lengths_of_a_class_of_ones_own_that_it_does_not_say_are_an_error(wrap):
    config = wraps({"class": Longer, "data": corpus(first=1)})[wrap]
    with (
        DataLoader(config, batching=FrameBudget(24), num_workers=0) as loader,
        pytest.raises(TransformError, match=r"'data' has \d+ frames, and \d in the index"),
    ):
        list(loader)


def test_frames_of_a_class_of_ones_own_are_cut_from_what_it_makes():
    dataset = Longer(data=corpus(first=1))
    dataset.init_seq_order(epoch=1)
    np.testing.assert_array_equal(dataset.get_data_slice(3, "data", 2, 9), dataset.get_data(3, "data")[2:9])
    dataset = LongerAndSaysSo(data=corpus(first=1))
    dataset.init_seq_order(epoch=1)
    assert dataset.get_num_timesteps()["data"] == 2 * sum(len(seq["data"]) for seq in corpus())


def test_a_tag_of_ones_own_is_that_of_the_batch():
    with DataLoader(Renamed(data=corpus()), batching=FixedCount(3)) as loader:
        assert next(iter(loader)).tags == ["my-seq-0", "my-seq-1", "my-seq-2"]


@pytest.mark.parametrize("wrap", list(wraps({})))
def test_a_hopeless_budget_is_refused_for_every_class(wrap):
    with (
        DataLoader(wraps(static())[wrap], batching=FrameBudget(1)) as loader,
        pytest.raises(ConfigError, match="smaller than any sequence"),
    ):
        list(loader)


@pytest.mark.parametrize("wrap", list(wraps({})))
@pytest.mark.parametrize("batching", [FrameBudget(20), Buckets(FrameBudget(20))])
def test_a_transform_of_a_dataset_that_lengthens_is_an_error_where_frames_are_planned(wrap, batching):
    with (
        DataLoader(wraps(static(transform=lengthen))[wrap], batching=batching) as loader,
        pytest.raises(TransformError, match=r"'data' has \d+ frames, and \d in the index"),
    ):
        list(loader)


@pytest.mark.parametrize("wrap", list(wraps({})))
def test_a_transform_of_a_dataset_that_shortens_keeps_a_budget_and_one_that_lengthens_needs_none(wrap):
    with DataLoader(wraps(static(transform=shorten))[wrap], batching=FrameBudget(20)) as loader:
        assert all(batch["data"].shape[1] == 1 for batch in loader if "seq" in batch.tags[0] and wrap == "itself")
        list(loader)
    with DataLoader(wraps(static(transform=lengthen))[wrap], batching=FixedCount(3)) as loader:
        assert max(batch["data"].shape[1] for batch in loader) == 18


@pytest.mark.parametrize("wrap", list(wraps({})))
@pytest.mark.parametrize("option", [{"context_window": 3}, {"chunking": 5}])
def test_options_for_the_batches_of_the_epoch_api_are_refused_at_any_depth(wrap, option):
    with pytest.raises(ConfigError, match=r"batching=Chunks"):
        DataLoader(wraps(static(**option))[wrap], batching=FixedCount(2))


@pytest.mark.parametrize("option", [{"context_window": 3}, {"chunking": 5}])
def test_options_for_the_batches_of_the_epoch_api_are_refused_in_what_files_make(files, option):
    dataset = DistributeFilesDataset(
        files=files, get_sub_epoch_dataset=Files(**option), executor="inline", num_workers=0
    )
    for config in (dataset, {"class": "MultiEpochDataset", "dataset": dataset, "multi_epoch": 2}):
        with pytest.raises(ConfigError, match=f"{next(iter(option))} of StaticDataset .* is for generate_batches"):
            DataLoader(config, batching=FixedCount(2))


def test_context_around_chunks_is_an_option_of_the_batching():
    with DataLoader(static(), batching=Chunks(FixedCount(2), frames=2, context=(1, 1))) as loader:
        assert list(loader)


def test_lengths_of_joined_sequences_are_known_where_those_inside_are(tmp_path):
    (tmp_path / "list.txt").write_text("seq-0;seq-1\nseq-2\n")
    config = {"class": "ConcatSeqsDataset", "dataset": wraps(static())["concat"], "seq_list_file": None}
    config["dataset"]["datasets"].pop()
    config["seq_list_file"] = str(tmp_path / "list.txt")
    with DataLoader(config, batching=FrameBudget(5)) as loader:
        assert [list(batch.lengths["data"]) for batch in loader] == [[5], [4]]


# --- states ---


def state_after(config, num_batches=2, **options):
    with DataLoader(config, batching=FixedCount(2), **options) as loader:
        for number, _ in enumerate(loader):
            if number + 1 == num_batches:
                break
        return json.loads(json.dumps(loader.state_dict()))


def resume(config, state):
    with DataLoader(config, batching=FixedCount(2)) as loader:
        loader.load_state_dict(state)
        return [tag for batch in loader for tag in batch.tags]


class Files:
    """A function of the user's: a dataset of the numbers in files."""

    def __init__(self, **options):
        self.options = options

    def __call__(self, files):
        data = [seq for file in files for seq in corpus(3, int(Path(file).read_text()))]
        return {"class": "StaticDataset", "data": data, **self.options}


class FilesAsObject(Files):
    """The same, as an object."""

    def __call__(self, files):
        return init_dataset(super().__call__(files))


@pytest.fixture
def files(tmp_path):
    names = []
    for number in range(4):
        path = tmp_path / f"{number}.txt"
        path.write_text(str(number * 10))
        names.append(str(path))
    return names


@pytest.mark.parametrize("function", [Files, FilesAsObject])
def test_a_state_of_files_is_one_of_the_configuration_that_they_make(files, function):
    def dataset(**options):
        return {
            "class": "DistributeFilesDataset",
            "files": files,
            "get_sub_epoch_dataset": function(**options),
            "executor": "inline",
            "num_workers": 0,
        }

    state = state_after(dataset(seq_ordering="random"))
    assert len(resume(dataset(seq_ordering="random", cache_byte_size=100, name="another"), state)) == 8
    for options in ({}, {"seq_ordering": "reverse"}, {"seq_ordering": "random", "fixed_random_seed": 3}):
        with pytest.raises(ResumeError, match="another order"):
            resume(dataset(**options), state)
    for options in ({"transform": shorten}, {"window": 3}):
        with pytest.raises(ResumeError, match="another order"):
            resume(dataset(seq_ordering="random", **options), state)


def test_a_state_of_files_does_not_depend_on_their_folder_or_on_who_reads_them(files, tmp_path):
    def dataset(names, **options):
        return DistributeFilesDataset(files=names, get_sub_epoch_dataset=Files(), executor="inline", **options)

    state = state_after(dataset(files, num_workers=0))
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in files:
        (moved / name.rpartition("/")[2]).write_text(Path(name).read_text())
    names = [str(moved / name.rpartition("/")[2]) for name in files]
    assert len(resume(dataset(names, buffer_size=3, preload_next_n_sub_epochs=2), state)) == 8


class Lines(CachedDataset2):
    """A stream of the user's: the numbers in a file."""

    def __init__(self, path, options=None, **kwargs):
        super().__init__(**kwargs)
        self.num_outputs = {"data": (1, 1)}
        self.path, self.options = path, options

    def _collect_single_seq(self, seq_idx):
        return DatasetSeq(seq_idx, {"data": np.arange(3)}, seq_tag=f"{seq_idx}") if seq_idx < 9 else None


@pytest.mark.parametrize("folder", ["data/", "./data/", "../here/data/", "{here}/data/", "{here}/moved/", "moved/", ""])
@pytest.mark.parametrize("kind", ["files", "stream"])
def test_a_state_does_not_depend_on_how_the_folder_of_files_is_written(tmp_path, monkeypatch, folder, kind):
    def dataset(folder):
        names = [f"{folder.format(here=here)}{number}.txt" for number in range(4)]
        if kind == "stream":
            return Lines(names[0], {"more": [*names, Path(names[1])]})
        return DistributeFilesDataset(
            files=names, get_sub_epoch_dataset=lambda files: Lines(files[0]), executor="inline", num_workers=0
        )

    here = tmp_path / "here"
    for place in (here, here / "data", here / "moved"):
        place.mkdir()
        for number in range(4):
            (place / f"{number}.txt").write_text(str(number * 10))
    monkeypatch.chdir(here)
    state = state_after(dataset("data/"))
    assert len(resume(dataset(folder), state)) == 5


def choose_from(n):
    return n


class Mode(Enum):
    TRAIN = 1
    DEV = 2


@pytest.mark.parametrize(
    "options",
    [
        (partial(choose_from, n=1), partial(choose_from, n=2)),
        (partial(choose_from, n=1), choose_from),
        (range(3), range(4)),
        (Mode.TRAIN, Mode.DEV),
        (np.array(["a", 1], dtype=object), np.array(["a", 2], dtype=object)),
        (np.dtype("float32"), np.dtype("float64")),
    ],
)
def test_what_is_written_in_an_argument_of_a_stream_counts(tmp_path, options):
    state = state_after(Lines(tmp_path / "x", options[0]))
    assert resume(Lines(tmp_path / "x", copy.deepcopy(options[0])), state)
    with pytest.raises(ResumeError, match="another order"):
        resume(Lines(tmp_path / "x", options[1]), state)


class LinesWithCopies(Lines):
    """The same, with an argument that changes nothing that is delivered."""

    @classmethod
    def idle_options(cls, options):
        return super().idle_options(options) | {"options"}


@pytest.mark.parametrize(
    "wrap", [lambda lines: lines, lambda lines: {"class": "MultiEpochDataset", "dataset": lines, "multi_epoch": 1}]
)
def test_a_class_of_the_users_says_which_of_its_arguments_change_nothing(wrap):
    state = state_after(wrap(LinesWithCopies("x", "/scratch/1")))
    assert resume(wrap(LinesWithCopies("x", options="/scratch/2")), state)
    with pytest.raises(ResumeError, match="another order"):
        resume(wrap(LinesWithCopies("y", "/scratch/1")), state)


def test_objects_in_an_array_do_not_make_a_state_one_of_this_process():
    objects = [np.array([object(), "a"], dtype=object) for _ in range(2)]
    assert resume(Lines("x", objects[1]), state_after(Lines("x", objects[0])))


# --- a class of the user's ---


class InPlace(Dataset):
    """A class of the user's that shuffles one array, and counts how often it is made."""

    num_inputs, num_outputs = 1, {"data": (1, 2)}
    num_made = 0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        type(self).num_made += 1
        self.places = np.arange(40)

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        if seq_order is not None:
            self.places[: len(seq_order)] = seq_order
        else:
            self.places[:] = np.random.RandomState(epoch).permutation(40)
        return True

    @property
    def num_seqs(self):
        return 40

    def get_current_seq_order(self):
        return self.places

    def load_seqs(self, start, end):
        pass

    def get_seq_length(self, seq_idx):
        return NumbersDict({"data": 1 + int(self.places[seq_idx]) % 3})

    def get_data(self, seq_idx, key):
        return np.full((1 + int(self.places[seq_idx]) % 3, 1), self.places[seq_idx])

    def get_all_tags(self):
        return [str(i) for i in range(40)]


@pytest.mark.parametrize("options", [{}, {"seq_ordering": "default"}])
@pytest.mark.parametrize("is_object", [True, False])
def test_a_class_of_the_users_is_made_once_to_be_asked_and_once_to_be_read(options, is_object):
    InPlace.num_made = 0
    given = InPlace(**options) if is_object else {"class": InPlace, **options}
    with DataLoader(given, batching=FrameBudget(7), window_seqs=10) as loader:
        for epoch in (1, 2, 3):
            loader.explain()
            places = []
            for batch in loader:
                places += batch["data"][:, 0, 0].tolist()
                loader.state_dict()
                len(loader)
                loader.num_steps(epoch + 1)
            assert places == np.random.RandomState(epoch).permutation(40).tolist()
    assert InPlace.num_made == is_object + 2


class Costly:
    """Items that tell their lengths, each of which costs something."""

    num_asked = 0

    def __len__(self):
        return 50

    def __getitem__(self, place):
        return {"data": np.full((1 + place % 3, 1), place)}

    def get_seq_len(self, place):
        Costly.num_asked += 1
        return 1 + place % 3


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: MapDataset(items, seq_ordering="random")])
def test_lengths_that_nobody_needs_are_not_asked_for_before_batches_come(wrap):
    Costly.num_asked = 0
    with DataLoader(wrap(Costly()), batching=FixedCount(4)) as loader:
        loader.explain()
        assert len(loader) == 13
        assert next(iter(loader)).num_seqs == 4
    assert Costly.num_asked <= 1


class Around(CachedDataset2):
    """A class of the user's that reads the dataset that it is given, as it is."""

    def __init__(self, dataset, **kwargs):
        super().__init__(**kwargs)
        self.dataset, self.num_outputs = dataset, {"data": (1, 2)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        return self.dataset.init_seq_order(epoch)

    def _collect_single_seq(self, seq_idx):
        if seq_idx >= 40:
            return None
        return DatasetSeq(seq_idx, {"data": self.dataset.get_data(seq_idx, "data")}, seq_tag=f"{seq_idx}")


def test_an_object_in_a_config_of_the_users_class_may_be_read_meanwhile():
    part = InPlace()
    with DataLoader({"class": Around, "dataset": part}, batching=FixedCount(1), window_seqs=2) as loader:
        places = []
        for batch in loader:
            places.append(int(batch["data"].flat[0]))
            part.init_seq_order(epoch=7)
    assert places == np.random.RandomState(1).permutation(40).tolist()


def test_parts_of_a_config_that_are_objects_are_copied_once():
    InPlace.num_made = 0
    parts = [InPlace(), InPlace()]
    with DataLoader({"class": "ConcatDataset", "datasets": parts}, batching=FixedCount(2)):
        assert InPlace.num_made == 4


# --- several epochs ---


class Million:
    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        return {"data": [i]}


def test_too_many_epochs_in_one_are_refused_at_once():
    with pytest.raises(ConfigError, match="multi_epoch must be in"):
        init_dataset({"class": "MultiEpochDataset", "dataset": static(), "multi_epoch": 2**53})
    with pytest.raises(ConfigError, match="are too many: their order is in memory"):
        init_dataset(
            {
                "class": "MultiEpochDataset",
                "dataset": {"class": "MapDataset", "map_dataset": Million()},
                "multi_epoch": 10**6,
            }
        ).init_seq_order(epoch=1)


# --- workers of the dataset ---


def note_worker(info):
    note_worker.seen.append(info.num_workers)


note_worker.seen = []


def multi_proc(**options):
    return MultiProcDataset(static(), 2, 5, executor="thread", **options)


def test_workers_of_a_dataset_are_those_of_the_loader():
    note_worker.seen.clear()
    with DataLoader(multi_proc(worker_init=note_worker), batching=FixedCount(2)) as loader:
        assert sum(batch.num_seqs for batch in loader) == 12
        assert "workers:  2, executor thread" in loader.explain()
    assert note_worker.seen == [2, 2]


def test_the_number_of_workers_that_is_given_to_the_loader_holds_and_the_other_is_told(caplog):
    with DataLoader(multi_proc(), batching=FixedCount(2), num_workers=0) as loader:
        assert "workers:  0" in loader.explain()
    assert "num_workers=2 of its MultiProcDataset is not" in caplog.text


@pytest.mark.parametrize("option", [{"worker_init": note_worker}, {"engine_options": EngineOptions()}])
def test_what_workers_are_told_is_told_once(option):
    (name,) = option
    with pytest.raises(ConfigError, match=f"{name} is given both to the loader and to its MultiProcDataset"):
        DataLoader(multi_proc(**option), batching=FixedCount(2), **option)


def fail_on_three(features):
    if features["data"][0, 0] == 3:
        raise ValueError("three")
    return features


def test_what_a_dataset_says_about_errors_in_workers_holds_in_the_loader():
    options = EngineOptions(on_error=Skipping())
    dataset = MultiProcDataset(static(transform=fail_on_three), 0, 5, engine_options=options)
    with DataLoader(dataset, batching=FixedCount(12)) as loader:
        (batch,) = loader
    assert batch.num_seqs == 11


def test_workers_of_a_function_are_those_of_the_loader():
    dataset = PostprocessingDataset(dataset=static(), map_seq=same, num_workers=2)
    with DataLoader(dataset, batching=FixedCount(4), executor="thread") as loader:
        assert "workers:  2, executor thread" in loader.explain()
        assert [len(batch.tags) for batch in loader] == [4, 4, 4]


def test_a_dataset_that_is_read_meanwhile_does_not_change_what_a_loader_delivers():
    dataset = StaticDataset(corpus(), seq_ordering="random")
    dataset.initialize()
    with DataLoader(dataset, batching=FixedCount(1)) as loader:
        expected = [tag for batch in loader for tag in batch.tags]
    seen = []
    own = dataset.epoch(1)
    with DataLoader(dataset, batching=FixedCount(1)) as loader:
        for batch, seq in zip(loader, own, strict=True):
            seen += batch.tags
            assert seq.tag == batch.tags[0]
    assert seen == expected


class Asked(list):
    """Seqs that count what they are asked for."""

    def __init__(self, seqs):
        super().__init__(seqs)
        self.num_lengths, self.asked_for_tags = 0, set()

    def get_seq_len(self, i):
        self.num_lengths += 1
        return len(self[i]["data"])

    def get_seq_tag(self, i):
        self.asked_for_tags.add(i)
        return f"my-{i}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda part: part,
        lambda part: ConcatDataset([part]),
        lambda part: CombinedDataset({"a": part}, {("a", "data"): "data"}),
        lambda part: MixDataset({"a": part}),
        lambda part: MultiEpochDataset(dataset=ConcatDataset([part]), multi_epoch=2),
        lambda part: PostprocessingDataset(dataset=ConcatDataset([part]), map_seq=same, map_seq_preserves_lengths=True),
    ],
)
def test_an_object_is_asked_for_tags_and_lengths_only_by_those_who_need_them(wrap):
    seqs = Asked(corpus())
    with DataLoader(wrap(MapDataset(seqs)), batching=FixedCount(4), num_workers=0) as loader:
        assert len(loader) in (3, 6)
        str(loader.explain())
        assert (seqs.num_lengths, seqs.asked_for_tags) == (0, set())
        assert len(next(iter(loader)).tags) == 4
        assert seqs.num_lengths < 12
        assert len(seqs.asked_for_tags) <= 4
    with DataLoader(wrap(MapDataset(seqs)), batching=FrameBudget(30), num_workers=0) as loader:
        assert sorted({tag for batch in loader for tag in batch.tags}) == sorted(f"my-{i}" for i in range(12))
