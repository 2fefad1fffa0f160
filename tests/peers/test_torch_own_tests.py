"""Torch's own tests of its `DataLoader`, run with the import changed.

They are part of PyTorch's sources and of no wheel, so they run only where a copy is at hand (ten minutes):
`HEADRACE_TORCH_TESTS=.../pytorch/test/test_dataloader.py`, and `expecttest`, which they import.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

PATH = os.environ.get("HEADRACE_TORCH_TESTS", "")
_IMPORT = "    DataLoader,\n"
_PRIVATE = "reads `_workers`, a private attribute of torch's iterator"
_NOT_A_FORK = "the dataset has a `multiprocessing.Value`, which only a fork can carry"
_SEEDED = "a seed that `worker_init_fn` sets is followed by that of each batch"
# What docs/how-to/torch.md says that differs, and what no script should use.
EXPECTED = {
    "test_get_worker_info": _PRIVATE,
    "test_iterable_style_dataset": _PRIVATE,
    "test_partial_workers": _PRIVATE,
    "test_worker_init_fn": _SEEDED,
    "test_worker_seed": _NOT_A_FORK,
    "test_worker_seed_reproducibility": _NOT_A_FORK,
    "test_out_of_order_index_ds": "`in_order=False` gives the order all the same",
}


@pytest.mark.skipif(not PATH, reason="needs PyTorch's sources: HEADRACE_TORCH_TESTS=.../test/test_dataloader.py")
@pytest.mark.timeout(3600)
def test_torchs_own_tests_pass_but_for_what_is_said_to_differ(tmp_path: Path) -> None:
    text = Path(PATH).read_text()
    assert text.count(_IMPORT) == 1, "torch imports its loader in another way: change it here by hand"
    copy, report = tmp_path / "test_changed.py", tmp_path / "report.xml"
    copy.write_text(
        text.replace(_IMPORT, "").replace(
            "\nimport torch\n", "\nimport torch\nfrom headrace.torch import DataLoader\n", 1
        )
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    command += ["--timeout", "300", "--timeout-method", "signal", "--junitxml", str(report), str(copy)]
    subprocess.run(command, cwd=tmp_path, timeout=3300, check=False)
    cases = list(ElementTree.parse(report).iter("testcase"))
    names = {case.attrib["name"] for case in cases}
    failed = {
        case.attrib["name"] for case in cases if case.find("failure") is not None or case.find("error") is not None
    }
    assert len(cases) > 100
    assert failed == EXPECTED.keys() & names
