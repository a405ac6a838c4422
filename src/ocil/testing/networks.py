"""What every network promises. docs/adding-a-network.md explains how to write one."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.learning import losses
from ocil.methods.config import Problem
from ocil.methods.er import ER, ERConfig
from ocil.networks import NETWORKS, NOT_MET, Network, NetworkInfo, build, meet, network, to_float
from ocil.networks.inputs import InputShape, is_image
from ocil.networks.spec import Spec
from ocil.testing.contract import Check, Promises, must, run_all
from ocil.testing.subject import changed, frozen, same
from ocil.testing.watch import watched

IMAGE, VECTOR = (32, 32, 3), (16,)
CLASSES, BATCH = 4, 6

promise: "Promises[NetworkSubject]" = Promises()


class NetworkSubject:
    """A network under test, and inputs for it."""

    def __init__(self, target: "str | NetworkInfo | Callable[..., nn.Module]", input_shape: InputShape | None) -> None:
        self.is_named = isinstance(target, str)
        if isinstance(target, str):
            self.spec, self.info = target, network(Spec.parse(target, "network").name)
        else:
            given = target if isinstance(target, NetworkInfo) else None
            if given is None and (not callable(target) or isinstance(target, nn.Module)):
                raise OcilError(f"a network is checked by its factory, NetworkInfo or name, not by {str(target)[:60]}.")
            self.info = given or NetworkInfo("checked", target, "a factory", "any")  # type: ignore[arg-type]
            self.spec = self.info.name
        self.input_shape: InputShape = input_shape or (VECTOR if self.info.inputs == "vectors" else IMAGE)
        generator = torch.Generator().manual_seed(0)
        shape = (2 * BATCH, *self.input_shape)
        if is_image(self.input_shape):
            self.stored = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        else:
            self.stored = torch.randn(shape, generator=generator)
        self.labels = torch.arange(2 * BATCH) % CLASSES

    def __str__(self) -> str:
        return self.spec

    @property
    def x(self) -> Tensor:
        """Inputs as a network takes them."""
        return to_float(self.stored)

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Inside the block the network can be built by its name."""
        with NETWORKS.preserved():
            if not self.is_named:
                NETWORKS.register(self.info, replace=True)
            yield

    def make(self, seed: int = 0, **options: Any) -> Network:
        with self.registered():
            return build(self.input_shape, CLASSES, 4, seed, spec=self.spec, **options)

    def learner(self) -> ER:
        with self.registered():
            config = ERConfig(memory=8, memory_batch=5, width=4, lr=0.01, network=self.spec)
            return ER(config, Problem(self.input_shape, CLASSES, self.stored.dtype))


def network_checks(
    target: str | NetworkInfo | Callable[..., nn.Module], input_shape: InputShape | None = None
) -> list[Check[NetworkSubject]]:
    """The checks of a network, given as the setting ``network`` is, as a ``NetworkInfo`` or as a factory.

    ``input_shape`` is (height, width, channels) or (length,); by default images of 32x32 or vectors of 16.
    """
    return promise.checks(NetworkSubject(target, input_shape))


def check_network(target: str | NetworkInfo | Callable[..., nn.Module], input_shape: InputShape | None = None) -> None:
    """Run all ``network_checks``. Raises ``ContractError`` with one line for each promise that is not kept.

    An error that stops several checks has one line, which names them.
    """
    run_all(network_checks(target, input_shape))


@promise("It turns inputs [B, C, H, W], or [B, D], into float32 features [B, d], and these into [B, classes].")
def shapes(it: NetworkSubject) -> None:
    made = it.make()
    features = made.features(it.x)
    expected = (len(it.x), made.feature_size)
    must(features.shape == expected, f"features are {list(features.shape)}, not {list(expected)}")
    must(features.dtype == torch.float32, f"features are {features.dtype}")
    must(made(it.x).shape == (len(it.x), CLASSES), f"scores are {list(made(it.x).shape)}")


@promise("Its initial weights come from PyTorch's generator, so that the seed decides them.")
def seeds(it: NetworkSubject) -> None:
    before = torch.get_rng_state()
    first, again, other = (it.make(seed).state_dict() for seed in (0, 0, 1))
    must(torch.equal(torch.get_rng_state(), before), "the global generator was moved")
    must(not changed(first, again), "two networks of one seed differ")
    must(changed(first, other), "networks of two seeds are equal")


