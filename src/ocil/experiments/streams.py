"""The stream of settings without a method: what a run with them would see."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ocil import data
from ocil.data import DEFAULT
from ocil.runs.config import refuse_beside_order, refuse_of_other_kinds, resolve_stream
from ocil.runs.settings import refuse_unknown
from ocil.seeds import check_seed
from ocil.streams import Stream, StreamConfig
from ocil.streams.config import usual_task_sizes


def stream_of(dataset: str | None, settings: Mapping[str, Any], seed: int = 0, data_dir: Path | None = None) -> Stream:
    """The stream of a dataset and settings, as ``ocil run`` completes them."""
    check_seed(seed)
    refuse_unknown("a stream", settings, {f.name for f in fields(StreamConfig)})
    loaded = data.load(dataset or DEFAULT, data_dir)
    facts = loaded.num_classes, loaded.num_domains, usual_task_sizes(loaded)
    config = resolve_stream(loaded.name, settings, *facts)
    refuse_beside_order(config, settings)
    refuse_of_other_kinds(config, settings)
    return Stream(loaded, config, seed)
