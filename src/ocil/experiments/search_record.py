"""The record of a search: what was tried, what came out, and the commands that repeat it, as a JSON file."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ocil.engines.job import Outcomes
from ocil.evaluation.measures import estimate_json
from ocil.experiments.search import Choice, Search
from ocil.experiments.search_space import as_texts, text_of_value
from ocil.runs.config import command, plugin_words
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result, write_json

SCHEMA = 1
RECORD = "tuning.json"


def record_of(
    search: Search, outcomes: Outcomes, choice: Choice, failed: Sequence[str] = (), repeat: str = ""
) -> dict[str, Any]:
    """The search and its results, as JSON. ``repeat``: the command that repeats it, see ``repeat_command``."""
    return {
        "schema": SCHEMA,
        "search": search.digest,
        "method": choice.config.label,
        "dataset": search.dataset,
        "memory": choice.config.learner.memory,
        "settings": as_texts(search.space.settings),
        "grid": _grid_of(search),
        "tasks": [list(classes) for classes in search.split.tasks],
        "train_images": search.samples[0] if len(set(search.samples)) == 1 else search.samples,
        "validation_images": len(search.split.data.test_y),
        "validation_share": search.validation,
        "data": {"path": str(search.data_path), "fingerprint": search.split.data.fingerprint},
        "seeds": search.seeds,
        "scores": [
            {
                "values": as_texts(point),
                "accuracy": estimate_json(score),
                "runs": [str(RunFolder.of(search.out, config).path) for config in cell.configs],
            }
            for point, score, cell in zip(search.points, search.scores(outcomes), search.cells, strict=True)
        ],
        "chosen": as_texts(choice.point),
        "close": [as_texts(point) for point in choice.close],
        "note": choice.note,
        "failed": list(failed),
        "command": f"{command(choice.config)} --seeds 10",
        "repeat": repeat,
        "environment": environment_of(list(chain(*search.results(outcomes)))),
    }


def _grid_of(search: Search) -> dict[str, list[str]]:
    """The values that were tried, as text."""
    return {name: [text_of_value(value) for value in values] for name, values in search.space.values.items()}


def save_record(search: Search, record: Mapping[str, Any]) -> Path:
    """Write the record. A record of another search, or of other seeds, in its place is renamed first."""
    path = search.out / RECORD
    set_aside(path, record, search.former_digest)
    write_json(path, record)
    return path


def repeat_command(search: Search, options: Mapping[str, Any]) -> str:
    """The command that repeats a search. ``options`` are further ones, None where they were not given."""
    space = search.space
    own = {
        "memory": space.memory,
        "grid": [f"{name}={','.join(values)}" for name, values in _grid_of(search).items()],
        "tasks": search.tasks,
        "seeds": search.seeds,
        "validation": search.validation,
        "set": [f"{name}={text}" for name, text in as_texts(space.settings).items()],
    }
    words = ["ocil", "tune", space.method, "--dataset", search.dataset]
    for name, value in {**own, **options}.items():
        if value not in (None, []):
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    review = {None: [], True: ["--review"], False: ["--no-review"]}[space.review]
    return " ".join([shlex.join([*words, *review]), *plugin_words(search.configs[0])])


def set_aside(path: Path, record: Mapping[str, Any], former: str) -> None:
    """Rename a record of another search, or of other seeds, that is in the place of the new one.

    ``former``: the digest of the same search in records from when digests covered the defaults.
    """
    if not path.is_file():
        return
    old = path.read_bytes()
    try:
        known = json.loads(old)
        if known["search"] in (record["search"], former) and known["seeds"] == record["seeds"]:
            return
    except (ValueError, KeyError, TypeError):  # perhaps a record of an earlier version
        pass
    path.rename(path.with_name(f"tuning-{hashlib.sha256(old).hexdigest()[:8]}.json"))


def environment_of(results: Sequence[Result]) -> dict[str, str]:
    """The environment of the runs, values joined by + where they differ, and when the last one finished."""
    found = [result.environment for result in results]
    names = ("ocil", "python", "torch", "device", "threads")
    content = {name: " + ".join(dict.fromkeys(str(one.get(name, "unknown")) for one in found)) for name in names}
    return content | {"finished": max(str(one.get("finished", "")) for one in found)}
