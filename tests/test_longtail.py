"""The parts of long-tailed recognition, each against a slow version or by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.learning.losses import revised_focal
from ocil.learning.sgd import SGD
from ocil.longtail import data, metrics, sampler
from ocil.longtail.attention import ModulatedAttention
from ocil.longtail.centroids import disc_centroids
from ocil.longtail.config import CUTTING, VARIANTS, LongTailConfig, command, resolve
from ocil.longtail.dynamic import DynamicMu
from ocil.longtail.embedding import MetaEmbedding
from ocil.longtail.network import OpenNetwork, PlainNetwork, ResNet10, he_normal
from tests.reference import longtail as slow
from tests.reference.datasets import numbered


def arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


# Data


@pytest.fixture(scope="module")
def balanced() -> Dataset:
    return numbered([60] * 10)


def test_the_profile_falls_exponentially() -> None:
    assert data.profile(5, 160, 16) == [160, 80, 40, 20, 10]
    assert data.profile(3, 100, 1) == [100, 100, 100]
    assert data.profile(4, 3, 1000)[-1] == 1
    counts = data.profile(80, 480, 100)
    assert (counts[0], counts[-1]) == (480, 4)
    assert counts == sorted(counts, reverse=True)


def test_a_cut_keeps_what_it_says(balanced: Dataset) -> None:
    split = data.cut(balanced, imbalance=10, open_share=0.3, validation=10, seed=1)
    assert split.counts.tolist() == data.profile(7, 50, 10)
    assert np.bincount(split.val_y).tolist() == [10] * 7
    assert split.train_index is not None
    assert split.val_index is not None
    assert not set(split.train_index.tolist()) & set(split.val_index.tolist())
    assert len(set(split.train_index.tolist())) == len(split.train_y)
    assert set(split.classes) | set(split.open_classes) == set(balanced.classes)
    assert not set(split.classes) & set(split.open_classes)
    # The third pixel is the label of old: images carry their class along, under its new number.
    for images, labels in ((split.train_x, split.train_y), (split.val_x, split.val_y)):
        assert [f"class {p}" for p in images[:, 0, 0, 2]] == [split.classes[y] for y in labels]
    assert np.array_equal(split.train_x, balanced.train_x[split.train_index])
    assert len(split.test_y) == 7
    assert len(split.open_x) == 3


def test_open_and_known_test_images_keep_their_classes() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 12)
    x = np.tile(y[:, None, None, None], (1, 2, 2, 3)).astype(np.uint8) * 10
    order = rng.permutation(len(y))
    whole = Dataset("made", x[order], y[order], x[::3], y[::3], tuple("abcdef"))
    split = data.cut(whole, 3, 1 / 3, 4, seed=0)
    assert {"abcdef"[p // 10] for p in split.open_x[:, 0, 0, 0]} == set(split.open_classes)
    assert ["abcdef"[p // 10] for p in split.test_x[:, 0, 0, 0]] == [split.classes[label] for label in split.test_y]


def test_the_seed_decides_the_cut(balanced: Dataset) -> None:
    one, again, other = (data.cut(balanced, 10, 0.2, 10, seed).summary() for seed in (0, 0, 1))
    assert one == again
    assert one["digest"] != other["digest"]
    assert one["classes"] != other["classes"]


@pytest.mark.parametrize(
    ("open_share", "validation", "word"), [(0.9, 10, "classes known"), (0.2, 60, "validation"), (0.2, 0, "validation")]
)
def test_a_cut_that_cannot_be(balanced: Dataset, open_share: float, validation: int, word: str) -> None:
    with pytest.raises(OcilError, match=word):
        data.cut(balanced, 10, open_share, validation, 0)


def test_a_class_of_one_image_cannot_be_cut() -> None:
    """No number of validation images would do."""
    with pytest.raises(OcilError, match="has a class of one training image, and a long tail needs two or more"):
        data.cut(numbered([60, 60, 1]), 10, 0.0, 1, 0)


def test_without_open_classes(balanced: Dataset) -> None:
    split = data.cut(balanced, 10, 0.0, 10, 0)
    assert (len(split.classes), len(split.open_x), split.open_classes) == (10, 0, ())


@pytest.fixture
def listed(tmp_path: Path) -> tuple[Path, Path]:
    """A made ImageNet-LT: lists and images, wide ones with their class's colour in the middle."""
    lists, images = tmp_path / "lists", tmp_path / "images"
    lists.mkdir()
    lines: dict[str, list[str]] = {split: [] for split in data.LISTS}
    for split, per_class in (("train", 5), ("val", 2), ("test", 2), ("open", 2)):
        for label, name in enumerate(("n01", "n02", "n03") if split != "open" else ("n09",)):
            folder = images / split / name
            folder.mkdir(parents=True)
            for number in range(per_class - (label if split == "train" else 0)):
                pixels = np.zeros((20, 40, 3), np.uint8)
                pixels[:, 10:30] = 40 * (label + 1)
                Image.fromarray(pixels).save(folder / f"{number}.png")
                lines[split].append(f"{split}/{name}/{number}.png {-1 if split == 'open' else label}")
    for split, found in lines.items():
        (lists / f"ImageNet_LT_{split}.txt").write_text("\n".join(found) + "\n")
    return lists, images


