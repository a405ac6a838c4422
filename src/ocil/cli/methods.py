"""``ocil methods``: the methods, and the settings of one."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ocil.cli import console
from ocil.cli.names import METHOD
from ocil.cli.options import Json

NARROW = 110
"""Columns of a terminal below which a table leaves out what matters least."""
TITLES = {
    "method": "Settings of {name} alone",
    "common": "Settings of all methods",
    "stream": "Settings of the stream",
}


def methods(name: Annotated[str | None, METHOD] = None, /, *, as_json: Json = False) -> None:
    """List the methods, or every setting of one with its default, the values it takes and its meaning.

    Any setting is given as `--set NAME=VALUE`. Every method has the settings `network`, `pretrained`, `freeze` and
    `optimizer`: see `ocil networks`.

    Examples: `ocil methods`, `ocil methods afs`, then `ocil run afs --set beta=0.2 views=one`

    Parameters
    ----------
    name
        A method whose settings to show.
    """
    from ocil.methods import METHODS, method

    if name is not None:
        _print_settings(method(name).name, _settings_of(name), as_json)
        return
    if as_json:
        names = ("name", "summary", "paper", "memory", "needs_task_ends", "offline", "capturable")
        console.print_json({"methods": [{n: getattr(info, n) for n in names} for info in METHODS.values()]})
        return
    columns = 3 if console.stdout().width < NARROW else 5
    rows = []
    for info in METHODS.values():
        yes_no = ["yes" if flag else "no" for flag in (info.needs_task_ends, info.capturable)]
        rows.append((info.name, info.summary, info.paper, *yes_no)[:columns])
    titles = ("name", "what it does", "paper", "needs task ends", "capturable")
    console.print_table(titles[:columns], rows, lines="head" if columns == 3 else "all")
    console.print_line("`ocil methods afs` shows the settings of one.")
    if columns == 5:
        console.print_line("capturable: on a GPU its steps run as CUDA graphs, so that many seeds share the GPU.")


def _print_settings(name: str, settings: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        console.print_json({"settings": settings})
        return
    from ocil.methods import method

    info = method(name)
    console.print_line(f"{name}: {info.summary}")
    if info.paper != "-":
        console.print_line(f"Paper: {info.paper}")
    if info.is_ours:
        console.print_line(f"Page: docs/methods/{name}.md")
    for part, title in TITLES.items():
        rows = []
        for setting in (each for each in settings if each["part"] == part):
            values = setting.get("by_dataset", {"": setting["default"]})
            default = "\n".join(f"{_text(value)}  {dataset}".rstrip() for dataset, value in values.items())
            choices = f" One of: {', '.join(setting['choices'])}." if "choices" in setting else ""
            rows.append((setting["name"], default, setting["meaning"].replace("``", "") + choices))
        if rows:
            console.print_table(("setting", "default", "meaning"), rows, title.format(name=name))


def _settings_of(name: str) -> list[dict[str, Any]]:
    """Name, default and meaning of every field, a method's own first, then the stream's.

    If the default depends on the dataset, ``by_dataset`` has it for each. ``choices`` are the values of a setting that
    takes only some. ``part``: whether this method alone, every method or the stream has the setting.
    """
    from ocil.data import CATALOG
    from ocil.methods import method
    from ocil.methods.config import LearnerConfig
    from ocil.runs.config import resolve
    from ocil.runs.settings import meanings
    from ocil.streams import StreamConfig

    runs = {dataset: resolve(name, dataset) for dataset in CATALOG}
    shared = {f.name for f in fields(LearnerConfig)}
    found: list[dict[str, Any]] = []
    for part, config in (("learner", method(name).learner_class.Config), ("stream", StreamConfig)):
        texts, hints = meanings(config), get_type_hints(config)
        for f in fields(config):
            values = {dataset: getattr(getattr(run, part), f.name) for dataset, run in runs.items()}
            place = "stream" if part == "stream" else "common" if f.name in shared else "method"
            default = f.default if f.default_factory is MISSING else f.default_factory()
            setting = {"name": f.name, "default": default, "meaning": texts.get(f.name, ""), "part": place}
            if any(value != other for value, other in pairwise(values.values())):
                setting["by_dataset"] = values
            if get_origin(hints[f.name]) is Literal:
                setting["choices"] = [str(value) for value in get_args(hints[f.name])]
            found.append(setting)
    return found


def _text(value: object) -> str:
    """A default as ``--set`` takes it; a dash if there is none."""
    from ocil.runs.settings import as_argument

    return as_argument(value) or "-"
