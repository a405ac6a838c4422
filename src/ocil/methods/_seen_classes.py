"""Which classes have come, for the methods that treat those yet to come apart."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ocil.methods._tasks import StoredTasks
from ocil.methods.base import Learner


class SeesClasses(Learner):
    """A learner with ``seen_classes``, which its ``learn`` keeps up: a class that a correction brings has come too."""

    seen_classes: Tensor
    """Whether each class has come, in a stream batch or by a correction."""

    @torch.no_grad()
    def relabel(self, slots: Sequence[int], label: int) -> None:
        super().relabel(slots, label)
        if slots:
            self.seen_classes[label] = True


class SeesTaskClasses(SeesClasses):
    """Which also has ``task_classes``: a class that a sample of the present task gets counts as one of this task, for
    its logit is left in then.
    """

    task_classes: Tensor
    """Whether each class has come in the present task."""
    tasks: StoredTasks

    @torch.no_grad()
    def relabel(self, slots: Sequence[int], label: int) -> None:
        super().relabel(slots, label)
        if slots:
            self.task_classes[label] |= self.tasks.are(self.tasks_ended)[list(slots)].any()
