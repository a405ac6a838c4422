"""The configuration of a class-incremental run, and how it is completed from a few names and settings."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ocil.data import CATALOG, DEFAULT, Dataset, load_once
from ocil.data.catalog import SOURCES, find
from ocil.data.derived import base_of
from ocil.errors import OcilError
from ocil.files import path_or_none
from ocil.methods import METHODS, MethodInfo, method
from ocil.methods.config import LearnerConfig
from ocil.methods.review_label import Label
from ocil.networks import pretrained
from ocil.networks.registry import REDUCED, canonical_spec, origin_of, spec_of
from ocil.networks.spec import Spec
from ocil.plugins import OURS, PROGRAM, Origin
from ocil.precision import Precision
from ocil.rng import check_seed
from ocil.runs.defaults import usual_lr, usual_precision, usual_reviews, usual_settings
from ocil.runs.naming import NameCache, as_formerly, cell_name, distinct, readable, short_digest
from ocil.runs.settings import (
    as_argument,
    fill,
    read_as,
    refuse_later,
    refuse_no_dictionary,
    refuse_unknown,
    restored,
    values,
)
from ocil.streams import KINDS, StreamConfig, usual_tasks
from ocil.streams.config import usual_task_sizes
from ocil.streams.kinds import settings_of_others

if TYPE_CHECKING:
    from ocil.methods.base import Learner

_names = NameCache(10_000)  # see RunConfig._named


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run. Runs with equal configurations have equal results on the same kind of device.

    ``ocil.resolve`` makes one with published settings filled in.

    Examples:
        >>> config = ocil.resolve("er", memory=50, review=True)
        >>> config.label, config.learner.memory, config.stream.tasks
        ('er-rv', 50, 5)
    """

    method: str
    dataset: str = DEFAULT
    """A name, or the path of a prepared .npz file."""
    seed: int = 0
    stream: StreamConfig = field(default_factory=StreamConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    fingerprint: str = ""
    """Digest of a dataset outside the catalog: other images under the same name make another run."""
    weights: str = ""
    """Digest of the file of pretrained weights, which stands for its path: another file makes another run."""
    code: str = ""
    """Digest of the plugin files that the run's method and network come from: a changed file makes another run."""
    made_for: str = field(default="", compare=False, repr=False)
    """Digest of the dataset itself, if ``resolve`` was given one and no name. It is not part of what a run is; another
    dataset that is found under the same name is refused."""

    def __post_init__(self) -> None:
        info, learner = method(self.method), self.learner
        object.__setattr__(self, "seed", check_seed(self.seed))
        refuse_without_task_ends(info, learner, self.stream)
        if not info.memory:
            return
        for name, least in (("batch_size", self.stream.batch_size), ("memory_batch", learner.memory_batch)):
            if learner.memory < least:
                raise OcilError(
                    f"{self.method}: memory = {learner.memory} is smaller than {name} = {least}: "
                    f"give a memory of {least} or more, or a smaller {name} (--set {name}=...)."
                )

    def __hash__(self) -> int:
        """Equal configurations have equal hashes. A setting of a user's own method may be a list, which has no hash."""
        own = (value if isinstance(value, int | float | str) else repr(value) for value in vars(self.learner).values())
        return hash(
            (self.method, self.dataset, self.seed, self.stream, self.fingerprint, self.weights, self.code, *own)
        )

    @property
    def learner_class(self) -> "type[Learner]":
        """The class of the method."""
        return method(self.method).learner_class

    @property
    def label(self) -> str:
        """How tables name it: ``er-rv`` is ER with the review trick. AFS has it by definition."""
        review = self.learner.review
        defined = self.learner_class.Config.review  # the default of the field
        return str(Label(self.method, None if review == defined else review))

    @property
    def settings(self) -> dict[str, Any]:
        """The method, and what differs from the defaults of ``StreamConfig`` and of the method's config class."""
        learner = distinct(self.learner)
        if self.weights:
            learner["pretrained"] = self.weights
        stream = distinct(self.stream)
        stream.pop("order", None)  # its digest stands for the path
        return {"method": self.method, "stream": stream, "learner": learner}

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes the run: settings, seed and images, by their fingerprint or else the dataset's name."""
        images = {"images": self.fingerprint} if self.fingerprint else {"dataset": self.dataset}
        code = {"code": self.code} if self.code else {}
        return self.settings | images | code | {"seed": self.seed}

    @property
    def cell(self) -> str:
        """The folder that the runs of all seeds share: a name for all settings but the seed."""
        return self._named("cell", lambda words: cell_name(self.dataset, f"-{readable(words)}", self.identity))

    @property
    def former_cell(self) -> str:
        """The name that ``cell`` had when its digest covered every setting and the path of the images."""

        def name(words: str) -> str:
            return f"{Path(self.dataset).stem}-{words}-{short_digest(self.as_formerly() | {'seed': None})}"

        return self._named("former cell", name)

    def _named(self, kind: str, make: Callable[[str], str]) -> str:
        """The name that ``make`` gives, computed once for all seeds: a large sweep asks for thousands of names."""
        words = self._words
        parts = (self.dataset, repr(self.stream), repr(self.learner), self.fingerprint, self.weights, self.code)
        return _names.get((kind, words, type(self.learner), self.method, *parts), lambda: make(words))

    def as_formerly(self) -> dict[str, Any]:
        """The settings that the digests of former names covered."""
        return self.to_json() | {"stream": as_formerly(self.stream), "learner": as_formerly(self.learner)}

    @property
    def _words(self) -> str:
        return f"{self.label}-m{self.learner.memory}" if self.learner.memory else self.label

    def to_json(self) -> dict[str, Any]:
        """Every setting, also those at their default: a later version may have another default."""
        content = asdict(self)
        del content["made_for"]
        content["stream"] = {key: list(v) if isinstance(v, tuple) else v for key, v in content["stream"].items()}
        return {key: value for key, value in content.items() if value or key not in ("fingerprint", "weights", "code")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunConfig":
        """The configuration that ``to_json`` made, maybe in an earlier version."""
        info = method(content["method"])
        refuse_later(cls, content)
        if not isinstance(content["dataset"], str):
            raise OcilError(f"dataset = {content['dataset']!r} is not a name")
        return cls(
            info.name,
            content["dataset"],
            content["seed"],
            restored(StreamConfig, content["stream"]),
            restored(info.learner_class.Config, content["learner"]),
            content.get("fingerprint", ""),
            content.get("weights", ""),
            content.get("code", ""),
        )

    def identified(self, dataset: Dataset) -> "RunConfig":
        """The same run, known by the images of its dataset, unless the catalog has that dataset."""
        return self if self.dataset in CATALOG else replace(self, fingerprint=dataset.fingerprint)

    @property
    def by_name(self) -> "RunConfig":
        """The same run, known by the name of its dataset, as ``ocil.run`` wrote it before it looked at the images."""
        return replace(self, fingerprint="")

    @property
    def unmeasured(self) -> "RunConfig":
        """The same run, evaluated after each task alone. It learns the same."""
        return replace(self, stream=self.stream.unmeasured)

    @property
    def precision(self) -> Precision:
        """The precision in which a GPU computes."""
        return self.learner.precision

    def in_precision(self, chosen: Precision) -> "RunConfig":
        """The same run, computed in another precision."""
        return replace(self, learner=replace(self.learner, precision=chosen))

    def reference(self) -> "RunConfig":
        """The fine-tuned run that intransigence compares with: same stream, network and learning rate."""
        if self.method == "fine-tune" and self.stream == self.stream.unmeasured:
            return self
        optimised = ("lr", "momentum", "weight_decay", "optimizer")
        names = (*optimised, "network", "pretrained", "freeze", "features", "width", "precision")
        keep = {name: getattr(self.learner, name) for name in names}
        learner = method("fine-tune").learner_class.Config(**keep)
        code = code_of("fine-tune", learner)
        return replace(self, method="fine-tune", stream=self.stream.unmeasured, learner=learner, code=code)


def refuse_unresolved(config: object) -> None:
    """Raise if this is no configuration: a name, for example, or a list of them."""
    if not isinstance(config, RunConfig):
        raise OcilError(f"a run needs a configuration, not a {type(config).__name__}: ocil.resolve(...) makes one.")


class DatasetFacts(TypedDict, total=False):
    """What ``resolve`` should know about a dataset outside the catalog."""

    classes: int | None
    train: int | None
    vectors: bool
    domains: int
    task_sizes: tuple[int, ...]


def facts_of(dataset: Dataset) -> DatasetFacts:
    """The facts about a dataset, for ``resolve``."""
    return DatasetFacts(
        classes=dataset.num_classes,
        train=len(dataset.train_y),
        vectors=not dataset.is_images,
        domains=dataset.num_domains,
        task_sizes=usual_task_sizes(dataset),
    )


def resolve(
    name: str,
    dataset: str | Path | Dataset = DEFAULT,
    *,
    memory: int | None = None,
    review: bool | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    classes: int | None = None,
    train: int | None = None,
    vectors: bool = False,
    domains: int = 0,
    task_sizes: Sequence[int] = (),
    data_dir: Path | str | None = None,
) -> RunConfig:
    """Fill in every setting: the user's, else the published one for this dataset and memory, else the method's default.

    Args:
        name: A method from ``ocil.METHODS``.
        dataset: A name, or the path of a prepared file; or the dataset itself. If the catalog does not have it, the
            facts below are those of the dataset, unless it is not found.
        memory: Samples kept for replay.
        review: Whether the memory is reviewed at task ends.
        seed: What the stream, the weights and all random choices are drawn from.
        settings: Any field of the method's config or of ``StreamConfig`` by its name; strings are parsed, and None is
            the default (the text ``none`` is None, where a field may be that).
        classes: The number of classes: a dataset outside the catalog gets at most that many tasks.
        train: The number of training images: memory and reviews fit it.
        vectors: Whether inputs are vectors, which need another network and no views.
        domains: The number of domains of the dataset.
        task_sizes: The sizes of its usual tasks, if they are not equal.
        data_dir: The data folder in which a name is looked up; by default ``$OCIL_DATA``, else the user's.

    Raises:
        OcilError: There is no such method or setting, or a value is not allowed.

    Examples:
        >>> config = ocil.resolve("afs", "cifar100", memory=5000, settings={"beta": "0.2"})
        >>> config.stream.tasks, config.learner.beta
        (10, 0.2)
    """
    own = {"memory": memory, "review": review}
    settings = {} if settings is None else settings
    refuse_no_dictionary("settings", settings, "{'lr': 0.05}")
    given = {**settings, **{key: value for key, value in own.items() if value is not None}}
    sizes = read_as("task_sizes", task_sizes, tuple[int, ...])
    facts = DatasetFacts(classes=classes, train=train, vectors=vectors, domains=domains, task_sizes=sizes)
    if isinstance(dataset, Dataset):
        _refuse_other_facts(facts, known := facts_of(dataset))
        config = resolve_named(name, dataset.name, seed, given, **known)
        return replace(config, made_for=dataset.fingerprint).identified(dataset)
    if not any(facts.values()) and find(str(dataset)) is None:
        with suppress(OcilError):  # a run says why it is not found, or finds it elsewhere
            facts = facts_of(load_once(dataset, path_or_none(data_dir)))
    return resolve_named(name, str(dataset), seed, given, **facts)


def _refuse_other_facts(given: DatasetFacts, known: DatasetFacts) -> None:
    """Raise if a fact about a dataset was given that is not so. Tasks of one's own are a setting, not a fact."""
    for name, value in given.items():
        if value and value != known[name]:  # type: ignore[literal-required]
            advice = "leave it out"
            if name == "task_sizes":
                advice += ". Tasks of your own are a setting: settings={'task_sizes': ...}"
            raise OcilError(f"{name} = {value!r} is not so of this dataset: {advice}.")


def resolve_named(
    name: str,
    dataset: str,
    seed: int,
    settings: Mapping[str, Any],
    *,
    classes: int | None = None,
    train: int | None = None,
    vectors: bool = False,
    domains: int = 0,
    task_sizes: Sequence[int] = (),
) -> RunConfig:
    """``resolve`` for a dataset of which no more is known than what is given here, and what the catalog has."""
    info = method(name)
    if (entry := find(dataset)) is not None:
        dataset = entry.name  # CIFAR-10 has the settings of cifar10
    given = _given(info, settings)
    usual = usual_settings(info, dataset, given, classes, train, vectors)
    chosen = usual_precision(info, given) | usual | usual_lr(given) | given
    stream = resolve_stream(dataset, chosen, classes, domains, task_sizes)
    refuse_beside_order(stream, given)
    refuse_of_other_kinds(stream, given)
    learner = _with_one_width(fill(info.learner_class.Config, chosen), given)
    _refuse_without_effect(learner, given, usual)
    if not learner.review_every:
        entry = entry or find(base_of(dataset))  # cifar100:noise has the length of cifar100
        learner = replace(learner, review_every=usual_reviews(info, stream, entry.train if entry else train))
    weights, code = pretrained.digest(learner.pretrained), code_of(info.name, learner)
    return RunConfig(info.name, dataset, seed, stream, learner, weights=weights, code=code)


def _given(info: MethodInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a user gave, without those that are None, and with one way to write a network.

    Raises if there is no such setting, or if it needs a memory and the method keeps none.
    """
    of_stream, of_method = ({f.name for f in fields(kind)} for kind in (StreamConfig, info.learner_class.Config))
    for shared in sorted(of_stream & of_method):
        raise OcilError(f"{info.name} has a setting '{shared}', as streams have: give it another name.")
    refuse_unknown(info.name, settings, of_stream | of_method)
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given.keys() & {"network", "features"}:
        text = spec_of(given[key])  # Python users may give the factory itself
        given[key] = canonical_spec(text, key) if text else text
    for key in () if info.memory else ("memory", "review"):
        if str(given.get(key)).lower() not in ("none", "false", "no", "0"):
            raise OcilError(f"{info.name} keeps no memory: leave out {key}.")
    return given


def resolve_stream(
    dataset: str, given: Mapping[str, Any], classes: int | None = None, domains: int = 0, task_sizes: Sequence[int] = ()
) -> StreamConfig:
    """The settings of a stream, completed. See ``resolve`` for what may be known about the dataset."""
    given = dict(given)
    digest = given.pop("order_digest", "")  # found in the file
    chosen: dict[str, Any] = {"tasks": usual_tasks(dataset, classes)}
    if given.get("scenario") == "domain":
        chosen["tasks"] = domains or chosen["tasks"]
    elif task_sizes and not given.keys() & {"tasks", "task_sizes", "first_task", "order"}:
        chosen["task_sizes"] = tuple(task_sizes)
    stream = fill(StreamConfig, chosen | given)
    if digest and digest != stream.order_digest:
        what = f"order = {stream.order} as it is now" if stream.order else "a stream without order = FILE"
        raise OcilError(f"order_digest = {digest} does not belong to {what}: leave out order_digest.")
    if "tasks" in given and stream.tasks != read_as("tasks", given["tasks"], int) and not stream.order:
        raise OcilError(f"task_sizes has {stream.tasks} tasks, and tasks = {given['tasks']}: leave out tasks.")
    return stream


def refuse_beside_order(stream: StreamConfig, given: Mapping[str, Any]) -> None:
    """Raise if a setting was given, with another value, that ``order`` decides: all but those of evaluations."""
    if not stream.order:
        return
    evaluations, decided = concerns(StreamConfig, "evaluation"), StreamConfig(order=stream.order)
    for name, value in values(StreamConfig, given).items():
        if name not in evaluations | {"order"} and value != getattr(decided, name):
            raise OcilError(f"order = {stream.order} decides what arrives when: leave out {name} = {given[name]}.")


def refuse_of_other_kinds(stream: StreamConfig, given: Iterable[str]) -> None:
    """Raise if a setting was given, other than the default, that only other kinds of streams have."""
    for name in sorted(settings_of_others(stream.boundary) & set(given)):
        if getattr(stream, name) != getattr(StreamConfig, name):
            kinds = " or ".join(f"boundary={other}" for other, kind in KINDS.items() if name in kind.settings)
            raise OcilError(f"{name} has no effect with boundary = {stream.boundary!r}: give {kinds}, or leave it out.")


def _with_one_width(config: LearnerConfig, given: Mapping[str, Any]) -> LearnerConfig:
    """The same network with its width as a setting, so that both ways to write it make one cell.

    Raises if a width was given to another network, or two of them to this one.
    """
    spec = Spec.parse(config.network, "network")
    if "width" in given and spec.name != REDUCED:
        raise OcilError(f"width is a setting of {REDUCED}: give {config.network} its own options, NAME(option=value).")
    wide = spec.options.get("width", config.width)
    if "width" in given and wide != config.width:
        raise OcilError(f"network = {config.network} and width = {config.width} differ: leave out one of them.")
    if spec.name != REDUCED or list(spec.options) != ["width"] or type(wide) is not int or wide < 1:
        return config  # what it does not have is refused when it is built
    return replace(config, network=REDUCED, width=wide)


def _refuse_without_effect(config: LearnerConfig, given: Iterable[str], usual: Mapping[str, Any]) -> None:
    """Raise if a setting was given, other than ``usual``, whose field needs one (metadata ``needs``) that is off."""
    for field_ in fields(config):
        name, needed = field_.name, field_.metadata.get("needs")
        idle = needed and name in given and not getattr(config, needed)
        if idle and getattr(config, name) != usual.get(name, field_.default):
            raise OcilError(f"{name} has no effect without {needed} = true: give both, or neither.")


def origins(name: str, learner: LearnerConfig) -> list[Origin]:
    """Where the method and the network of a run come from, if not from ocil itself."""
    networks = [origin_of(spec) for spec in (learner.network, learner.features) if spec]
    found = [METHODS.origin(name), *networks]
    return [origin for origin in dict.fromkeys(found) if origin not in (OURS, PROGRAM)]


def code_of(name: str, learner: LearnerConfig) -> str:
    """``RunConfig.code``: empty unless the method or the network comes from a plugin file."""
    digests = sorted(origin.digest for origin in origins(name, learner) if origin.digest)
    return digests[0] if len(digests) == 1 else short_digest(digests) if digests else ""


def refuse_without_task_ends(info: MethodInfo, learner: LearnerConfig, stream: StreamConfig) -> None:
    """Raise if a method needs task ends that a stream does not announce. This is the only place that decides it.

    Reviews need none: without task ends they come every ``review_every`` batches, see ``reviews_every``.
    """
    if stream.announces_tasks:
        return
    advice = info.learner_class.why_task_ends(learner)
    if info.needs_task_ends:
        advice = "task_ends=announced gives them"
        if stream.boundary == "none":
            advice = "it has none. Choose another kind from: ocil stream kinds"
    if advice is not None:
        reason = f"{info.name} needs task ends, which a stream with {stream.lacks_ends} does not announce"
        raise OcilError(f"{reason}: {advice}." if advice else f"{reason}.")


def command(config: RunConfig, vectors: bool = False) -> str:
    """The command that runs a configuration, without its seeds. It names what differs from ``resolve``'s choice.

    ``vectors``: whether the inputs of its dataset are known to be vectors.
    """
    words = ["ocil", "run", config.method, "--dataset", shlex.quote(config.dataset)]
    if method(config.method).memory:
        words += ["--memory", str(config.learner.memory)]
    different = changed_settings(config, vectors)
    different["precision"] = config.learner.precision  # its default depends on the machine
    if "review" in different:
        words.append("--review" if different.pop("review") else "--no-review")
    return with_settings([*words, *plugin_words(config)], different)


def plugin_words(config: RunConfig) -> list[str]:
    """The options of a command that load the plugin files of a run, by their names without folders."""
    found = [*origins(config.method, config.learner), SOURCES.origin(config.dataset)]
    files = dict.fromkeys(origin.name for origin in found if origin.kind == "file")
    return [word for name in files for word in ("--plugin", shlex.quote(name))]


def with_settings(words: Sequence[str], settings: Mapping[str, Any]) -> str:
    """A command with settings behind ``--set``."""
    given = [shlex.quote(f"{name}={as_argument(value)}") for name, value in settings.items()]
    return " ".join([*words, *(["--set", *given] if given else [])])


def changed_settings(config: RunConfig, vectors: bool = False) -> dict[str, Any]:
    """Settings that differ from ``resolve``'s choice for the same method, dataset and memory. ``vectors``: see
    ``command``."""
    info = method(config.method)
    given = {"memory": config.learner.memory} if info.memory else {}
    usual = usual_settings(info, config.dataset, given, vectors=vectors or bool(config.learner.features))
    chosen = {"tasks": usual_tasks(config.dataset)} | usual | given
    if (entry := find(base_of(config.dataset))) and not chosen.get("review_every"):
        chosen["review_every"] = usual_reviews(info, config.stream, entry.train)
    usual_stream, usual_learner = fill(StreamConfig, chosen), fill(info.learner_class.Config, chosen)
    return {
        f.name: getattr(mine, f.name)
        for mine, theirs in ((config.stream, usual_stream), (config.learner, usual_learner))
        for f in fields(mine)
        if getattr(mine, f.name) != getattr(theirs, f.name)
    }


def for_seeds(words: str, seeds: Sequence[int]) -> str:
    """A command with the options that run all seeds from the first to the last of ``seeds``."""
    first = f" --seed {seeds[0]}" if seeds[0] else ""
    return f"{words} --seeds {seeds[-1] - seeds[0] + 1}{first}"


def concerns(config: type, *topics: str) -> set[str]:
    """The settings of a config class that concern one of these topics, by the metadata of their fields.

    Topics are ``memory``, ``review`` (see ``ocil.methods.config``), ``boundaries``, ``epochs`` and
    ``evaluation`` (see ``ocil.streams``). A subclass that gives a field another default does not have to repeat the
    metadata.
    """
    bases = filter(is_dataclass, config.__mro__)
    return {f.name for base in bases for f in fields(base) if f.metadata.get("concerns") in topics}


def memory_settings() -> set[str]:
    """The settings, of any method, that have no meaning for a method without a memory."""
    return set().union(*(concerns(info.learner_class.Config, "memory", "review") for info in METHODS.values()))
