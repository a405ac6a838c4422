"""Where images come from: the embedded dataset, the catalog, and what the user imports."""

from ocil.data.catalog import CATALOG, DEFAULT, DatasetInfo, DatasetSource
from ocil.data.dataset import Dataset
from ocil.data.lookup import ListedDataset, available, fingerprint, load, load_once
from ocil.data.raw_writer import StoreWriter

__all__ = [
    "CATALOG",
    "DEFAULT",
    "Dataset",
    "DatasetInfo",
    "DatasetSource",
    "ListedDataset",
    "StoreWriter",
    "available",
    "fingerprint",
    "load",
    "load_once",
]
