import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.tiny_sources import tiny_dataset, write_images

from ocil.cli.data import app
from ocil.data import CATALOG, load
from ocil.errors import OcilError


def call(*words: str | Path) -> None:
    app([str(word) for word in words], exit_on_error=False, result_action="return_value")


def called_json(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    call(*words, "--json")
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    tiny_dataset().save(tmp_path / "birds.npz")
    content = called_json(capsys, "list", "--data-dir", tmp_path)
    assert content["data_dir"] == str(tmp_path)
    assert [entry["name"] for entry in content["datasets"]] == [*CATALOG, "birds"]
    assert content["datasets"][0]["state"] == "ready"
    assert content["datasets"][1]["how"] == "ocil data download cifar10"
    call("list", "--data-dir", tmp_path)
    shown = capsys.readouterr().out
    for word in ("fashion-mini", "32x32x3", "50000/10000", "missing", "ocil data download cifar100", "birds"):
        assert word in shown


def test_import_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCIL_DATA", str(tmp_path / "data"))
    write_images(tmp_path / "birds" / "train" / "a", 6)
    write_images(tmp_path / "birds" / "train" / "b", 6)
    content = called_json(capsys, "import", "birds", tmp_path / "birds", "--size", "4")
    assert content["classes"] == 2
    assert content["image_shape"] == [4, 4, 3]
    assert (content["train"], content["test"]) == (10, 2)
    assert "was read as class folders in train" in content["notes"][0]
    assert "held out" in content["notes"][1]
    assert load("birds").image_shape == (4, 4, 3)
    call("import", "birds", tmp_path / "birds")
    shown = capsys.readouterr().out
    assert "note: " in shown
    assert "birds: 2 classes, 6x8x3, 10 train, 2 test" in shown
    assert called_json(capsys, "check", "birds")["ok"] is True
    call("check", "birds")
    assert "birds: ok" in capsys.readouterr().out


def test_import_as_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "birds" / name, 6)
    place = ("--data-dir", tmp_path / "data")
    content = called_json(capsys, "import", "birds", tmp_path / "birds", *place, "--form", "folder")
    assert content["path"] == str(tmp_path / "data" / "birds")
    assert content["name"] == "birds"
    assert (content["train"], content["test"]) == (10, 2)
    assert called_json(capsys, "check", "birds", *place)["ok"] is True
    (tmp_path / "data" / "birds" / "train_x.raw").write_bytes(bytes(10 * 6 * 8 * 3))
    with pytest.raises(OcilError, match=r"part 0 of train_x\.raw is damaged"):
        call("check", "birds", *place)


def test_a_failed_check_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_dataset().save(tmp_path / "cifar10.npz")
    with pytest.raises(OcilError, match="cifar10 is not what it should be: classes 3, expected 10"):
        call("check", "cifar10", "--data-dir", tmp_path, "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is False
    assert len(content["problems"]) == 4


def test_download(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(info: Any, data_dir: Path, progress: Any, url: str | None) -> Path:
        assert info is CATALOG["cifar10"]
        assert url == "http://mirror.test/x"
        progress(0, 2_000_000)
        progress(2_000_000, 2_000_000)
        tiny_dataset().save(data_dir / "cifar10.npz")
        return data_dir / "cifar10.npz"

    monkeypatch.setattr("ocil.data.download.download", pretend)
    call("download", "CIFAR-10", "--data-dir", tmp_path, "--url", "http://mirror.test/x", "--json")
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "cifar10"
    assert "2.0/2.0 MB" in printed.err


def test_download_of_unknown_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OcilError, match=r"Did you mean 'cifar100'\? Known: cifar10, cifar100"):
        call("download", "cifar1000", "--data-dir", tmp_path)
    with pytest.raises(OcilError, match="comes with ocil"):
        call("download", "fashion-mini", "--data-dir", tmp_path)
    with pytest.raises(OcilError, match="has no download address"):
        call("download", "mini_imagenet", "--data-dir", tmp_path)
    with pytest.raises(OcilError, match="'mirror' is not an http or https address"):
        call("download", "cifar10", "--data-dir", tmp_path, "--url", "mirror")
    assert capsys.readouterr() == ("", "")  # no bar of a download that cannot begin


@pytest.mark.parametrize("command", ["list", "import", "download", "check"])
def test_help_teaches_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    call(command, "--help")
    assert f"Example: ocil data {command}" in capsys.readouterr().out
