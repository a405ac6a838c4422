"""Image files of strangers on disk: what would take minutes or fill the memory is left out like a broken one."""

import io
import os
import struct
import threading
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import Call
from tests.data.tiny_sources import write_images

from ocil.data import images, load
from ocil.data.images import HEADER_BYTES, probe, read_image
from ocil.data.importers import import_dataset
from ocil.errors import OcilError


def encoded_as(kind: str, pixels: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


PIXELS = np.arange(144, dtype=np.uint8).reshape(12, 12)
JPEG, PNG, GIF = (encoded_as(kind, PIXELS) for kind in ("JPEG", "PNG", "GIF"))
PROGRESSIVE = encoded_as("JPEG", PIXELS, progressive=True)
SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
PROFILE = png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**20)))
EXIF = png_chunk(b"eXIf", b"II*\0\x08\0\0\0".ljust(2**17 + 1))
HOSTILE = {
    "scans": (PROGRESSIVE[:-2] + 40 * SCAN + PROGRESSIVE[-2:], "has more than 32 scans"),
    "comments of a JPEG": (JPEG[:2] + 3600 * b"\xff\xfe\x00\x03a" + JPEG[2:], "has far more parts than an image needs"),
    "comments of a GIF": (
        (lambda at: GIF[:at] + b"!\xfe" + 20_000 * b"\x01a" + b"\0" + GIF[at:])(GIF.index(b",", 13)),
        "has far more parts than an image needs",
    ),
    "profiles": (PNG[:33] + 1000 * PROFILE + PNG[33:], "has more than 256 texts and profiles"),
    "EXIF": (PNG[:33] + EXIF + PNG[33:], "has more than 128 KiB of EXIF data"),
    "EXIF behind the pixels": (PNG[:-12] + EXIF + PNG[-12:], "has more than 128 KiB of EXIF data"),
    "values of a tag": (
        b"II*\0" + struct.pack("<IHHHII", 8, 1, 40000, 5, 10**6, 0) + bytes(4),
        "has a tag with more than 65,536 values",
    ),
    "text": (b"P2\n4 4\n255\n" + 100 * b"#\n" + 16 * b"0 ", "has more than 64 comments"),
}


@pytest.mark.parametrize(("content", "wrong"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_left_out_and_named(content: bytes, wrong: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "birds" / name, 4)
    bad = tmp_path / "birds" / "b" / "bad.png"
    bad.write_bytes(content)
    with pytest.raises(OcilError, match=rf"bad\.png {wrong}.*\. Replace it or take it out\.$"):
        read_image(bad, gray=True)
    notes: list[str] = []
    import_dataset("birds", tmp_path / "birds", tmp_path / "data", size=12, note=notes.append)
    data = load("birds", tmp_path / "data")
    assert len(data.train_y) + len(data.test_y) == 8
    assert f"images that cannot be read and are left out, 1: {bad}" in notes


def test_learn_leaves_it_out_too(ocil_command: Call, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "birds" / name, 4)
    (tmp_path / "birds" / "b" / "bad.png").write_bytes(HOSTILE["scans"][0])
    words = ("--method", "er", "--memory", 20, "--width", 1, "--size", 12, "--gray", "--batch-size", 4)
    said = ocil_command("learn", tmp_path / "birds", "--model", tmp_path / "model", *words)
    assert said.code == 1
    assert f"left out: {tmp_path / 'birds' / 'b' / 'bad.png'} has more than 32 scans" in said.err.replace("\n", " ")
    assert "8 samples learned now" in said.out


def test_a_file_of_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.setattr(images, "MAX_BYTES", len(PNG) - 1)
    with pytest.raises(OcilError, match=r"a\.png is larger than 0 MiB\. Replace it or take it out\.$"):
        read_image(tmp_path / "a.png", gray=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are a matter of POSIX")
def test_a_list_of_images_names_what_is_no_file(ocil_command: Call, tmp_path: Path) -> None:
    """A FIFO that nobody writes to would be waited for without end, and a device never ends."""
    write_images(tmp_path / "a", 8)
    os.mkfifo(tmp_path / "pipe.png")
    names = [*sorted(f"a/{path.name}" for path in (tmp_path / "a").iterdir()), "pipe.png"]
    rows = [f"{name},{number % 2}\n" for number, name in enumerate(names)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    said = ocil_command("data", "import", "piped", tmp_path / "list.csv", "--data-dir", tmp_path / "data")
    assert said.code == 0, said.err
    assert f"left out, 1: {tmp_path / 'pipe.png'}" in said.out.replace("\n", " ")
    with pytest.raises(OcilError, match=r"zero is not a file\. Replace it or take it out\.$"):
        read_image(Path("/dev/zero"), gray=True)


def test_a_small_image_takes_little_memory(tmp_path: Path) -> None:
    """To read up to the limit would set half a gigabyte aside for each file, which takes longer than the file."""
    (tmp_path / "a.png").write_bytes(PNG)
    read_image(tmp_path / "a.png", gray=True)  # what is loaded for it stays
    tracemalloc.start()
    try:
        read_image(tmp_path / "a.png", gray=True)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system does not name open files")
def test_an_image_that_another_program_writes_to_a_pipe() -> None:
    """``ocil predict <(convert a.heic png:-)`` names a pipe. What comes late is waited for."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(PNG)

    with os.fdopen(reading, "rb"):
        threading.Timer(0.2, write).start()
        assert np.array_equal(read_image(Path(f"/dev/fd/{reading}"), gray=True)[:, :, 0], PIXELS)


def test_the_header_of_a_large_photo_is_that_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a JPEG, what is in front of the pixels is enough, unless that is very long."""
    noise = np.random.default_rng(0).integers(0, 256, (600, 700, 3), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    photo = encoded_as("JPEG", noise, quality=95, exif=turned)
    assert len(photo) > HEADER_BYTES
    (tmp_path / "photo.jpg").write_bytes(photo)
    long = photo[:2] + 5 * (b"\xff\xe5\xff\xff" + bytes(2**16 - 3)) + photo[2:]
    (tmp_path / "long.jpg").write_bytes(long)
    assert probe(tmp_path / "long.jpg") == probe(tmp_path / "photo.jpg") == ((600, 700), False)
    monkeypatch.setattr(images, "opened", None)
    assert probe(tmp_path / "photo.jpg") == ((600, 700), False)
    with pytest.raises(TypeError):
        probe(tmp_path / "long.jpg")


def test_what_programs_write_is_read(tmp_path: Path) -> None:
    """As Pillow alone reads it, also in forms of many parts."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        ("PNG", {}),
        ("JPEG", {"progressive": True}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"tiffinfo": {278: 1}}),  # a strip per row
        ("BMP", {}),
        ("PPM", {}),
        ("GIF", {}),
        ("WEBP", {}),
    )
    for kind, options in forms:
        content = encoded_as(kind, noise, **options)
        (tmp_path / "image").write_bytes(content)
        with Image.open(io.BytesIO(content)) as image:
            expected = np.asarray(image.convert("RGB"))
        assert np.array_equal(read_image(tmp_path / "image", gray=False), expected), (kind, options)
    text = b"P3\n400 300\n255\n" + b" ".join(b"%d" % value for value in noise.ravel())
    (tmp_path / "image").write_bytes(text)
    assert np.array_equal(read_image(tmp_path / "image", gray=False), noise)