def test_published_lists(listed: tuple[Path, Path], tmp_path: Path) -> None:
    split = data.read_lists("tail", *listed, size=16)
    assert split.counts.tolist() == [5, 4, 3]
    assert split.classes == ("n01", "n02", "n03")
    assert split.train_x.shape == (12, 16, 16, 3)
    assert (split.train_x == 40 * (split.train_y[:, None, None, None] + 1)).all()  # the middle, nothing of the sides
    assert len(split.open_x) == 2
    data.save_prepared(split, data.prepared_path("tail", tmp_path))
    again = data.load_prepared("tail", tmp_path)
    assert again.summary() == split.summary()
    assert np.array_equal(again.test_x, split.test_x)
    assert data.is_prepared("tail", tmp_path)
    assert data.read_lists("tail", *listed, size=12).digest != split.digest
    assert not data.is_prepared("../tail", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../../secret.png 0", "leads out"),
        ("/etc/hostname 0", "leads out"),
        ("train/out.png 0", "leads out"),
        ("train/n01/none.png 0", "there is no"),
        ("train/n01/0.png", "is not 'PATH LABEL'"),
        ("train/n01/0.png one", "is not 'PATH LABEL'"),
        ("train/n01/0.png 7", "no image of class 3"),
        (f"train/n01/0.png {10**30}", "is not 'PATH LABEL'"),
        ("train/n01/0.png " + "9" * 5000, "is not 'PATH LABEL'"),
        ("train/\0.png 0", "there is no"),
        ("x" * 5000 + " 0", "there is no"),
        ("train/loop.png 0", "there is no"),
    ],
)
def test_lists_that_are_wrong(listed: tuple[Path, Path], tmp_path: Path, line: str, message: str) -> None:
    lists, images = listed
    (tmp_path / "secret.png").write_bytes(b"")
    (images / "train" / "out.png").symlink_to(tmp_path / "secret.png")
    (images / "train" / "loop.png").symlink_to("loop.png")
    path = lists / "ImageNet_LT_train.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(OcilError, match=message):
        data.read_lists("tail", lists, images, 16)


def test_a_label_that_training_has_not(listed: tuple[Path, Path]) -> None:
    lists, images = listed
    path = lists / "ImageNet_LT_test.txt"
    path.write_text("test/n01/0.png 3\n")
    (images / "train" / "n01" / "0.png").write_bytes(b"")  # said before an image is read
    with pytest.raises(OcilError, match=r"a label of test is 3, outside 0\.\.2"):
        data.read_lists("tail", lists, images, 16)


