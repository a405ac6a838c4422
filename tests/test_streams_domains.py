"""Domains: a second label that is given or made, streams whose tasks are domains, and datasets one after the other."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ocil import Dataset, OcilError, Stream, StreamConfig
from ocil.data import derived, load, load_once
from ocil.data.changes import CHANGES, changed
from ocil.data.importers import import_dataset
from ocil.evaluation.evaluator import Evaluator
from ocil.runs.build import make_learner
from ocil.streams import DeviceData
from tests.reference.datasets import patterned

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (60, 4, 4, 1)).astype(np.uint8)
Y = np.arange(60) % 3
DAY = np.where(np.arange(60) % 2, "night", "day")


def two_domains(**options: Any) -> Dataset:
    return Dataset.from_arrays(X, Y, X[:12], Y[:12], train_domain=DAY, test_domain=DAY[:12], name="light", **options)


# Given domains


def test_domains_are_numbered_and_named() -> None:
    data = two_domains()
    assert data.domains == ("day", "night")
    assert data.train_domain is not None
    assert data.train_domain.tolist() == [0, 1] * 30
    plain = Dataset.from_arrays(X, Y, X[:12], Y[:12])
    assert plain.num_domains == 0
    assert plain.fingerprint != data.fingerprint


def test_held_out_samples_keep_their_domains() -> None:
    data = Dataset.from_arrays(X, Y, train_domain=DAY, note=lambda text: None)
    assert data.train_domain is not None
    assert data.test_domain is not None
    for x, domain in ((data.train_x, data.train_domain), (data.test_x, data.test_domain)):
        for image, number in zip(x, domain, strict=True):
            (place,) = np.flatnonzero((image == X).all((1, 2, 3)))
            assert DAY[place] == data.domains[number]


@pytest.mark.parametrize("form", ["npz", "folder", "npy"])
def test_domains_survive_every_form(form: str, tmp_path: Path) -> None:
    data = two_domains()
    if form == "npz":
        data.save(tmp_path / "light.npz")
        again = load(tmp_path / "light.npz")
    elif form == "folder":
        again = two_domains(store=tmp_path / "light")
    else:
        source = tmp_path / "arrays"
        source.mkdir()
        for name in ("train_x", "train_y", "test_x", "test_y", "train_domain", "test_domain"):
            np.save(source / f"{name}.npy", getattr(data, name))
        import_dataset("light", source, tmp_path / "data", form="folder")
        again = load("light", tmp_path / "data")
    assert len(again.domains) == 2
    assert again.train_domain is not None
    np.testing.assert_array_equal(again.train_domain, data.train_domain)
    np.testing.assert_array_equal(again.test_domain, data.test_domain)
    import_dataset("copy", tmp_path / "light.npz", tmp_path) if form == "npz" else None
    if form == "npz":
        assert load("copy", tmp_path).fingerprint == data.fingerprint


def test_a_label_file_names_domains(tmp_path: Path) -> None:
    lines = ["path,label,split,domain"]
    for number in range(24):
        Image.fromarray(X[number, :, :, 0]).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{Y[number]},{'test' if number >= 12 else 'train'},{DAY[number]}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    import_dataset("light", tmp_path / "list.csv", tmp_path / "data")
    data = load("light", tmp_path / "data")
    assert data.domains == ("day", "night")
    assert data.train_domain is not None
    assert [data.domains[number] for number in data.train_domain] == DAY[:12].tolist()
    (tmp_path / "list.csv").write_text("\n".join([*lines[:-1], "23.png,0,test,"]))
    with pytest.raises(OcilError, match="line 25 has no domain"):
        import_dataset("light", tmp_path / "list.csv", tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_domain": DAY}, "give test_domain together with test_x"),
        ({"test_domain": DAY[:12]}, "give train_domain together"),
        ({"train_domain": DAY[:5], "test_domain": DAY[:12]}, "60 samples but train_domain has 5"),
        ({"train_domain": DAY, "test_domain": ["dusk"] * 12}, "test_domain has the label 'dusk'"),
        ({"train_domain": DAY, "test_domain": ["day"] * 12}, "domain 'night' has no test sample"),
    ],
)
def test_domains_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OcilError, match=message):
        Dataset.from_arrays(X, Y, X[:12], Y[:12], **options)


def test_a_dataset_with_half_of_its_domains() -> None:
    with pytest.raises(OcilError, match="give all three or none"):
        Dataset("half", X, Y, X, Y, ("a", "b", "c"), domains=("day",))
    with pytest.raises(OcilError, match=r"outside 0\.\.1"):
        Dataset("out", X, Y, X, Y, ("a", "b", "c"), 0, np.full(60, 2), np.full(60, 0), ("day", "night"))


# Streams of domains


@pytest.mark.parametrize("boundary", ["clear", "blurry", "none", "iid", "i-blurry", "si-blurry", "repeated"])
def test_every_kind_brings_domains(boundary: Any) -> None:
    data = derived.with_domains(patterned(30), derived.ImageChange("noise", 5, 2.0), "noisy")
    config = StreamConfig(tasks=5, batch_size=5, boundary=boundary, scenario="domain", drop_last=False)
    stream = Stream(data, config, seed=1)
    assert sorted(itertools.chain(*stream.groups)) == list(range(5))
    assert sorted(stream.arrivals.samples.tolist()) == list(range(120))
    assert data.train_domain is not None
    if boundary == "clear":
        first = stream.arrivals.samples[: stream.bounds[stream.arrivals.points[0]][1]]
        assert set(data.train_domain[first]) == {0}
        assert set(data.train_y[first]) == {0, 1, 2, 3}
    assert stream.new_classes(0) == []


def test_columns_are_domains_and_count_every_test_image() -> None:
    data = derived.with_domains(patterned(30), derived.ImageChange("occlusion", 4, 0.6), "dirty")
    stream = Stream(data, StreamConfig(tasks=2, scenario="domain", task_sizes=(3, 1)))
    learner = make_learner("fine-tune", data, width=1)
    learner.network.eval()
    found = Evaluator(stream)(learner, 1)
    predicted = learner.scores(torch.from_numpy(data.test_x)).argmax(1).numpy()
    assert data.test_domain is not None
    right = predicted == data.test_y
    assert found.accuracy == [right[data.test_domain < 3].mean(), right[data.test_domain == 3].mean()]
    assert found.mean_logit_new is None


def test_domains_in_an_order_file(tmp_path: Path) -> None:
    data = two_domains()
    first = Stream(data, StreamConfig(tasks=2, scenario="domain", class_order="seeded"), seed=3)
    first.save_order(tmp_path / "order.npz")
    again = Stream(data, StreamConfig(order=str(tmp_path / "order.npz")))
    assert again.arrivals.scenario == "domain"
    assert again.groups == first.groups
    np.testing.assert_array_equal(again.test_groups, first.test_groups)
    with pytest.raises(OcilError, match="order of other data"):
        Stream(Dataset.from_arrays(X, Y, X[:12], Y[:12]), again.config)


# Made domains


@pytest.mark.parametrize("kind", list(CHANGES))
def test_made_domains_are_balanced_stronger_and_always_the_same(kind: str) -> None:
    base = load()
    data, again = (load(f"fashion-mini:{kind}") for _ in range(2))
    assert data.fingerprint == again.fingerprint != base.fingerprint
    assert data.num_domains == 10
    assert data.train_domain is not None
    assert data.test_domain is not None
    table = np.zeros((10, 10), int)
    np.add.at(table, (data.train_domain, data.train_y), 1)
    assert (table == 30).all()
    assert (np.bincount(data.test_domain) == 100).all()
    change = np.abs(data.train_x.astype(int) - base.train_x).mean((1, 2, 3))
    by_domain = [float(change[data.train_domain == domain].mean()) for domain in range(10)]
    assert by_domain[0] == 0
    assert by_domain == sorted(by_domain) or kind == "occlusion"  # whose place matters too
    assert by_domain[9] > 15
    np.testing.assert_array_equal(data.train_y, base.train_y)


def test_each_change_is_what_it_says() -> None:
    gray = np.full((200, 9, 9, 1), 128, np.uint8)
    domain = np.repeat([0, 1], 100)
    noisy = changed(gray, domain, "noise", (0.0, 0.5), "train").astype(float)
    assert (noisy[:100] == 128).all()
    assert noisy[100:].std() == pytest.approx(0.5 * 25.5, rel=0.05)
    dot = np.zeros((1, 31, 31, 1), np.uint8)
    dot[0, 15, 15] = 255
    blurred = changed(dot, np.zeros(1, int), "blur", (1.5,), "train").astype(float)[0, :, :, 0]
    y, x = np.mgrid[-15:16, -15:16]
    expected = 255 * np.exp(-(x**2 + y**2) / (2 * 1.5**2)) / (2 * np.pi * 1.5**2)
    np.testing.assert_allclose(blurred, expected, atol=0.6)
    edge = changed(np.full((1, 5, 5, 3), 200, np.uint8), np.zeros(1, int), "blur", (2.0,), "test")
    assert (edge == 200).all()
    hidden = changed(gray, domain, "occlusion", (0.0, 0.4), "test")
    white = (hidden[100:] == 255).all(-1)
    assert (white.sum((1, 2)) == 9).all()  # a square of 3: 0.4 of 9, rounded down
    assert (white == white[0]).all()
    rows, columns = np.flatnonzero(white[0].any(1)), np.flatnonzero(white[0].any(0))
    assert (len(rows), len(columns)) == (3, 3)


def test_a_made_dataset_is_opened_once(tmp_path: Path) -> None:
    patterned().save(tmp_path / "mine.npz")
    name = f"{tmp_path / 'mine.npz'}:noise,domains=2"
    first = load_once(name)
    assert load_once(name) is first
    assert first.domains == ("1: noise 0", "2: noise 3.6")
    patterned(seed=1).save(tmp_path / "mine.npz")
    assert load_once(name) is not first
    assert DeviceData(first, "cpu").train_x is not None


# Datasets one after the other


def test_joined_datasets_keep_their_classes_apart(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        patterned(10, 4 if seed else 2, seed=seed).save(tmp_path / f"{name}.npz")
    data = load("one+two", tmp_path)
    assert data.name == "one+two"
    assert data.classes == ("one/class 0", "one/class 1", *(f"two/class {c}" for c in range(4)))
    assert data.domains == ("one", "two")
    one, two = load("one", tmp_path), load("two", tmp_path)
    np.testing.assert_array_equal(data.train_x[len(one.train_y) :], two.train_x)
    np.testing.assert_array_equal(data.test_y[len(one.test_y) :], two.test_y + 2)
    stream = Stream(data, seed=3)
    assert stream.groups == [[0], [1], [2], [3], [4], [5]]  # the usual tasks of each: one per class, as they are few
    assert load_once("one+two", tmp_path) is load_once("one+two", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one+gray", "gray has inputs of 8x8x1 uint8 and one of 8x8x3 uint8"),
        ("one+one", "'one' stands there twice"),
        ("one+nothing", "there is no dataset 'nothing'"),
        ("vectors:noise", "it holds vectors where images are needed"),
        ("one:noise,domains=1", "domains = 1 must be from 2 to 20"),
        ("one:noise,domains=2.5", "2.5 is not a whole number"),
        ("one:blur,strongest=-1", "must be more than 0 and at most 100"),
        ("one:occlusion,strongest=nan", "write domains=N and strongest=NUMBER"),
        ("one:noise,loud=3", "not 'loud=3'"),
        ("one:noise,", "write domains=N and strongest=NUMBER behind noise, not ''"),
        ("one:noise,domains=3,strongest=1,domains=4", "'domains' stands there twice"),
        ("one:noise:blur", "has domains already"),
    ],
)
def test_names_that_stand_for_nothing(name: str, message: str, tmp_path: Path) -> None:
    patterned(10, 2).save(tmp_path / "one.npz")
    gray = patterned(10, 2)
    Dataset("gray", gray.train_x[..., :1], gray.train_y, gray.test_x[..., :1], gray.test_y, ("a", "b")).save(
        tmp_path / "gray.npz"
    )
    Dataset.from_arrays(np.zeros((4, 3)), [0, 1, 0, 1], np.zeros((2, 3)), [0, 1]).save(tmp_path / "vectors.npz")
    with pytest.raises(OcilError, match=message) as caught:
        load(name, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_path_with_a_plus_is_a_path(tmp_path: Path) -> None:
    place = tmp_path / "c++ and:noise"
    place.mkdir()
    patterned(10, 2).save(place / "mine.npz")
    assert load(place / "mine.npz").num_classes == 2
    assert not derived.is_derived(str(place / "mine.npz"))


@pytest.mark.parametrize(
    ("name", "parts", "short"),
    [
        ("cifar10", ["cifar10"], "cifar10"),
        ("cifar10+cifar100", ["cifar10", "cifar100"], "cifar10+cifar100"),
        (
            "/data/one.npz+two:blur,strongest=2.5",
            ["/data/one.npz", "two:blur,strongest=2.5"],
            "one+two:blur,strongest=2.5",
        ),
        ("/a/x.npz+/b/y.npz", ["/a/x.npz", "/b/y.npz"], "x+y"),
        ("/a+b/x.npz", ["/a+b/x.npz"], "x"),
        ("a+", ["a+"], "a+"),
        ("+", ["+"], "+"),
    ],
)
def test_what_a_name_joins(name: str, parts: list[str], short: str) -> None:
    assert derived.parts_of(name) == parts
    assert derived.short_name(name) == short
