"""What Headrace no longer has: name -> what to use instead, for all packages and configs."""

from __future__ import annotations

DEPARTED = {
    "AnythingDataset": "a transform of the dataset beside it that adds the zeros",
    "SingleStreamPipeDataset": "a CachedDataset2 whose `_collect_single_seq` takes sequences from a queue",
    "VariableDataset": "init_dataset(get_dataset(epoch)) in the loop over epochs, with a loader for each; or "
    "CombinedDataset or DistributeFilesDataset, which read other sequences in each epoch",
}