def test_a_prepared_file_of_other_shapes(listed: tuple[Path, Path], tmp_path: Path) -> None:
    path = data.prepared_path("tail", tmp_path)
    data.save_prepared(data.read_lists("tail", *listed, size=16), path)
    arrays = dict(np.load(path))
    for change in (
        {"train_x": arrays["train_x"][..., 0]},
        {"train_y": arrays["train_y"][:, None]},
        {"open_x": arrays["open_x"][:, :8]},
    ):
        np.savez(path, **(arrays | change))
        with pytest.raises(OcilError, match=f"{next(iter(change))} has the shape"):
            data.load_prepared("tail", tmp_path)


def test_lists_that_are_not_there(listed: tuple[Path, Path]) -> None:
    lists, images = listed
    (lists / "ImageNet_LT_val.txt").unlink()
    with pytest.raises(OcilError, match=r"0 files named \*_val.txt"):
        data.read_lists("tail", lists, images, 16)
    with pytest.raises(OcilError, match="between 8"):
        data.read_lists("tail", lists, images, 4)


def test_a_prepared_file_that_is_broken(tmp_path: Path) -> None:
    path = data.prepared_path("tail", tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"PK nothing")
    with pytest.raises(OcilError, match="Prepare it again"):
        data.load_prepared("tail", tmp_path)
    with pytest.raises(OcilError, match="cannot be a name"):
        data.prepared_path("../x", tmp_path)


# Sampler


def test_stage_1_sees_every_image_once_an_epoch() -> None:
    order = sampler.shuffled(23, 5, 3, seed=0)
    assert order.shape == (3, 20)
    for epoch in order:
        assert len(set(epoch.tolist())) == 20
    assert not np.array_equal(order[0], order[1])
    assert np.array_equal(order, sampler.shuffled(23, 5, 3, seed=0))
    assert not np.array_equal(order, sampler.shuffled(23, 5, 3, seed=1))


def test_the_sampler_balances_classes() -> None:
    labels = np.repeat(np.arange(5), [100, 40, 12, 3, 1])
    order = sampler.class_aware(labels, 4, 20, 3, seed=0)
    assert order.shape == (3, 140)
    flat = order.reshape(-1)
    drawn = labels[flat].reshape(-1, 4)
    assert (drawn == drawn[:, :1]).all()  # four of a class together
    counts = np.bincount(drawn[:, 0])
    assert counts.max() - counts.min() <= 1  # classes in turn
    for first in range(0, len(drawn) - 5, 5):
        assert len(set(drawn[first : first + 5, 0])) == 5
    for label in range(5):  # each class's images in turn, too
        used = Counter(flat[labels[flat] == label].tolist())
        assert max(used.values()) - min(used.get(i, 0) for i in np.flatnonzero(labels == label)) <= 1


# Losses


