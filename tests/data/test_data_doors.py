"""Datasets of other libraries come in: arrays, torch datasets, Hugging Face datasets."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ocil
from ocil import Dataset, OcilError
from ocil.data.inputs import plain_labels
from ocil.data.mapped import is_mapped

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (8, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(8) % 2


def made(x: Any, y: Any = LABELS, **options: Any) -> Dataset:
    return Dataset.from_arrays(x, y, x, y, **options)


@pytest.mark.parametrize(
    ("x", "tolerance"),
    [
        (PIXELS, 0),
        (PIXELS.transpose(0, 3, 1, 2), 0),
        (torch.from_numpy(PIXELS), 0),
        (torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()), 0),
        (PIXELS.astype(np.float32) / 255, 0),
        (PIXELS / 255, 0),
        ((PIXELS / 255).astype(np.float16), 1),
        (torch.from_numpy(PIXELS.transpose(0, 3, 1, 2) / 255).bfloat16(), 1),
        (PIXELS.astype(np.int64), 0),
        (PIXELS.tolist(), 0),
    ],
    ids=["uint8", "chw", "tensor", "tensor chw", "float32", "float64", "float16", "bfloat16", "int64", "lists"],
)
def test_images_in_any_form(x: Any, tolerance: int) -> None:
    data = made(x)
    assert data.image_shape == (6, 5, 3)
    assert data.train_x.dtype == np.uint8
    assert np.abs(data.train_x.astype(int) - PIXELS).max() <= tolerance


def test_gray_images_and_truth_values() -> None:
    assert made(PIXELS[..., 0]).image_shape == (6, 5, 1)
    assert made(PIXELS[..., :1]).image_shape == (6, 5, 1)
    assert made(PIXELS[:, None, :, :, 0]).image_shape == (6, 5, 1)
    assert set(np.unique(made(PIXELS[..., 0] > 100).train_x)) == {0, 255}


@pytest.mark.parametrize(
    ("x", "dtype"),
    [(np.float16, np.float16), (np.float32, np.float32), (np.float64, np.float32), (np.uint8, np.float32)],
)
def test_rows_are_vectors(x: Any, dtype: Any) -> None:
    rows = (RNG.random((8, 3)) * 9).astype(x)
    data = made(rows)
    assert not data.is_images
    assert data.train_x.dtype == dtype
    np.testing.assert_array_equal(data.train_x, rows.astype(dtype))


def test_odd_tensors_are_one_line() -> None:
    with pytest.raises(OcilError, match="train_x is a sparse tensor"):
        made(torch.eye(8).to_sparse())
    with pytest.raises(OcilError, match=r"labels is \[3, 2\]. There must be one label per sample"):
        plain_labels([torch.tensor([0, 1])] * 3, "labels")


def test_an_array_that_fits_is_not_copied() -> None:
    assert made(PIXELS).train_x is PIXELS


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((8, 3, 32, 3), np.uint8), r"\[N, 3, 32, 3\], which may be HWC or CHW. Say which: layout='HWC'"),
        (np.zeros((8, 32, 32, 4), np.uint8), "images must have 1 or 3 channels, first or last. Drop an alpha channel"),
        (np.zeros((8, 2, 3, 4, 5), np.uint8), r"Images are \[N, H, W, C\]"),
        (np.full((8, 4, 4, 3), 2.5), r"floats from 2.5 to 2.5. Float images must lie in \[0, 1\]"),
        (np.full((8, 4, 4, 3), -0.5), r"Float images must lie in \[0, 1\]"),
        (np.full((8, 4, 4, 3), np.nan), r"has pixels that are not a number \(NaN\)"),
        (np.full((8, 4, 4, 3), 300), r"whole numbers from 300 to 300. Pixels must lie in 0..255"),
        (np.full((8, 4), np.inf, np.float32), "not finite"),
        (np.full((8, 4), 1e200), "too large for float32"),
        (np.array([["a"] * 4] * 8), "must hold numbers"),
        (np.zeros((8, 4, 4), complex), "must hold numbers"),
        ([[1, 2], [3]], "its samples differ in shape"),
        (5, "is not an array but int"),
        (PIXELS[:7], "train_x has 7 samples but train_y has 8 labels"),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(x: Any, message: str) -> None:
    with pytest.raises(OcilError, match=message) as error:
        made(x)
    assert "\n" not in str(error.value)


def test_no_samples_are_said_to_be_none() -> None:
    none = (PIXELS[:0], LABELS[:0])
    with pytest.raises(OcilError, match=r"^train_x has no samples: give some of each class\.$"):
        Dataset.from_arrays(*none, PIXELS, LABELS)
    with pytest.raises(OcilError, match=r"^train_x has no samples"):
        Dataset.from_arrays(*none)
    with pytest.raises(OcilError, match=r"^test_x has no samples"):
        Dataset.from_arrays(PIXELS, LABELS, *none)


def test_the_layout_can_be_given() -> None:
    x = RNG.integers(0, 256, (8, 3, 32, 3), dtype=np.uint8)
    assert made(x, layout="HWC").image_shape == (3, 32, 3)
    assert made(x, layout="CHW").image_shape == (32, 3, 3)
    with pytest.raises(OcilError, match="1 or 3 channels"):
        made(PIXELS, layout="CHW")
    with pytest.raises(OcilError, match="layout = 'NHWC' is not a choice"):
        made(PIXELS, layout="NHWC")


@pytest.mark.parametrize(
    ("y", "classes", "numbers"),
    [
        ([7, 3] * 4, ("3", "7"), [1, 0]),
        (["wren", "auk"] * 4, ("auk", "wren"), [1, 0]),
        (np.array([True, False] * 4), ("False", "True"), [1, 0]),
        (torch.tensor([5, 9] * 4), ("5", "9"), [0, 1]),
        (np.array([1.0, 2.0] * 4), ("1", "2"), [0, 1]),
        (np.array([[0], [1]] * 4), ("0", "1"), [0, 1]),
        ([torch.tensor(1), torch.tensor(0)] * 4, ("0", "1"), [1, 0]),
    ],
)
def test_labels_of_any_kind(y: Any, classes: tuple[str, ...], numbers: list[int]) -> None:
    data = made(PIXELS, y)
    assert data.classes == classes
    assert data.train_y[:2].tolist() == numbers


def test_a_number_and_its_text_are_not_made_one_class() -> None:
    for y in ([1, "1"] * 4, [np.int64(1), np.str_("1")] * 4, [0, "a", "0", 1] * 2):
        with pytest.raises(OcilError, match=r"train_y has the label \d as a number and as text\. Use one of them"):
            made(PIXELS, y)


def test_large_whole_numbers_stay_what_they_are() -> None:
    """Of 2**63 and -1 numpy makes floats, and the first of them became -2**63."""
    assert made(PIXELS, [2**63, -1] * 4).classes == ("-1", str(2**63))
    assert made(PIXELS, np.array([2**63 + 1, 2**63 + 3] * 4, np.uint64)).classes == (str(2**63 + 1), str(2**63 + 3))
    with pytest.raises(OcilError, match=r"train_y has whole numbers that floats of 64 bits round"):
        made(PIXELS, np.array([2.0**63, 1.0] * 4))


def test_names_of_classes() -> None:
    assert made(PIXELS, classes=["cat", "dog"]).classes == ("cat", "dog")
    assert made(PIXELS, ["dog", "cat"] * 4, classes=["cat", "dog"]).train_y[0] == 1
    with pytest.raises(OcilError, match="label 'cow', which is not among the classes"):
        made(PIXELS, ["dog", "cow"] * 4, classes=["cat", "dog"])
    with pytest.raises(OcilError, match="has no training image"):
        made(PIXELS, classes=["cat", "dog", "cow"])
    with pytest.raises(OcilError, match="test_y has the label 2, which is not among the training labels"):
        Dataset.from_arrays(PIXELS, LABELS, PIXELS, LABELS + 1)
    for wrong, message in ((np.eye(8), "one label per sample"), ([0.5] * 8, "fractions"), ([0, "a"] * 4, None)):
        if message is None:
            assert made(PIXELS, wrong).classes == ("0", "a")
            continue
        with pytest.raises(OcilError, match=message):
            made(PIXELS, wrong)


def test_without_test_samples_a_share_is_held_out_and_said() -> None:
    with pytest.warns(UserWarning, match="arrays has no test samples: a sixth of each class is held out"):
        data = Dataset.from_arrays(PIXELS, LABELS)
    assert (len(data.train_y), len(data.test_y)) == (6, 2)
    notes: list[str] = []
    again = [Dataset.from_arrays(PIXELS, LABELS, test_share=0.5, seed=s, note=notes.append) for s in (1, 1, 2)]
    assert again[0].fingerprint == again[1].fingerprint != again[2].fingerprint
    assert "0.5 of each class" in notes[0]
    rows = {image.tobytes() for image in (*again[0].train_x, *again[0].test_x)}
    assert rows == {image.tobytes() for image in PIXELS}
    with pytest.raises(OcilError, match="class '1' has one sample"):
        Dataset.from_arrays(PIXELS[:3], [0, 0, 1])
    with pytest.raises(OcilError, match=r"test share 1\.5 must be"):
        Dataset.from_arrays(PIXELS, LABELS, test_share=1.5)
    with pytest.raises(OcilError, match="test samples of its own"):
        made(PIXELS, test_share=0.5)
    with pytest.raises(OcilError, match="both test_x and test_y"):
        Dataset.from_arrays(PIXELS, LABELS, PIXELS)


class Pairs:
    """A map-style dataset; what ``give`` returns is the image."""

    def __init__(self, give: Any, count: int = 8, **attributes: Any) -> None:
        self.give, self.count, self.read = give, count, 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if number >= self.count:
            raise IndexError
        self.read += 1
        return self.give(number), number % 2


@pytest.mark.parametrize(
    "give",
    [
        lambda number: Image.fromarray(PIXELS[number]),
        lambda number: PIXELS[number],
        lambda number: torch.from_numpy(PIXELS[number].transpose(2, 0, 1).copy()),
        lambda number: torch.from_numpy(PIXELS[number].transpose(2, 0, 1) / 255).float(),
    ],
    ids=["pillow", "array", "tensor", "float tensor"],
)
def test_torch_datasets(give: Any) -> None:
    data = Dataset.from_torch(Pairs(give, classes=["cat", "dog"]), Pairs(give, 4))
    np.testing.assert_array_equal(data.train_x, PIXELS)
    np.testing.assert_array_equal(data.test_x, PIXELS[:4])
    assert data.classes == ("cat", "dog")
    assert data.train_y.tolist() == LABELS.tolist()


def test_a_real_torch_dataset_and_a_subset_of_it() -> None:
    whole: Any = torch.utils.data.TensorDataset(
        torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS + 1)
    )
    whole.classes = ["cow", "cat", "dog"]  # there is no cow
    data = Dataset.from_torch(torch.utils.data.Subset(whole, range(6)), whole)
    assert data.classes == ("cat", "dog")
    assert (len(data.train_y), len(data.test_y)) == (6, 8)


@pytest.mark.parametrize(("shift", "worst"), [(1, 2), (-1, -1)])
def test_numbers_without_a_name_beside_numbers_with_one(shift: int, worst: int) -> None:
    """Labels that count from 1 would have the names of their neighbours."""
    pairs = Pairs(lambda number: PIXELS[number], classes=["cat", "dog"], targets=(LABELS + shift).tolist())
    with pytest.raises(OcilError, match=f"train_y has the label {worst}, and there are names for 0 to 1: number"):
        Dataset.from_torch(pairs, pairs)


def test_numbers_that_are_other_classes_in_the_test_samples() -> None:
    """A test folder that lacks a class: its other classes have other numbers than in training."""
    train, test = (Pairs(lambda number: PIXELS[number], classes=names) for names in (["ant", "cat"], ["cat", "dog"]))
    with pytest.raises(OcilError, match="the label 0 is 'ant' in train and 'cat' in test: number the classes of both"):
        Dataset.from_torch(train, test)
    assert Dataset.from_torch(train, test, classes=["a", "b"]).classes == ("a", "b")
    held = split()
    held.features["kind"] = type("ClassLabel", (), {"names": ("dog", "cat")})()
    with pytest.raises(OcilError, match="the label 0 is 'cat' in train and 'dog' in test"):
        Dataset.from_huggingface({"train": split(), "test": held})


class Shifted(Pairs):
    """Its labels are transformed, as torchvision's datasets do it."""

    target_transform: Any

    def __init__(self, names: list[str], shift: int) -> None:
        super().__init__(lambda number: PIXELS[number], classes=names, target_transform=lambda label: label + shift)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image, label = super().__getitem__(number)
        return image, self.target_transform(label)


