"""The methods by name. A new method is a file in this folder and an entry here, or comes from a plugin.

``base``          the learner, from which every method derives. It explains what is in ``config``, ``growth``,
                  ``capturable``, ``passes``, ``recorded_losses`` and ``verbs``
``review_label``  labels such as ``er-rv``

What several methods share is in modules whose names begin with ``_``.

Examples:
    >>> ocil.METHODS["afs"].paper
    'Liang et al., TCSVT 2023'
    >>> ocil.METHODS["afs"].load().__name__
    'AFS'
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocil.errors import OcilError
from ocil.methods.review_label import Label
from ocil.plugins import Registry, spelling

if TYPE_CHECKING:
    from ocil.methods.base import Learner


@dataclass(frozen=True)
class MethodInfo:
    """The facts about a method that are known without importing it.

    Examples:
        >>> class Mine(ocil.METHODS["er"].load()):
        ...     pass
        >>> ocil.register(ocil.MethodInfo("mine", Mine, "like er", "-"))
        >>> ocil.resolve("mine", memory=100).label
        'mine'
    """

    name: str
    target: "str | type[Learner]"
    """``module:Class`` inside this package, or a class from anywhere."""
    summary: str
    paper: str
    memory: bool = True
    """Whether it keeps images for replay."""
    needs_task_ends: bool = False
    offline: bool = False
    """Whether it sees the data mixed and many times: then it is a bound, not an online method."""
    capturable: bool = True
    """Whether a step with static shapes can be captured as a CUDA graph, see ``ocil.methods.capturable``."""

    @property
    def is_ours(self) -> bool:
        """Whether it comes with ocil, which has a page about it."""
        return isinstance(self.target, str)

    def load(self) -> "type[Learner]":
        """The class of the method, imported on first use."""
        if not isinstance(self.target, str):
            return self.target
        module, name = self.target.split(":")
        learner: type[Learner] = getattr(import_module(f"ocil.methods.{module}"), name)
        return learner

    @property
    def learner_class(self) -> "type[Learner]":
        """What ``load`` returns."""
        return self.load()


_BUILT_IN = (
    MethodInfo(
        "afs",
        "afs:AFS",
        "revised focal loss, virtual distillation, augmented replay, review",
        "Liang et al., TCSVT 2023",
    ),
    MethodInfo(
        "stride", "stride:Stride", "our own: small steps, random views, logits adjusted by label frequency", "-"
    ),
    MethodInfo("er", "er:ER", "replay of random memory samples", "Chaudhry et al., ICML Workshop 2019"),
    MethodInfo(
        "agem",
        "agem:AGEM",
        "steps that do not raise the loss of a memory batch",
        "Chaudhry et al., ICLR 2019",
        needs_task_ends=True,
    ),
    MethodInfo("gss", "gss:GSS", "replay from a memory of differing gradients", "Aljundi et al., NeurIPS 2019"),
    MethodInfo(
        "gdumb",
        "gdumb:GDumb",
        "a balanced memory, and a new network trained on it at each task's end",
        "Prabhu et al., ECCV 2020",
        needs_task_ends=True,
    ),
    MethodInfo("mir", "mir:MIR", "replay of the samples that the step would harm most", "Aljundi et al., NeurIPS 2019"),
    MethodInfo(
        "er-ace", "er_ace:ERACE", "replay; new samples do not push old classes down", "Caccia et al., ICLR 2022"
    ),
    MethodInfo("dvc", "dvc:DVC", "two views that agree, replay of the largest gradient change", "Gu et al., CVPR 2022"),
    MethodInfo(
        "ocm",
        "ocm:OCM",
        "contrast of rotated views, distillation from the last task's model",
        "Guo et al., ICML 2022",
        needs_task_ends=True,
    ),
    MethodInfo(
        "scr", "scr:SCR", "supervised contrastive replay, nearest class mean, review", "Mai et al., CVPR Workshop 2021"
    ),
    MethodInfo(
        "aser",
        "aser:ASER",
        "replay and storage by the Shapley value of a nearest-neighbour classifier",
        "Shim et al., AAAI 2021",
    ),
    MethodInfo(
        "aaer",
        "aaer:AAER",
        "our own reconstruction: replay pulled to class anchors, drift-compensated centres",
        "after Lin et al., TCSVT 2022",
        needs_task_ends=True,
    ),
    MethodInfo(
        "pcr",
        "pcr:PCR",
        "replay in which features are contrasted with class proxies; HPCR by a setting",
        "Lin et al., CVPR 2023",
    ),
    MethodInfo(
        "derpp",
        "derpp:DERPlusPlus",
        "DER++: replay that also keeps the logits that images had when they were stored",
        "Buzzega et al., NeurIPS 2020",
    ),
    MethodInfo(
        "rar",
        "rar:RAR",
        "replay of each stream batch several times, with RandAugment and new memory batches",
        "Zhang et al., NeurIPS 2022",
    ),
    MethodInfo(
        "mkd",
        "mkd:MKD",
        "replay with distillation from a moving average of the network",
        "Michel et al., ICML 2024",
    ),
    MethodInfo(
        "ccl-dc",
        "ccl_dc:CCLDC",
        "replay by two networks that learn from each other, on views that are harder and harder",
        "Wang et al., CVPR 2024",
    ),
    MethodInfo(
        "mose",
        "mose:MOSE",
        "experts on every stage of the network, contrast and balanced replay, nearest class means",
        "Yan et al., CVPR 2024",
        needs_task_ends=True,
    ),
    MethodInfo(
        "gsa",
        "gsa:GSA",
        "balanced replay, each class weighed by how it was pulled and pushed so far",
        "Guo et al., CVPR 2023",
        needs_task_ends=True,
    ),
    MethodInfo("ncm", "ncm:NCM", "frozen features: the nearest class mean", "Mensink et al., TPAMI 2013", memory=False),
    MethodInfo(
        "slda",
        "slda:SLDA",
        "frozen features: class means and one shared covariance",
        "Hayes et al., CVPR Workshop 2020",
        memory=False,
    ),
    MethodInfo(
        "ranpac",
        "ranpac:RanPAC",
        "frozen features: random projection and ridge regression",
        "McDonnell et al., NeurIPS 2023",
        memory=False,
        capturable=False,
    ),
    MethodInfo("fine-tune", "fine_tune:FineTune", "no defence against forgetting: the lower bound", "-", memory=False),
    MethodInfo(
        "iid-offline",
        "fine_tune:FineTune",
        "all data mixed, 50 epochs: the upper bound",
        "-",
        memory=False,
        offline=True,
    ),
)


def _read(name: str, found: Any) -> Iterable[MethodInfo]:
    """The methods of an entry point: a ``MethodInfo``, a class, or a function that returns several of the former."""
    from ocil.methods.base import Learner

    if isinstance(found, type) and issubclass(found, Learner):
        first = (found.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        found = MethodInfo(spelling(name), found, first or found.__name__, "-")
    elif callable(found):
        found = found()
    infos = [found] if isinstance(found, MethodInfo) else list(found)
    for info in infos:
        if not isinstance(info, MethodInfo):
            raise TypeError(f"{info!r} is not a MethodInfo")
        check(info)
    return infos


METHODS: Registry[MethodInfo] = Registry("method", "ocil.methods", _BUILT_IN, _read, spelling)


def register(info: MethodInfo, replace: bool = False) -> None:
    """Register a method of your own: everything that takes the name of a method then takes this one.

    It is known to this process; in a plugin file (see ``ocil.plugins``) also to worker processes. ``replace`` allows a
    name that is taken, for example when a notebook's cell is run again. Raises an ``OcilError`` if the name is taken or
    is not a valid name, or if the class or its config class is not one of a method.
    """
    check(info)
    METHODS.register(info, replace)


def check(info: MethodInfo) -> None:
    """Raise an ``OcilError`` if an entry from outside has a wrong name, class or config class."""
    from ocil.methods.base import Learner
    from ocil.methods.config import check_config_class

    check_name(info)
    try:
        learner: Any = info.load()
    except (ImportError, AttributeError, ValueError):
        raise OcilError(f"ocil has no class '{info.target}': give the method '{info.name}' its class itself.") from None
    if not (isinstance(learner, type) and issubclass(learner, Learner)):
        raise OcilError(f"the method '{info.name}' must be a subclass of ocil.Learner, not {learner!r}.")
    check_config_class(learner.Config, learner.__name__)


def check_name(info: MethodInfo) -> None:
    """Raise if a method's name cannot be part of a label and a folder."""
    if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", info.name):
        raise OcilError(f"a method's name has small letters and digits, and '-' between them, not '{info.name}'.")
    if Label.parse(info.name).review is not None:
        raise OcilError(f"'{info.name}' is how tables name a method with or without reviews: choose another name.")


def method(name: str) -> MethodInfo:
    """The entry of a method. The name may be written with ``_`` or capitals."""
    if not isinstance(name, str):
        raise OcilError(f"a method is given by its name, such as 'er', not by a {type(name).__name__}.")
    if (info := METHODS.find(name)) is None:
        label = Label.parse(name)
        if label.review is not None and METHODS.find(label.method) is not None:
            value = str(label.review).lower()
            raise OcilError(
                f"{name} is the method {label.method} with review = {value}: name the method, and give that setting "
                f"(--set review={value})."
            )
        raise METHODS.unknown(name)
    return info
