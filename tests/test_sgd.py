"""Our SGD against PyTorch's, bit for bit."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ocil.learning.sgd import SGD
from tests.forking import Forked


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_steps_of_pytorch(momentum: float, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,), (2, 3, 3))]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    mine = SGD(ours, 0.1, momentum, weight_decay)
    other = torch.optim.SGD(theirs, 0.1, momentum=momentum, weight_decay=weight_decay)
    for step in range(5):
        mine.zero_grad()
        other.zero_grad()
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if (step, number) != (0, 1):  # a parameter may have no gradient yet
                a.grad = torch.randn(a.shape, generator=generator)
                b.grad = a.grad.clone()
        mine.step()
        other.step()
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    assert len(mine.state()) == (len(ours) if momentum else 0)


def test_goes_on_from_its_state() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = SGD([parameter], 0.1, momentum=0.9)
    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    other = SGD([nn.Parameter(parameter.detach().clone())], 0.1, momentum=0.9)
    other.load_state(optimizer.state())
    other.parameters[0].grad = parameter.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(parameter, other.parameters[0])


def test_growth_keeps_the_momentum_of_a_single_number() -> None:
    """A network of one's own may have a scale beside its weights."""
    scale = nn.Parameter(torch.tensor(2.0))
    former = SGD([scale], 0.1, momentum=0.5)
    scale.grad = torch.tensor(4.0)
    former.step()
    grown = SGD([scale], 0.1, momentum=0.5)
    grown.go_on_from(former)
    grown.step()
    assert scale.item() == pytest.approx(2 - 0.1 * 4 - 0.1 * (0.5 * 4 + 4))


def test_a_step_does_not_load_the_compiler(fork_python: Callable[..., Forked]) -> None:
    code = """
import sys
import ocil
data = ocil.load_dataset()
learner = ocil.make_learner("er", data, width=2)
batch = next(iter(ocil.Stream(data)))
learner.learn(batch.x, batch.y)
print("torch._dynamo" in sys.modules)
"""
    out, err = (process := fork_python("-c", code)).communicate()
    assert (process.returncode, out.strip()) == (0, "False"), err