def test_names_say_nothing_about_labels_that_are_transformed() -> None:
    train = Pairs(lambda number: PIXELS[number], classes=["ant", "cat", "dog"])
    test = Shifted(["cat", "dog"], 0)  # a folder that lacks a class has the numbers of training by a transform
    assert Dataset.from_torch(train, test).classes == ("ant", "cat")
    shifted: Any = Shifted(["cat", "dog"], 100)
    for pairs in (shifted, torch.utils.data.Subset(shifted, range(8))):
        assert Dataset.from_torch(pairs, pairs).classes == ("100", "101")


def test_labels_that_a_torch_dataset_lists_are_not_read_twice() -> None:
    listed = Pairs(lambda number: PIXELS[number], targets=LABELS.tolist())
    Dataset.from_torch(listed, listed)
    assert listed.read == 2 * (8 + 1)  # the first image decides the form
    changed = Pairs(lambda number: PIXELS[number], targets=[5] * 8, target_transform=lambda label: label)
    assert Dataset.from_torch(changed, changed).num_classes == 2


@pytest.mark.filterwarnings("ignore:.*no test samples")
@pytest.mark.parametrize("size", [None, 4])
def test_one_gray_image_makes_no_gray_dataset(size: int | None) -> None:
    """Where only the first image is gray, the colours of all others would be lost."""
    modes = ["L", "RGB"] * 6
    images = [(Image.new(mode, (8, 8)), number // 2 % 2) for number, mode in enumerate(modes)]
    with pytest.raises(
        OcilError, match=r"train has images in colour \(mode RGB\), but its first one is gray\. Convert"
    ):
        Dataset.from_torch(images, size=size)
    assert Dataset.from_torch(images[1:], size=size).image_shape == (size or 8, size or 8, 3)


def test_torch_vectors_sizes_and_stores(tmp_path: Path) -> None:
    vectors = Pairs(lambda number: torch.arange(4.0) + number)
    data = Dataset.from_torch(vectors, vectors, store=tmp_path / "vectors")
    assert is_mapped(data.train_x)
    assert data.train_x[2].tolist() == [2, 3, 4, 5]
    sizes = Pairs(lambda number: Image.fromarray(PIXELS[number]).resize((6 + number, 9)))
    with pytest.raises(OcilError, match=r"sample 1 is \[9, 7, 3\] but the first is \[9, 6, 3\]. Resize: size=N"):
        Dataset.from_torch(sizes, sizes)
    assert Dataset.from_torch(sizes, sizes, size=4).image_shape == (4, 4, 3)
    arrays = Pairs(lambda number: np.zeros((3, 6, 6 + number), np.float32))
    assert Dataset.from_torch(arrays, arrays, size=4).image_shape == (4, 4, 3)
    with pytest.raises(OcilError, match="vectors, which have no image size"):
        Dataset.from_torch(vectors, vectors, size=4)
    for wrong in ((4, 4), 0, 4.0):
        with pytest.raises(OcilError, match="must be a whole number of at least 1"):
            Dataset.from_torch(sizes, sizes, size=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([(PIXELS[0], 0)]), "is not a map-style dataset"),
        ([], "has no samples"),
        ([PIXELS[0], PIXELS[1]], "sample 0 of train is not a pair"),
        ([("text", 0)], "is not an array but str"),
    ],
)
def test_what_is_not_a_torch_dataset(dataset: Any, message: str) -> None:
    with pytest.raises(OcilError, match=message):
        Dataset.from_torch(dataset)