@promise("Training draws no random number, as dropout does: a run could not be resumed bit for bit.")
def no_random_numbers(it: NetworkSubject) -> None:
    made = it.make()
    before = torch.get_rng_state()
    made.train()(it.x)
    must(torch.equal(torch.get_rng_state(), before), "a forward pass moved PyTorch's global generator")


@promise("In evaluation mode features of an input do not depend on its neighbours, and nothing changes.")
def evaluation_is_pure(it: NetworkSubject) -> None:
    made = it.make().eval()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    x, kept = it.x, it.x.clone()
    with torch.no_grad():
        together, alone = made.features(x), made.features(x[:1])
    must(torch.allclose(alone, together[:1], rtol=1e-3, atol=1e-4), "an input alone has other features")
    must(torch.equal(x, kept), "the inputs were changed in place")
    must(not changed(before, made.state_dict()), "its state changed")


@promise("Every weight gets a finite gradient.")
def gradients(it: NetworkSubject) -> None:
    made = it.make()
    losses.cross_entropy(made(it.x), it.labels).backward()
    missing = [name for name, value in made.named_parameters() if value.requires_grad and value.grad is None]
    must(not missing, f"{', '.join(missing[:3])} has none")
    odd = [
        name for name, value in made.named_parameters() if value.grad is not None and not value.grad.isfinite().all()
    ]
    must(not odd, f"that of {', '.join(odd[:3])} is not finite")


@promise("A pass reads nothing back to the host and keeps its shapes, so that it can be captured as a CUDA graph.")
def steady_passes(it: NetworkSubject) -> None:
    made = it.make()
    x = it.x[:BATCH], it.x[BATCH:]

    def train(part: Tensor) -> None:
        made(part).sum().backward()

    train(x[0])
    first, second = (watched(lambda part=part: train(part)) for part in x)  # type: ignore[misc]
    must(first == second, "operations or shapes depend on the inputs")


@promise("All that it learns is in `state_dict()`: another one that loads it computes the same bits.")
def states(it: NetworkSubject) -> None:
    one, other = it.make(0), it.make(1)
    one(it.x)  # moves batch statistics
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        must(torch.equal(one.eval()(it.x), other.eval()(it.x)), "the other one computes something else")


@promise("It can be copied: some methods keep an earlier version of the network.")
def copies(it: NetworkSubject) -> None:
    made = it.make()
    twin = copy.deepcopy(made)
    must(torch.equal(made.eval()(it.x), twin.eval()(it.x)), "the copy computes something else")
    with torch.no_grad():
        next(iter(twin.parameters())).add_(1)
    must(changed(dict(made.state_dict()), dict(twin.state_dict())), "the copy shares its weights")


@promise("freeze=backbone keeps weights and batch statistics: only the head learns.")
def frozen_backbone(it: NetworkSubject) -> None:
    made = it.make(freeze="backbone")
    before = {name: value.clone() for name, value in made.state_dict().items()}
    losses.cross_entropy(made.train()(it.x), it.labels).backward()
    trained = [name for name, value in made.named_parameters() if value.grad is not None]
    must(all(name.startswith("head.") for name in trained), f"{', '.join(trained[:3])} got gradients")
    moved = sorted(changed(before, dict(made.state_dict())))
    must(not moved, f"{', '.join(moved[:3])} changed in a forward pass")


@promise("With classes that are not known in advance, a class that was not met scores -10,000.")
def growing_head(it: NetworkSubject) -> None:
    made = it.make(growing=True)
    meet(made, [1])
    scores = made(it.x)
    must(scores[:, [0, 2, 3]].eq(NOT_MET).all(), "a class that was not met has a score")
    must(scores.argmax(1).eq(1).all(), "the class that was met is not predicted")


@promise("Experience replay learns with it, and is resumed bit for bit.", slow=True)
def a_learner(it: NetworkSubject) -> None:
    learner, other = it.learner(), it.learner()
    for _ in range(2):
        learner.learn(it.stored[:BATCH], it.labels[:BATCH])
    must(int(learner.failed_at) == -1, f"the loss of step {int(learner.failed_at)} was not finite")
    other.load_state(frozen(learner))
    for each in (learner, other):
        each.learn(it.stored[BATCH:], it.labels[BATCH:])
        each.review()
    must(same(learner, other), "a learner that was resumed differs later")