@pytest.mark.parametrize("margin", [0.5, 50.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_disc_centroids_against_the_slow_version(margin: float, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    f, c = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    labels, weight, repel = [0, 1, 1, 3, 3, 3, 0], 0.2, 0.3
    features, centroids = (torch.tensor(value, requires_grad=True) for value in (f, c))
    loss = disc_centroids(features, torch.tensor(labels), centroids, margin, repel, weight, weighted)
    assert loss.item() == pytest.approx(weight * slow.disc_centroids(f, labels, c, margin, repel))
    loss.backward()
    by_differences = slow.slopes(lambda x: weight * slow.disc_centroids(x, labels, c, margin, repel), f)
    assert features.grad is not None
    assert centroids.grad is not None
    np.testing.assert_allclose(features.grad.numpy(), by_differences, atol=1e-8)
    pull = slow.pull_on_centroids(f, labels, c)
    expected = (weight if weighted else 1) * pull + weight * repel * slow.repel_on_centroids(f, labels, c, margin)
    np.testing.assert_allclose(centroids.grad.numpy(), expected, atol=1e-12)
    assert (pull[2] == 0).all()  # a class that is not in the batch is not pulled


def test_the_dynamic_mu_by_hand() -> None:
    dynamic = DynamicMu(3)
    assert dynamic.mu.tolist() == [0, 0, 0]  # the first epoch
    scores = {0: [0.01, 0.5, 0.9, 0.95], 1: [0.3, 0.31, 0.33, 0.99, 1.0]}
    # Class 0: a quarter of 4 is reached by the first image, in bin 0. Class 1: 1.25 images are reached by the second,
    # in bin 7 (0.28 to 0.32). Class 2 was not seen.
    for label, values in scores.items():
        for score in values:
            dynamic.collect(two_class_logits(score, label), torch.tensor([label]))
    dynamic.update()
    assert dynamic.mu.tolist() == pytest.approx([0.0, 0.28, 0.0])
    dynamic.collect(two_class_logits(1.0, 0), torch.tensor([0]))  # the scores of an epoch before do not count
    dynamic.update()
    assert dynamic.mu.tolist() == pytest.approx([0.96, 0.28, 0.0])


def two_class_logits(score: float, label: int) -> torch.Tensor:
    """Logits whose softmax gives a class this score, the rest to one other."""
    logits = torch.full((1, 3), -1e4)
    logits[0, (label + 1) % 3] = np.log(max(1 - score, 1e-30))
    logits[0, label] = np.log(score)
    return logits


def test_the_dynamic_mu_against_its_definition() -> None:
    rng = np.random.default_rng(0)
    logits, labels = torch.tensor(rng.normal(size=(400, 5)) * 3, dtype=torch.float32), torch.arange(400) % 5
    for bins, share in ((25, 0.25), (10, 0.5), (4, 1.0)):
        dynamic = DynamicMu(5, bins, share)
        for part in range(0, 400, 50):
            dynamic.collect(logits[part : part + 50], labels[part : part + 50])
        dynamic.update()
        p = logits.softmax(1)[torch.arange(400), labels]
        expected = [slow.dynamic_mu(p[labels == k].tolist(), bins, share) for k in range(5)]
        assert dynamic.mu.tolist() == pytest.approx(expected)
        assert dynamic.counts.sum() == 0


def test_the_revised_focal_loss_takes_a_mu_a_class() -> None:
    logits, labels, mu = torch.randn(6, 3), torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0.0, 0.4, 0.8])
    each = revised_focal(logits, labels, 1.0, mu, reduction="none")
    for i, y in enumerate(labels.tolist()):
        one = revised_focal(logits[i : i + 1], labels[i : i + 1], 1.0, float(mu[y]))
        assert each[i].item() == pytest.approx(one.item(), rel=1e-6)


# Measures


def test_shots() -> None:
    groups = metrics.shots([500, 100, 99, 21, 20, 1])
    assert {name: np.flatnonzero(chosen).tolist() for name, chosen in groups.items()} == {
        "many": [0, 1],
        "medium": [2, 3],
        "few": [4, 5],
    }


def test_a_worked_example() -> None:
    counts = [200, 50, 10, 5]
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 3, 3])
    predicted = np.array([0, 0, 0, 1, 1, 0, 2, 0, 0, 0])
    confidence = np.array([0.9, 0.9, 0.05, 0.9, 0.9, 0.9, 0.08, 0.9, 0.9, 0.02])
    found = metrics.measure(predicted, confidence, labels, counts, [0, 0, 1], [0.5, 0.01, 0.09], below=0.1)
    # Closed: class 0 3/4, class 1 1/2, class 2 1/2, class 3 0; 5 of 10 images. Open: the third and the seventh image
    # are rejected, so class 0 2/4, class 1 1/2, class 2 0. Right 3, wrong 7, one unknown image is taken for class 0.
    assert found == pytest.approx({
        "many": 0.75, "medium": 0.5, "few": 0.25, "overall": 0.5, "open_many": 0.5, "open_medium": 0.5, "open_few": 0.0,
        "f_measure": 2 * (0.3 * 0.75) / (0.3 + 0.75),
        # The seven known images at 0.9 are surer than all unknown ones, the other three than one of them. All ten must
        # be kept to keep 95 %: the threshold 0.02 keeps two of three.
        "auroc": (7 * 3 + 3 * 1) / 30, "fpr95": 2 / 3,
    })  # fmt: skip
    assert set(found) == set(metrics.MEASURES)