class Features(dict[str, Any]):
    """Stands for a class of the library datasets."""


class ClassLabel:
    names = ("cat", "dog")


class Rows:
    """Stands for a split of the library datasets."""

    def __init__(self, features: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.features, self.rows = features, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]


def split(count: int = 8) -> Rows:
    kind = type("Image", (), {})()
    rows = [{"picture": Image.fromarray(PIXELS[n]), "kind": n % 2, "id": n} for n in range(count)]
    return Rows({"picture": kind, "kind": ClassLabel(), "id": object()}, rows)


def test_hugging_face_columns_and_splits() -> None:
    data = Dataset.from_huggingface({"train": split(), "validation": split(4)})
    np.testing.assert_array_equal(data.train_x, PIXELS)
    assert data.classes == ("cat", "dog")
    assert len(data.test_y) == 4
    notes: list[str] = []
    assert len(Dataset.from_huggingface(split(), note=notes.append).test_y) == 2
    assert "held out" in notes[0]
    both = {"train": split(), "test": split(2), "validation": split(4)}
    assert len(Dataset.from_huggingface(both).test_y) == 2
    assert len(Dataset.from_huggingface(both, test="validation").test_y) == 4
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image": "photo"}, "no column 'photo'. Name one with image=: picture, kind, id"),
        ({"label": "species"}, "no column 'species'"),
        ({"test": "held"}, "no split 'held'. Name one with test=: train, test, validation"),
        ({"train": "all"}, "no split 'all'"),
    ]
    for wrong, message in cases:
        with pytest.raises(OcilError, match=message):
            Dataset.from_huggingface(both, **wrong)
    with pytest.raises(OcilError, match="it has no features"):
        Dataset.from_huggingface([1, 2])
    for known in (split().features, None):  # of a stream, the library does not always know the columns
        with pytest.raises(OcilError, match=r"train is streamed.* without streaming=True, or .* Stream\.from_batches"):
            Dataset.from_huggingface(type("Streamed", (), {"features": known})())
    vague = Rows({"a": object(), "b": object()}, [{"a": [1.0], "b": 0}])
    with pytest.raises(OcilError, match="not clear which column is the image"):
        Dataset.from_huggingface(vague)


@pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="datasets is not installed: pip install datasets"
)
def test_real_hugging_face_datasets() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets  # type: ignore[import-not-found, unused-ignore]

        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
        rows = {"image": [Image.fromarray(image) for image in PIXELS], "label": LABELS.tolist()}
        ds = datasets.Dataset.from_dict(rows, features=features)
        both = datasets.DatasetDict({"train": ds, "test": ds.select(range(4))})
        data = Dataset.from_huggingface(both)
        vectors = datasets.Dataset.from_dict({"embedding": [[1.0, 2.0], [3.0, 4.0]] * 4, "y": ["a", "b"] * 4})
        embedded = Dataset.from_huggingface(vectors, image="embedding", label="y", note=print)
        with pytest.raises(OcilError, match="train is streamed"):
            Dataset.from_huggingface(ds.to_iterable_dataset())
    np.testing.assert_array_equal(data.train_x, PIXELS)
    assert data.classes == ("cat", "dog")
    assert embedded.input_shape == (2,)
    assert embedded.classes == ("a", "b")


def test_a_learner_learns_from_what_came_in() -> None:
    data = made(PIXELS.transpose(0, 3, 1, 2) / 255)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=4))
    learner = ocil.make_learner("er", data, memory=4, memory_batch=2, batch_size=4, width=1)
    for batch in stream:
        learner.learn(batch.x, batch.y)
    assert learner.scores(torch.from_numpy(data.test_x)).shape == (8, 2)
