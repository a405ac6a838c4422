"""Where images and vectors come from: the embedded dataset, the catalog, and what the user imports or hands over.

Datasets:

``dataset``   a dataset, and its file when it is one .npz
``catalog``   the datasets known by name, and those that plugins make
``lookup``    opens a dataset by its name; ``places``: the folders that are searched
``derived``   datasets made from others: ``cifar10+cifar100``, ``cifar100:noise``; ``changes``: noise and the like
``raw``, ``raw_writer``  a dataset larger than memory, as a folder of raw arrays
``mapped``    arrays that stay in their files
``digests``   digests of files, computed once per machine
``check``     compares a stored dataset with the catalog

From other libraries:

``doors``     arrays, torch datasets, Hugging Face datasets
``inputs``    their images and vectors in one form, and their labels; ``class_names``: the order of classes
``samples``   what came through a door and is not read yet
``split``     holds out samples to test with

From files:

``importers``   imports a dataset into the data folder, from any form; ``download``: from a published address
``folder``      images in files: looked at, decoded, resized; ``layouts``: the forms of their folders
``label_file``  lists of images with their labels
``images``      reads one image file
``bounded_images``, ``picture_headers``  what is refused in image files of strangers
``number_table``, ``table_samples``  vectors in a CSV file, and the samples that they make
``npy_folder``, ``npz_arrays``  arrays in a folder of .npy files, or in one .npz file
``cifar``, ``mini_imagenet``  the published files of these datasets
``archive``, ``npy``, ``unpickle``  .npz files, headers of .npy files and pickles that are not trusted
"""

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
