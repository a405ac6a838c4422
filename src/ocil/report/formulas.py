"""Figures that are computed from the losses and not measured."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ocil.evaluation.record_types import EASY, HARD
from ocil.report.style import PALETTE, Look, new_figure


def losses() -> Figure:
    """Loss, weight and gradient of cross-entropy and the two focal losses, from ``learning.losses``, with alpha 1."""
    import torch

    from ocil.learning import losses

    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    labels = torch.zeros(len(p), dtype=torch.int64)
    logits = torch.stack([torch.logit(p), torch.zeros_like(p)], dim=1).requires_grad_()  # p: the first class's softmax
    inputs = logits, labels
    kinds = {
        "CE": losses.cross_entropy(*inputs, reduction="none"),
        "FL, γ = 2": losses.focal(*inputs, alpha=1.0, reduction="none"),
        "RFL, μ = 0.3, σ = 0.5": losses.revised_focal(*inputs, alpha=1.0, reduction="none"),
    }
    plain = kinds["CE"].detach()
    figure, panels = new_figure(8.4, 3.3, columns=3)
    for number, (name, values) in enumerate(kinds.items()):
        look = Look.number(number)
        (gradient,) = torch.autograd.grad(values.sum(), logits, retain_graph=True)
        values = values.detach()
        for axes, curve in zip(panels, (values, values / plain, -gradient[:, 0]), strict=True):
            axes.plot(p.numpy(), curve.numpy(), color=look.colour, linewidth=1.6, label=name)
    for axes, title in zip(panels, ("loss", "weight: loss / CE", "gradient at the true logit, size"), strict=True):
        axes.axvspan(HARD, EASY, color="#e69f00", alpha=0.1, linewidth=0)
        axes.set(xlabel="score of the true class", title=title, xlim=(0, 1))
        axes.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def label_distribution() -> Figure:
    """The target that each regulariser pulls to, read from the gradient of ``ocil.learning.losses`` at equal logits."""
    import torch

    from ocil.learning import losses

    classes, true, temperature = 10, 3, 20.0  # the caption of the figure names the first two
    labels = torch.tensor([true])

    def target(loss: Callable[..., Any], scale: float) -> NDArray[np.float64]:
        logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(logits, labels), logits)
        return np.asarray(1 / classes - gradient[0].numpy() / scale)

    distill = target(lambda z, y: losses.virtual_distillation(z, y, beta=1.0, temperature=temperature), temperature)
    smooth = target(losses.label_smoothing, 1.0)
    figure, panels = new_figure(7.2, 3.0, columns=2)
    for axes, values, name in zip(panels, (smooth, distill), ("LSR", f"VKD, T = {temperature:g}"), strict=True):
        colours = [PALETTE[1] if c == true else PALETTE[0] for c in range(classes)]
        axes.bar(range(classes), values, color=colours, width=0.75)
        axes.set(title=f"{name}: {values[true]:.4f} and {values[0]:.4f}", xlabel="class")
        axes.set_xticks(range(classes), [f"C{c}" for c in range(classes)])
        axes.grid(False, axis="x")
    panels[0].set_ylabel("probability in the target")
    return figure
