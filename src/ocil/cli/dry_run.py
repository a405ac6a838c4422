"""What ``ocil sweep --dry-run`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocil.cli import console

if TYPE_CHECKING:
    from ocil.experiments.estimate import Forecast
    from ocil.experiments.files import Cell, Experiment
    from ocil.experiments.part import SweepPart
    from ocil.experiments.plan import FeaturesToCompute
    from ocil.runs.config import RunConfig

REFERENCES = (
    "References are fine-tuned on the same streams, and intransigence is measured against them; "
    "--no-reference leaves them out."
)


class DryRun:
    """What a sweep would run, and an estimate of how long it would take."""

    def __init__(
        self,
        experiment: "Experiment",
        forecast: "Forecast",
        missing: dict[str, str],
        features: "Sequence[FeaturesToCompute]",
        on_cluster: bool,
        part: "SweepPart | None" = None,
    ) -> None:
        from ocil.runs.stream_run import StreamRun

        self.experiment, self.forecast, self.plan, self.missing = experiment, forecast, forecast.plan, missing
        self.part = part
        self.features = [(each, self._seconds_of(each)) for each in features]
        wanted = {config for cell in experiment.cells for config in cell.configs}
        self.references = [config for config in self.plan.configs if config not in wanted]
        self.seconds = round(forecast.seconds(self.plan.configs), 1)
        self.source = forecast.estimator.source(self.plan.unfinished())
        if on_cluster:
            self.source += "; for this machine alone, not for the cluster"
        self.failed = [self.plan.describe(StreamRun(config), error) for config, error in self.plan.state.broken.items()]

    def to_json(self) -> dict[str, Any]:
        from ocil.runs.config import command

        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "about": self.experiment.about,
            "cells": [
                {
                    "label": cell.label,
                    **names(cell),
                    **self.plan.counts(cell.configs),
                    "seconds": round(self.forecast.seconds(cell.configs), 1),
                    "command": command(cell.config),
                }
                for cell in self.experiment.cells
            ],
            **self.plan.counts(self.plan.configs),
            "references": len(self.references),
            "features": [
                {"dataset": each.dataset, "network": each.encoder.network, "images": each.images, "seconds": seconds}
                for each, seconds in self.features
            ],
            "seconds": self.seconds,
            "estimate": self.source,
            **({} if self.part is None else {"part": self._part_json(self.part)}),
            "missing": [*self.missing.values()],
            "failed": self.failed,
        }

    def print(self) -> None:
        from ocil.experiments.estimate import roughly
        from ocil.report.formatting import count

        columns = ("dataset", "row", "memory", "runs", "finished", "to run", "about")
        console.print_table(columns, self._rows(), self.experiment.title, lines="head")
        counts, to_run = self.plan.counts(self.plan.configs), self.plan.unfinished()
        console.print_line(
            f"{count(len(self.experiment.cells), 'cell')}, {count(counts['runs'], 'run')} "
            f"({len(self.references)} of them references): "
            f"{counts['finished']} finished, {counts['begun']} begun, {counts['to_run']} to run."
        )
        if self.references:
            console.print_line(REFERENCES)
        if to_run:
            estimator = self.forecast.estimator
            workers = f"{min(estimator.side_by_side, len(to_run))} side by side"
            console.print_line(f"About {roughly(self.seconds)} on {estimator.device}, {workers}, {self.source}.")
        if self.part is not None:
            of_part = self._part_json(self.part)
            console.print_line(
                f"Part {self.part}: {of_part['runs']} of these runs, {of_part['to_run']} to run, "
                f"about {roughly(of_part['seconds'])}."
            )
        for each, seconds in self.features:
            name = f"{each.images:,} images of {Path(each.dataset).stem}"
            console.print_line(f"Before that, features of {name} by {each.encoder.network}: about {roughly(seconds)}.")
        for message in self.failed:
            console.print_line(f"The sweep would fail: {' '.join(message.split())}")
        if self.missing:
            console.print_line(f"The sweep would not start: {missing_text(self.missing)}")
        console.print_line(f"Nothing was run. Runs would be in {self.plan.root}.")

    def _part_json(self, part: "SweepPart") -> dict[str, Any]:
        configs = part.of(self.plan.configs)
        seconds = round(self.forecast.seconds(configs), 1)
        return {"number": part.number, "of": part.parts, **self.plan.counts(configs), "seconds": seconds}

    def _seconds_of(self, features: "FeaturesToCompute") -> float:
        size = self.forecast.sizes[features.dataset]
        return round(self.forecast.estimator.features(features.encoder, size, features.images), 1)

    def _rows(self) -> list[tuple[str, ...]]:
        """One row per dataset and label, whose cells differ in their memory; then the references."""
        from ocil.data.derived import short_name

        groups: dict[tuple[str, str], list[Cell]] = {}
        for dataset in dict.fromkeys(cell.config.dataset for cell in self.experiment.cells):
            for cell in self.experiment.cells:
                if cell.config.dataset == dataset:
                    groups.setdefault((dataset, cell.label), []).append(cell)
        rows = []
        for (dataset, label), cells in groups.items():
            memories = ", ".join(str(cell.config.learner.memory or "-") for cell in cells)
            configs = [config for cell in cells for config in cell.configs]
            rows.append((short_name(dataset), label, memories, *self._counts(configs)))
        if self.references:
            rows.append(("", "references (fine-tune)", "", *self._counts(self.references)))
        return rows

    def _counts(self, configs: "Sequence[RunConfig]") -> tuple[str, ...]:
        from ocil.experiments.estimate import roughly

        counts = self.plan.counts(configs)
        about = roughly(self.forecast.seconds(configs)) if counts["to_run"] else ""
        return (*(str(counts[key]) for key in ("runs", "finished", "to_run")), about)


def names(cell: "Cell") -> dict[str, Any]:
    """Method, dataset and memory of a cell, for JSON."""
    config = cell.config
    return {"method": config.label, "dataset": config.dataset, "memory": config.learner.memory}


def missing_text(missing: dict[str, str]) -> str:
    """Which datasets are missing, in one line."""
    return " ".join(text if text.endswith(".") else f"{text}." for text in missing.values())
