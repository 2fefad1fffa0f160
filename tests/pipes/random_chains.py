"""Random graphs of native pipes for laws: built from a recipe, so that a fresh copy can be built again."""

import asyncio
import bz2
import io
import json
import lzma
import tarfile
import tempfile
import threading
import zipfile
from functools import partial
from pathlib import Path

from hypothesis import strategies as st

from headrace.pipes.core.walk import list_pipes
from headrace.pipes.iter import IterableWrapper, SampleMultiplexer
from headrace.pipes.map import SequenceWrapper

_FOLDER = tempfile.TemporaryDirectory(prefix="headrace-chains-")


def add_one(number):
    return number + 1


def is_kept(number):
    return number % 3 != 0


def twice(number):
    return [number, -number]


def count_up(number):
    yield from range(abs(number) % 4)


def in_pairs(number):
    return number, number + 100


def total(numbers):
    return sum(number or 0 for number in numbers)


def parity(number):
    return number % 2


def size_of(number):
    return abs(number) % 5 + 1


def negate_all(numbers):
    return [-number for number in numbers]


async def add_two_slowly(number):
    await asyncio.sleep(0)
    return number + 2


def as_dict(number):
    return {"number": number, "more": {"half": number // 2}}


def sum_of_dict(item):
    return sum(value if isinstance(value, int) else sum_of_dict(value) for value in item.values())


def nested(number):
    return number, (number + 1, number + 2), [number]


def rows_of(numbers):
    return [(number, number + 7) for number in numbers]


def sum_of_columns(columns):
    return sum(place * value for values in columns.values() for place, value in enumerate(values, 1))


def named(number, text):
    return f"{number}.txt", io.BytesIO(text.encode())


def lines(number):
    return named(number, "\n".join(str(number + more) for more in range(abs(number) % 3)))


def table(number):
    return named(number, "".join(f"{place},{number}\n" for place in range(abs(number) % 3)))


def table_with_head(number):
    return named(number, "place,number\n0,1\n1,2\n")


def document(number):
    return f"{number}.json", io.BytesIO(json.dumps({"number": number}).encode())


def bz2_file(number):
    return f"{number}.bz2", io.BytesIO(bz2.compress(str(number).encode()))


def xz_file(number):
    return f"{number}.xz", io.BytesIO(lzma.compress(str(number).encode()))


def tar_file(number):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for place in range(abs(number) % 3):
            data = str(number + place).encode()
            member = tarfile.TarInfo(f"{place}.txt")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    file.seek(0)
    return f"{number}.tar", file


def zip_file(number):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for place in range(abs(number) % 3):
            archive.writestr(f"{place}.txt", str(number + place))
    file.seek(0)
    return f"{number}.zip", file


def path_of(make, number):
    """Return a file that holds it: what is made of a file by and by is opened again where a state was restored."""
    name, file = make(number)
    path = Path(_FOLDER.name, f"{make.__name__}-{name}")
    if not path.exists():  # whole at once: a thread that reads ahead in another graph may open it
        unfinished = path.with_name(f"{path.name}-{threading.get_ident()}")
        unfinished.write_bytes(file.getvalue())
        unfinished.replace(path)
    return str(path)


def opened(pipe, make):
    return pipe.map(partial(path_of, make)).open_files("b")


def number_in(named_data):
    return int(named_data[1])


def number_in_file(named_file):
    return int(named_file[1].read())


def number_in_json(named_value):
    return named_value[1]["number"]


def numbers_in(row):
    return sum(map(int, row))


def numbers_in_dict(row):
    return numbers_in(row.values())


def line_of_paragraph(number):
    return f"{number % 2}", "" if number % 3 == 0 else str(abs(number))


def total_of_paragraph(paragraph):
    return sum(int(line) for line in paragraph[1].split("\n") if line)


def shards(number):
    return f"{{0..{abs(number) % 3}}}-{number}"


def shard_number(name):
    shard, _, number = name.partition("-")
    return int(shard) + int(number)


def members(numbered_number):
    place, number = numbered_number
    return [(f"{place}.{suffix}", number) for suffix in ("a", "b", "c")[: 1 + abs(number) % 3]]


def total_of_sample(sample):
    return sum(value for key, value in sample.items() if key != "__key__")


def other(length=7):
    return IterableWrapper(range(1000, 1000 + length))


SOURCES = {
    "range": lambda n: IterableWrapper(range(n)),
    "list": lambda n: IterableWrapper(list(range(n))),
    "iterable": lambda n: IterableWrapper(dict.fromkeys(range(n))),
    "sequence": lambda n: SequenceWrapper(list(range(n))).to_iter_datapipe(),
    "shuffled sequence": lambda n: SequenceWrapper(list(range(n))).shuffle(),
}

OPERATIONS = {
    "map": lambda pipe: pipe.map(add_one),
    "filter": lambda pipe: pipe.filter(is_kept),
    "flatmap of lists": lambda pipe: pipe.flatmap(twice),
    "flatmap of generators": lambda pipe: pipe.flatmap(count_up),
    "shuffled_flatmap": lambda pipe: pipe.shuffled_flatmap(twice, buffer_size=3),
    "shuffled_flatmap of generators": lambda pipe: pipe.shuffled_flatmap(count_up, buffer_size=2),
    "batch, unbatch": lambda pipe: pipe.batch(3).unbatch(),
    "batch twice, unbatch all": lambda pipe: pipe.batch(2).batch(2, drop_last=True).unbatch(-1),
    "in_batch_shuffle": lambda pipe: pipe.batch(4).in_batch_shuffle().unbatch(),
    "collate": lambda pipe: pipe.batch(2).collate(collate_fn=total),
    "shuffle": lambda pipe: pipe.shuffle(buffer_size=5),
    "shuffle of batches": lambda pipe: pipe.batch(2).shuffle(buffer_size=3, unbatch_level=1),
    "sharding_filter": lambda pipe: sharded(pipe.sharding_filter()),
    "dispatch": lambda pipe: pipe.sharding_round_robin_dispatch(),
    "prefetch": lambda pipe: pipe.prefetch(3),
    "zip": lambda pipe: pipe.zip(other()).map(total),
    "zip_longest": lambda pipe: pipe.zip_longest(other()).map(total),
    "concat": lambda pipe: pipe.concat(other(3), other(2)),
    "concat behind": lambda pipe: other(4).concat(pipe),
    "mux": lambda pipe: pipe.mux(other(), other(9)),
    "mux_longest": lambda pipe: pipe.mux_longest(other(), other(2)),
    "sample_multiplexer": lambda pipe: SampleMultiplexer({pipe: 2, other(): 1, other(3): 0.5}),
    "cycle": lambda pipe: pipe.cycle(2),
    "repeat": lambda pipe: pipe.repeat(3),
    "header": lambda pipe: pipe.header(8),
    "enumerate": lambda pipe: pipe.enumerate(5).map(total),
    "set_length": lambda pipe: pipe.set_length(3),
    "fork, zip": lambda pipe: zipped(pipe.fork(2)),
    "fork, concat": lambda pipe: joined(pipe.fork(3, buffer_size=10_000)),
    "fork, one ends early": lambda pipe: mixed([(c := pipe.fork(2, buffer_size=10_000))[0].header(3), c[1]]),
    "demux": lambda pipe: mixed(pipe.demux(2, parity)),
    "round_robin_demux": lambda pipe: mixed(pipe.round_robin_demux(3)),
    "unzip": lambda pipe: zipped(pipe.map(in_pairs).unzip(2)),
    "prefetched forks": lambda pipe: zipped([child.prefetch(2) for child in pipe.fork(2)]),
    "max_token_bucketize": lambda pipe: pipe.max_token_bucketize(9, len_fn=size_of, buffer_size=4).unbatch(),
    "bucketbatch": lambda pipe: pipe.bucketbatch(2, batch_num=2, bucket_num=2, sort_key=sorted).unbatch(),
    "bucketbatch through buffers": lambda pipe: pipe.bucketbatch(2, batch_num=2, use_in_batch_shuffle=False).unbatch(),
    "groupby": lambda pipe: pipe.groupby(parity, buffer_size=5, group_size=3, drop_remaining=True).unbatch(),
    "groupby of all": lambda pipe: pipe.groupby(parity).unbatch(),
    "threadpool_map": lambda pipe: pipe.threadpool_map(add_one, scheduled_tasks=3, max_workers=2),
    "map_batches": lambda pipe: pipe.map_batches(negate_all, 3),
    "async_map_batches": lambda pipe: pipe.async_map_batches(add_two_slowly, 3),
    "in_memory_cache": lambda pipe: pipe.in_memory_cache(),
    "random_split": lambda pipe: pipe.random_split({"a": 2, "b": 1}, seed=3, total_length=10_000, target="a"),
    "zip_with_iter": lambda pipe: pipe.map(parity).enumerate().zip_with_iter(numbered(), first).map(first).map(first),
    "add_index": lambda pipe: pipe.map(as_dict).add_index().map(sum_of_dict),
    "flatten": lambda pipe: pipe.map(nested).flatten().map(total),
    "flatten of dicts": lambda pipe: pipe.map(as_dict).flatten("more").map(sum_of_dict),
    "drop": lambda pipe: pipe.map(in_pairs).drop(0).map(total),
    "slice": lambda pipe: pipe.map(in_pairs).slice(1, 2).map(total),
    "rows2columnar": lambda pipe: pipe.batch(2).map(rows_of).rows2columnar(["a", "b"]).map(sum_of_columns),
    "set_epoch": lambda pipe: pipe.shuffle().set_epoch(3),
    "to_map_datapipe": lambda pipe: pipe.enumerate().to_map_datapipe().to_iter_datapipe(),
    "readlines": lambda pipe: opened(pipe, lines).readlines().map(number_in),
    "read_from_stream": lambda pipe: opened(pipe, lines).read_from_stream(1).filter(is_digit).map(number_in),
    "parse_csv": lambda pipe: opened(pipe, table).parse_csv().map(numbers_in),
    "parse_csv_as_dict": lambda pipe: opened(pipe, table_with_head).parse_csv_as_dict().map(numbers_in_dict),
    "parse_json_files": lambda pipe: pipe.map(document).parse_json_files().map(number_in_json),
    "lines_to_paragraphs": lambda pipe: pipe.map(line_of_paragraph).lines_to_paragraphs().map(total_of_paragraph),
    "shard_expand": lambda pipe: pipe.map(shards).shard_expand().map(shard_number),
    "load_from_bz2": lambda pipe: pipe.map(bz2_file).load_from_bz2().map(number_in_file),
    "load_from_xz": lambda pipe: pipe.map(xz_file).load_from_xz().map(number_in_file),
    "load_from_tar": lambda pipe: opened(pipe, tar_file).load_from_tar().map(number_in_file),
    "load_from_zip": lambda pipe: opened(pipe, zip_file).load_from_zip().map(number_in_file),
    "decompress": lambda pipe: pipe.map(bz2_file).decompress().map(number_in_file),
    "extract": lambda pipe: pipe.map(xz_file).extract().map(number_in_file),
    "webdataset": lambda pipe: pipe.enumerate().flatmap(members).webdataset().map(total_of_sample),
    "zip_with_map": lambda pipe: pipe.map(parity).zip_with_map(SequenceWrapper([7, 8]), key_fn=parity).map(total),
}

# What gives as many items as come, though in another order: laws of multisets are for these.
PERMUTING = [
    "batch, unbatch", "in_batch_shuffle", "shuffle", "dispatch", "prefetch", "set_length", "demux", "round_robin_demux",
    "bucketbatch", "bucketbatch through buffers", "groupby of all", "in_memory_cache",
]  # fmt: skip


# The others, of those that have a functional name.
NOT_HERE = {
    "check_hash": "knows the items beforehand; see test_file_pipes.py",
    "end_caching": "writes files; see test_disk_cache.py",
    "fullsync": "needs a group of processes; see the tests of dataloader2",
    "list_files": "reads folders; see test_file_pipes.py",
    "list_files_by_fsspec": "reads folders; see test_file_pipes.py",
    "on_disk_cache": "writes files; see test_disk_cache.py",
    "open_files_by_fsspec": "reads files; see test_file_pipes.py",
    "pin_memory": "needs torch; see test_pipes_with_torch.py",
    "read_from_http": "needs a server; see test_file_pipes.py",
    "read_from_remote": "needs a server; see test_file_pipes.py",
    "save_by_fsspec": "writes files; see test_file_pipes.py",
    "save_to_disk": "writes files; see test_file_pipes.py",
}


def is_digit(named_data):
    return named_data[1].strip(b"\n-") != b""


def first(pair):
    return pair[0]


def numbered():
    return IterableWrapper([(number, -number) for number in reversed(range(3000))])


def sharded(pipe):
    pipe.apply_sharding(2, 1)
    return pipe


def zipped(children):
    return children[0].zip(*children[1:]).map(total)


def joined(children):
    return children[0].concat(*children[1:])


def mixed(children):
    return children[0].mux_longest(*children[1:])


def build(recipe, seed):
    """Build a graph from a recipe: (source, its length, operations); each random pipe gets a seed of its own."""
    source, length, operations = recipe
    pipe = SOURCES[source](length)
    for name in operations:
        pipe = OPERATIONS[name](pipe)
    for place, each in enumerate(list_pipes(pipe)):
        if hasattr(type(each), "set_seed"):
            each.set_seed(seed + place)
    return pipe


def recipes(operations=tuple(OPERATIONS), max_operations=4):
    return st.tuples(
        st.sampled_from(sorted(SOURCES)),
        st.integers(0, 25),
        st.lists(st.sampled_from(sorted(operations)), max_size=max_operations),
    )
