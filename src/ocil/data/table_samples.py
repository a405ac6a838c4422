"""Datasets that are tables of numbers: one vector per line."""

import numpy as np

from ocil.data.doors import from_arrays
from ocil.data.number_table import SPLIT, NumberTable, listed
from ocil.data.samples import Note, Samples
from ocil.errors import OcilError


def samples_in_table(name: str, table: NumberTable, test_share: float | None, note: Note) -> Samples:
    """The vectors of a table with their labels. A column ``split`` may say which lines are to test with; ``note`` is
    called with the columns that were taken for numbers."""
    labels, splits = table.labels(), table.splits()
    if labels is None:
        raise OcilError(f"{table.path} has no column with the name label: give the labels such a column.")
    columns = [column for column in table.features() if splits is None or column != SPLIT]
    x, y = table.vectors(columns), np.array(labels)
    note(f"{table.path} was read as vectors of {len(columns)} numbers: {listed(columns)}")
    if splits is None or set(splits) == {"train"}:
        return from_arrays(x, y, name=name, test_share=test_share, note=note)
    held = "test" if "test" in splits else "val"
    if held == "test" and "val" in splits:
        note(f"the validation vectors of {table.path} are left out")
    train, test = (np.array([split == part for split in splits]) for part in ("train", held))
    if not train.any():
        raise OcilError(f"{table.path} has no vectors for training: its column split says {held} in every line.")
    return from_arrays(x[train], y[train], x[test], y[test], name=name, test_share=test_share, note=note)
