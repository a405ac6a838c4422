"""What changes about versions do, in the learning thread."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ocil.errors import OcilError, WriteError
from ocil.online.header import reading_note
from ocil.serve.checkpoints import NOTE, Note
from ocil.serve.corrections import ChangeOutcome, learn_numbered, stacked_inputs
from ocil.serve.records import Change, NumberedSample, SampleRecord
from ocil.serve.recovery import is_known
from ocil.serve.snapshot import Snapshot, Snapshots
from ocil.serve.versions import Version, Versions

if TYPE_CHECKING:
    from ocil.serve.trainer import Trainer


class VersionChanges:
    """Saves, restores, drops and pins versions. What a restored model is depends on the log alone, so a replay restores
    the same one.
    """

    def __init__(self, trainer: "Trainer", versions: Versions) -> None:
        self.trainer, self.versions = trainer, versions

    def make(self, change: Change) -> ChangeOutcome:
        version = self.versions.find(change.version)
        if change.action == "save":
            return self._save(change)
        if version is None and change.version:
            return ChangeOutcome(refused="the version was deleted in the meantime.")
        if version is not None and change.action == "restore":
            return self._restore(version, change)
        try:
            if change.action == "pin":
                self.pin(version)
            elif version is not None and change.action == "drop":
                return self._drop(version)
        except OcilError as error:
            return ChangeOutcome(refused=str(error))
        return ChangeOutcome()

    def pin(self, version: Version | None) -> None:
        """Predict by this version from now on; None: by the model that learns."""
        trainer = self.trainer
        if version is not None:
            trainer.snapshots.pinned = self.snapshot(version)
            trainer.checkpoints.pinned = version.number
        else:
            trainer.snapshots.pinned, trainer.checkpoints.pinned = None, 0

    def snapshot(self, version: Version) -> Snapshot:
        return Snapshots(self.versions.load(version.number, self.trainer.model)).newest

    def _save(self, change: Change) -> ChangeOutcome:
        trainer = self.trainer
        if (found := self.versions.find(change.number)) is not None:
            if (found.name, found.time) == (change.name, change.time):  # a replay, and it was saved before
                return ChangeOutcome()
            return ChangeOutcome(
                refused=f"the version {found.name}, whose log was lost, has its number: save it again."
            )
        # A replay may find versions on the disk that were saved later, when the name was free again.
        if any(one.name == change.name and one.number < change.number for one in self.versions.all):
            return ChangeOutcome(refused="there is a version of this name.")
        try:
            trainer.model.note[NOTE] = trainer.note().to_json()
            self.versions.save(change, trainer.model, trainer.position, trainer.scored)
        except WriteError as error:
            return ChangeOutcome(refused=str(error))
        return ChangeOutcome()

    def _drop(self, version: Version) -> ChangeOutcome:
        """The checkpoint comes first: a replay must not need a version that is gone."""
        trainer = self.trainer
        if trainer.checkpoints.pinned == version.number:
            return ChangeOutcome(refused="predictions are pinned to it.")
        trainer.save()
        if trainer.checkpoints.behind(trainer.position, trainer.changed):
            return ChangeOutcome(refused=trainer.checkpoints.trouble or "the model could not be saved.")
        self.versions.drop(version.number)
        return ChangeOutcome()

    def _restore(self, version: Version, change: Change) -> ChangeOutcome:
        trainer = self.trainer
        try:
            if change.relearn and (lost := self._lost(version)):
                return ChangeOutcome(refused=f"{lost} samples that came after the version are no longer in the log.")
            changes = [record for record in trainer.log.records() if isinstance(record, Change)]
            if lost := self._lost_changes(version, change, changes):
                return ChangeOutcome(
                    refused=f"the log has lost {lost} of the changes that were made after the version, perhaps "
                    "removals of samples: restore its files from a copy."
                )
            found = self.versions.load(version.number, trainer.model)
            with reading_note("the version's service"):
                note = Note.from_json(found.note.get(NOTE, {}), len(found.labels))
        except OcilError as error:
            return ChangeOutcome(refused=str(error))
        note.number_memory(found)
        found.note = trainer.model.note
        trainer.model.adopt(found)
        trainer.counts = note.counts
        trainer.snapshots.begin_anew()
        last: dict[int, Change] = {}  # by sample; what was forgotten stays so
        for one in _before(change, changes):
            if one.number > version.changes:
                trainer.corrections.make(one, False, trainer.stop_if_late)
            if one.sample not in last or last[one.sample].action != "forget":
                last[one.sample] = one
        if change.relearn:
            self._relearn(version, last)
        return ChangeOutcome()

    def _relearn(self, version: Version, changes: dict[int, Change]) -> None:
        """Learn what came after a version, in full batches, with the labels as they are now."""
        model, batch = self.trainer.model, list[NumberedSample]()
        size = model.recipe.batch_size
        for sample in self._samples_since(version):
            change = changes.get(sample.number)
            if change is not None and change.action == "forget":
                continue
            batch.append(sample if change is None else sample._replace(label=change.label))
            if len(batch) == size:
                self._learn(batch)
                batch = []
        if batch:
            self._learn(batch)
        model.check_loss()

    def _learn(self, batch: list[NumberedSample]) -> None:
        learn_numbered(self.trainer.model, batch, stacked_inputs(batch))
        self.trainer.stop_if_late()

    def _samples_since(self, version: Version) -> Iterator[NumberedSample]:
        for record in self.trainer.log.records():
            if isinstance(record, SampleRecord) and record.last > version.position:
                for sample in record.samples():
                    if version.position < sample.number <= self.trainer.position:
                        yield sample

    def _lost(self, version: Version) -> int:
        """How many samples after a version the log does not have, without those that the user has given up."""
        wanted = set(range(version.position + 1, self.trainer.position + 1))
        for gap in self.trainer.log.recovered.missing:
            wanted -= set(gap)
        return len(wanted - {sample.number for sample in self._samples_since(version)})

    def _lost_changes(self, version: Version, until: Change, logged: Sequence[Change]) -> int:
        """How many changes between a version and this one are not ``logged``, without those that were given up."""
        there = {change.number for change in logged}
        gaps = self.trainer.log.recovered.missing_changes
        wanted = range(version.number + 1, until.number)
        return sum(number not in there and not is_known(range(number, number + 1), gaps) for number in wanted)


def _before(until: Change, logged: Sequence[Change]) -> list[Change]:
    """Corrections and removals that are still in the log, in their order: all those of samples after a version, and all
    that a version does not have. A sample that learning stopped at counts as forgotten from the start.
    """
    return [change for change in logged if change.sample and (change.number < until.number or change.unlearned)]