@pytest.mark.parametrize(
    ("known", "unknown", "levels"), [(20, 7, 5), (21, 9, 1000), (400, 300, 40), (1, 1, 2), (5, 3, 1)]
)
def test_open_set_measures_against_the_slow_versions(known: int, unknown: int, levels: int) -> None:
    rng = np.random.default_rng(known)
    sure, unsure = rng.integers(0, levels, known) / levels, rng.integers(0, levels, unknown) / levels  # with ties
    assert metrics.auroc(sure, unsure) == pytest.approx(slow.auroc(sure.tolist(), unsure.tolist()))
    assert metrics.fpr95(sure, unsure) == pytest.approx(slow.fpr95(sure.tolist(), unsure.tolist()))


def test_open_set_measures_at_their_ends() -> None:
    assert metrics.auroc([0.8, 0.9], [0.1, 0.2]) == 1.0
    assert metrics.auroc([0.1, 0.2], [0.8, 0.9]) == 0.0
    assert metrics.fpr95([0.8, 0.9], [0.1, 0.2]) == 0.0
    assert metrics.fpr95([0.1, 0.2], [0.8, 0.9]) == 1.0
    nineteen = [0.9] * 19
    assert metrics.fpr95([*nineteen, 0.0], [0.5]) == 0.0  # the twentieth known image may be lost
    assert metrics.fpr95([*nineteen[1:], 0.0, 0.0], [0.5]) == 1.0


def test_an_image_as_sure_as_the_threshold_is_not_rejected() -> None:
    assert metrics.rejected([3, 4, 5], [0.1, 0.0999, 0.2], 0.1).tolist() == [3, -1, 5]


def test_measures_of_nothing() -> None:
    found = metrics.measure([0, 0], [1, 1], [0, 0], [500, 50], [], [], 0.1)
    assert (found["many"], found["medium"], found["few"], found["f_measure"]) == (1.0, None, None, None)
    assert (found["auroc"], found["fpr95"]) == (None, None)
    assert metrics.f_measure([-1], [0], [0]) == 0.0


# Networks


@pytest.mark.parametrize(("side", "map_size"), [(8, 1), (14, 2), (32, 4), (48, 6), (49, 2), (84, 3), (224, 7)])
def test_maps(side: int, map_size: int) -> None:
    network = ResNet10((side, side, 3), width=2)
    assert network.map_size == (map_size, map_size)
    with torch.no_grad():
        assert network.eval()(torch.rand(2, 3, side, side)).shape == (2, 16, map_size, map_size)
    assert network.conv1.kernel_size == ((3, 3) if side <= 48 else (7, 7))


def test_pixels_are_standardised_before_the_first_convolution() -> None:
    network = ResNet10((8, 8, 3), width=2).eval()
    x, mean, deviation = torch.rand(2, 3, 8, 8), torch.rand(3, 1, 1), 0.1 + torch.rand(3, 1, 1)
    with torch.no_grad():
        expected = network((x - mean) / deviation)
        network.mean.copy_(mean)
        network.deviation.copy_(deviation)
        torch.testing.assert_close(network(x), expected)


def test_resnet_10_as_published() -> None:
    network = ResNet10((224, 224, 3))
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) - 3 == 9  # and three shortcuts; the linear layer is the tenth
    # 7x7 stem, then a block of 64, 128, 256 and 512 channels: convolutions, shortcuts, normalisations.
    stem, first = 3 * 64 * 49 + 128, 2 * 64 * 64 * 9 + 256
    others = sum(c * 2 * c * 9 + 4 * c * c * 9 + c * 2 * c + 3 * 4 * c for c in (64, 128, 256))
    assert sum(p.numel() for p in network.parameters()) == stem + first + others


