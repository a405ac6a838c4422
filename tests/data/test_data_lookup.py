import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from tests.data.tiny_sources import tiny_dataset

from ocil.data import CATALOG, DEFAULT, available, load
from ocil.data.catalog import find
from ocil.data.check import check
from ocil.data.lookup import in_former_folder
from ocil.data.places import cache_dir, data_dir, data_dirs, user_cache_dir, user_data_dir
from ocil.errors import OcilError

EMBEDDED = resources.files("ocil.data") / "embedded"


def test_the_embedded_dataset_is_balanced_and_small() -> None:
    dataset = load()
    info = CATALOG[DEFAULT]
    assert dataset.name == DEFAULT
    assert dataset.classes[0] == "tshirt"
    assert dataset.classes[9] == "ankle-boot"
    assert dataset.image_shape == info.image_shape
    assert set(np.bincount(dataset.train_y)) == {info.train // 10}
    assert set(np.bincount(dataset.test_y)) == {info.test // 10}
    assert len((EMBEDDED / "fashion-mini.npz").read_bytes()) < 2_500_000


def test_the_embedded_dataset_has_its_licence() -> None:
    text = (EMBEDDED / "LICENSE-fashion-mnist").read_text(encoding="utf-8")
    assert "Copyright © 2017 Zalando SE" in text
    assert "Permission is hereby granted" in text


def test_catalog_entries_are_consistent() -> None:
    for name, info in CATALOG.items():
        assert info.name == name
        assert info.classes % info.tasks == 0
        assert info.train % info.classes == 0
        assert len({not part for part in (info.urls, info.md5, info.filename, info.size)}) == 1
        assert info.licence
        assert info.how


def test_names_come_in_any_spelling(tmp_path: Path) -> None:
    assert find("Mini-ImageNet") is CATALOG["mini_imagenet"]
    assert find("CIFAR-100") is CATALOG["cifar100"]
    assert load("Fashion_Mini").name == DEFAULT
    tiny_dataset().save(tmp_path / "my-birds.npz")
    assert load("My_Birds", tmp_path).name == "my-birds"


def test_a_path_is_a_name_too(tmp_path: Path) -> None:
    tiny_dataset().save(tmp_path / "own.npz")
    assert load(str(tmp_path / "own.npz")).name == "own"
    assert load(tmp_path / "own.npz").num_classes == 3


def test_missing_and_unknown_names_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="ocil data download cifar100"):
        load("cifar100", tmp_path)
    with pytest.raises(OcilError, match="ocil data import mini_imagenet PATH"):
        load("mini-imagenet", tmp_path)
    with pytest.raises(OcilError, match=r"no dataset 'cifr10'.* Did you mean 'cifar10'\?"):
        load("cifr10", tmp_path)
    with pytest.raises(OcilError, match=r"cannot read .*nowhere\.npz: there is no such file"):
        load("nowhere.npz")


@pytest.mark.parametrize("name", ["photos", "./photos", "rows.csv", "./rows.csv"])
def test_what_was_not_imported_yet_is_no_missing_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("label,a\ncat,1\n")
    with pytest.raises(OcilError, match=r"is not a dataset yet\. .* ocil data import NAME "):
        load(name, tmp_path / "data")


def test_available_lists_catalog_and_imported(tmp_path: Path) -> None:
    tiny_dataset().save(tmp_path / "birds.npz")
    (tmp_path / "broken.npz").write_text("nothing")
    tiny_dataset().save(tmp_path / "cifar10.npz")
    states = {entry.name: entry.state for entry in available(tmp_path)}
    assert states == {
        "fashion-mini": "ready",
        "cifar10": "ready",
        "cifar100": "missing",
        "mini_imagenet": "missing",
        "birds": "ready",
        "broken": "broken",
    }
    birds = next(entry for entry in available(tmp_path) if entry.name == "birds")
    assert birds.ready
    assert (birds.classes, birds.image_shape, birds.train, birds.test) == (3, (5, 4, 3), 12, 3)
    assert len(available(tmp_path / "absent")) == len(CATALOG)


def test_a_data_folder_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCIL_DATA", str(tmp_path / "file"))
    for read in (available, lambda: load("cifar10"), lambda: load("mine")):
        with pytest.raises(OcilError, match="is a file, not the folder of the datasets"):
            read()


def test_data_dir_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCIL_DATA", str(tmp_path / "named"))
    assert data_dir(tmp_path) == tmp_path
    assert data_dir() == tmp_path / "named"
    assert data_dirs() == [tmp_path / "named"]
    monkeypatch.delenv("OCIL_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data_dir() == tmp_path / "share" / "ocil"
    assert data_dirs() == [tmp_path / "share" / "ocil", tmp_path / "cache" / "ocil"]
    assert data_dirs(tmp_path) == [tmp_path]
    assert user_data_dir("win32") == user_cache_dir("win32") == tmp_path / "local" / "ocil"
    assert user_data_dir("darwin") == Path.home() / "Library" / "Application Support" / "ocil"
    assert user_cache_dir("darwin") == Path.home() / "Library" / "Caches" / "ocil"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert user_cache_dir("linux") == Path.home() / ".cache" / "ocil"
    assert user_data_dir("linux") == Path.home() / ".local" / "share" / "ocil"
    monkeypatch.setenv("OCIL_CACHE", str(tmp_path / "kept"))
    assert cache_dir() == tmp_path / "kept"


def test_datasets_in_the_former_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present, former = tmp_path / "share" / "ocil", tmp_path / "cache" / "ocil"
    monkeypatch.delenv("OCIL_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    tiny_dataset().save(former / "birds.npz")
    tiny_dataset().save(former / "cifar10.npz")
    assert load("birds").num_classes == 3
    found = {entry.name: entry for entry in available()}
    assert found["birds"].path == former / "birds.npz"
    assert found["cifar10"].ready
    line = in_former_folder(found.values())
    assert line == f"cifar10, birds: in {former}, the former folder of datasets. You can move them to {present}."
    assert not present.exists()
    tiny_dataset(classes=4).save(present / "birds.npz")
    assert load("birds").num_classes == 4  # the present folder comes first
    (former / "cifar10.npz").unlink()
    assert in_former_folder(available()) is None


def test_check_compares_with_the_catalog(tmp_path: Path) -> None:
    assert check(DEFAULT).ok
    assert check(DEFAULT).known_md5
    tiny_dataset().save(tmp_path / "cifar10.npz")
    report = check("cifar10", tmp_path)
    assert not report.ok
    assert "classes 3, expected 10" in report.problems
    assert "image size 5x4x3, expected 32x32x3" in report.problems
    tiny_dataset().save(tmp_path / "birds.npz")
    assert check("birds", tmp_path).ok
    assert not check("birds", tmp_path).known_md5


def test_check_notices_a_changed_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    dataset = load()
    changed = dataset.train_x.copy()
    changed[0, 0, 0, 0] ^= 1
    replace(dataset, train_x=changed).save(tmp_path / "copy.npz")
    monkeypatch.setitem(CATALOG, "copy", replace(CATALOG[DEFAULT], name="copy"))
    assert check("copy", tmp_path).problems == (
        "the training images are not the published ones or are in another order",
    )


def test_the_embedded_dataset_is_made_by_its_tool(tmp_path: Path) -> None:
    import gzip
    import struct

    tool = Path(__file__).parents[2] / "tools" / "make_embedded.py"
    spec = importlib.util.spec_from_file_location("make_embedded", tool)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    for prefix in ("train", "t10k"):
        content = struct.pack(">BBBB3I", 0, 0, 8, 3, *images.shape) + images.tobytes()
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        content = struct.pack(">BBBBI", 0, 0, 8, 1, len(labels)) + labels.tobytes()
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
    dataset = module.make(tmp_path, 14, 2, 1)
    assert len(dataset.train_y) == 20
    np.testing.assert_array_equal(dataset.test_y, np.arange(10))
    block = images[3, 4:6, 10:12].astype(float)
    assert dataset.train_x[3, 2, 5, 0] == int(block.mean() + 0.5)