def test_convolutions_start_he_normal() -> None:
    torch.manual_seed(0)
    network = he_normal(OpenNetwork((32, 32, 3), 5, 16, "tf32", 16.0, 10.0))
    out = network.attention.out
    assert out.weight.std().item() == pytest.approx((2 / out.out_channels) ** 0.5, rel=0.05)
    deep = network.backbone.get_parameter("blocks.3.conv2.weight")
    assert deep.std().item() == pytest.approx((2 / (9 * len(deep))) ** 0.5, rel=0.05)


def test_attention_against_the_slow_version() -> None:
    torch.manual_seed(0)
    attention = ModulatedAttention(4, 3, 2).double()
    x = torch.randn(2, 4, 3, 2, dtype=torch.float64)
    found = attention(x).detach().numpy()
    for image, answer in zip(x.numpy(), found, strict=True):
        np.testing.assert_allclose(answer, slow.attention(image, arrays(attention)), atol=1e-12)


def test_meta_embedding_against_the_slow_version() -> None:
    torch.manual_seed(0)
    embedding = MetaEmbedding(5, 3, scale=7.0, reach=2.0).double()
    features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    centroids = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    logits = embedding(features, centroids)
    for f, answer in zip(features.detach().numpy(), logits.detach().numpy(), strict=True):
        expected = slow.meta_embedding(f, centroids.detach().numpy(), arrays(embedding), 7.0, 2.0)
        np.testing.assert_allclose(answer, expected, atol=1e-12)
    logits.square().sum().backward()
    assert centroids.grad is None  # they enter as they are

    def total(x: np.ndarray) -> float:
        c, w = centroids.detach().numpy(), arrays(embedding)
        return sum(float((slow.meta_embedding(f, c, w, 7.0, 2.0) ** 2).sum()) for f in x)

    assert features.grad is not None
    np.testing.assert_allclose(features.grad.numpy(), slow.slopes(total, features.detach().numpy()), atol=1e-6)


def test_a_feature_on_a_centroid_stays_finite() -> None:
    embedding = MetaEmbedding(4, 2)
    features = torch.ones(1, 4, requires_grad=True)
    embedding(features, torch.ones(2, 4)).sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_stage_2_takes_over_backbone_and_classifier() -> None:
    torch.manual_seed(0)
    plain = PlainNetwork((8, 8, 1), 3, 2, "tf32")
    plain.backbone.get_buffer("bn1.running_mean").fill_(0.5)
    network = OpenNetwork((8, 8, 1), 3, 2, "tf32", 16.0, 10.0)
    network.start_from(plain)
    for name, value in plain.backbone.state_dict().items():
        assert torch.equal(network.backbone.state_dict()[name], value)
    assert torch.equal(network.embedding.hallucinator.weight, plain.head.weight)
    assert torch.equal(network.embedding.hallucinator.bias, plain.head.bias)


def test_a_learning_rate_on_the_device() -> None:
    lr = torch.tensor(0.1)
    ours, theirs = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    mine = SGD([ours], lr, 0.9, 0.01)
    other = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=0.01)
    for step in range(4):
        if step == 2:
            lr.fill_(0.01)
            other.param_groups[0]["lr"] = 0.01
        for parameter in (ours, theirs):
            parameter.grad = torch.tensor([1.0, -2.0, 3.0, float(step)])
        mine.step()
        other.step()
        assert torch.allclose(ours, theirs, rtol=1e-6)


# Configuration


def test_every_published_default() -> None:
    config = LongTailConfig()
    for name, value in {
        "epochs1": 30, "epochs2": 60, "lr1": 0.1, "lr2": 0.01, "lr_classifier": 0.1, "lr_centroids": 0.01,
        "batch_size": 128, "momentum": 0.9, "weight_decay": 5e-4, "samples_per_class": 4, "bins": 25, "share": 0.25,
        "decay_every1": 10, "decay_every2": 20, "cosine_scale": 16, "reach": 10, "centroid_weight": 0.01, "margin": 10,
        "repel_weight": 0.01, "reject_below": 0.1, "sigma": 0.5, "width": 64,
    }.items():  # fmt: skip
        assert getattr(config, name) == value, name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"imbalance": 50.0, "capture": False}, "imbalance=50.0 capture=false "),
        ({"crop_scale": 0.3}, "crop_scale=0.3 "),
        (dict.fromkeys(CUTTING, 0), ""),  # a dataset with lists of its own
    ],
)
def test_the_command_of_a_configuration(settings: dict[str, float], words: str) -> None:
    config = resolve("oltr", "cifar100", image_side=32, settings=settings | {"precision": "tf32"})
    assert command(config) == f"ocil longtail run oltr --dataset cifar100 --set {words}precision=tf32"
    typed = dict(word.split("=") for word in words.split()) | {"precision": "tf32"}
    again = resolve("oltr", "cifar100", image_side=32, settings=typed)
    assert (again == config) == bool(config.imbalance)
    assert "crop_scale=0.5" in command(
        resolve("oltr", "mine.npz", image_side=32)
    )  # how large its images are is not known


def test_what_shares_a_stage_1_and_what_names_a_cell() -> None:
    configs = [resolve(variant, "cifar100") for variant in VARIANTS]
    assert len({config.stage1.cell for config in configs}) == 1
    assert len({config.cell for config in configs}) == len(configs)
    ce, oltr = (configs[list(VARIANTS).index(name)] for name in ("ce", "oltr"))
    longer = {"epochs2": 90}
    assert resolve("ce", "cifar100", settings=longer).cell == ce.cell  # it has no stage 2
    assert resolve("bs", "cifar100", settings=longer).cell == resolve("bs", "cifar100").cell
    assert resolve("oltr", "cifar100", settings=longer).cell != oltr.cell
    assert resolve("oltr", "cifar100", settings=longer).stage1.cell == oltr.stage1.cell
    assert resolve("oltr", "cifar100", settings={"epochs1": 5}).stage1.cell != oltr.stage1.cell
    assert resolve("oltr", "cifar100", settings={"capture": "false"}).cell == oltr.cell
    assert resolve("oltr", "cifar100", seed=3).cell == oltr.cell
    others = {"alpha": "0.5", "gamma": "1", "mu": "0.5", "sigma": "0.2", "bins": "10", "share": "0.5"}
    others |= {"adjustment": "0.5"}
    has = {
        "ce": "",
        "bs": "adjustment",
        "oltr": "",
        "oltr-fl": "alpha gamma",
        "oltr-rfl": "alpha mu sigma",
        "oltr-rfld": "alpha sigma bins share",
    }
    for variant, names in has.items():  # a setting that a loss does not have makes no other run
        usual = resolve(variant, "cifar100").cell
        for name, value in others.items():
            assert (resolve(variant, "cifar100", settings={name: value}).cell != usual) == (name in names.split())
    assert LongTailConfig.from_json(oltr.to_json()) == oltr


def test_small_images_are_cropped_less() -> None:
    assert resolve("oltr", image_side=32).crop_scale == 0.5
    assert resolve("oltr", image_side=84).crop_scale == 0.08
    assert resolve("oltr", image_side=32, settings={"crop_scale": "0.2"}).crop_scale == 0.2
    assert resolve("oltr", image_side=32, settings={"crop_scale": None, "lr1": None}) == resolve("oltr", image_side=32)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"epoch1": 3}, "epochs1"),
        ({"epochs2": 0}, "epochs2"),
        ({"lr1": "fast"}, "lr1"),
        ({"imbalance": 0.5}, "imbalance"),
        ({"batch_size": 30, "samples_per_class": 4}, "multiple"),
        ({"open_share": 1}, "open_share"),
        ({"precision": "fp8"}, "precision"),
        ({"seed": 3}, "seed"),
        ({"jitter": 2}, "jitter"),
        ({"mu": -1}, "mu"),
        ({"adjustment": -1}, "adjustment"),
        ({"jitter": -1}, "jitter = -1.0 must be from 0 to 1"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, object], word: str) -> None:
    with pytest.raises(OcilError, match=word):
        resolve("oltr", settings=settings)
    with pytest.raises(OcilError, match="Did you mean 'oltr-rfl"):
        resolve("oltr-rfd")
