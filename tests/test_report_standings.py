"""Standings: ranks and paired differences by hand, rows and columns of any results, seeds that not all have."""

import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ocil
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.report.collect import collect
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entries, entries
from ocil.report.explore import first_pair
from ocil.report.formatting import sizes
from ocil.report.headline import headline
from ocil.report.quantities import find_quantity
from ocil.report.ranking import average_ranks, paired_difference, ranking, read_seeds, seeds_text
from ocil.report.standing_tables import (
    leads_table,
    methods_document,
    shown,
    side_by_side,
    standings_document,
    standings_table,
)
from ocil.report.standings import Standings
from ocil.report.table import csv, latex, markdown, markdown_table
from ocil.report.terminal_table import terminal
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from tests.conftest import Call, one_error
from tests.reference.datasets import noise
from tests.test_report_page import check_latex, made_up, rows_of

# Pure functions


def test_ranks_by_hand() -> None:
    """Three columns; c ties with b in the second, d lacks the third."""
    values = {
        "a": {1: 0.9, 2: 0.1, 3: 0.5},
        "b": {1: 0.8, 2: 0.7, 3: 0.6},
        "c": {1: 0.1, 2: 0.7, 3: 0.4},
        "d": {1: 0.99, 2: 0.99},
    }
    found = ranking(values, [1, 2, 3])
    assert found.columns == (1, 2, 3)  # 3 rows x 3 columns hold more numbers than 4 x 2
    ranks = {each.name: (each.mean_rank, dict(each.ranks), each.missing) for each in found.standings}
    assert ranks == {
        "b": ((2 + 1.5 + 1) / 3, {1: 2, 2: 1.5, 3: 1}, ()),
        "a": ((1 + 3 + 2) / 3, {1: 1, 2: 3, 3: 2}, ()),
        "c": ((3 + 1.5 + 3) / 3, {1: 3, 2: 1.5, 3: 3}, ()),
        "d": (None, {}, (3,)),
    }
    assert [each.name for each in found.standings] == ["b", "a", "c", "d"]
    lower = ranking(values, [1, 2, 3], higher=False)
    assert [each.name for each in lower.standings] == ["c", "a", "b", "d"]


def test_columns_of_a_ranking_are_those_that_most_rows_share() -> None:
    many = {name: {1: 0.1, 2: 0.2} for name in "abcdef"}
    found = ranking(many | {"g": {1: 0.5, 2: 0.5, 3: 0.5}, "h": {3: 0.9}}, [1, 2, 3])
    assert found.columns == (1, 2)
    assert {each.name: each.missing for each in found.standings}["h"] == (1, 2)
    two = ranking({"a": {1: 0.1, 2: 0.2}, "b": {2: 0.3, 3: 0.4}}, [1, 2, 3])  # only what both have in common
    assert two.columns == (2,)
    assert [each.mean_rank for each in two.standings] == [1, 2]
    alone = ranking({"a": {1: 0.1}, "b": {2: 0.3}}, [1, 2])
    assert alone.columns == ()
    assert [each.mean_rank for each in alone.standings] == [None, None]
    assert ranking({}, []).standings == ()


def test_equal_values_share_a_rank() -> None:
    assert average_ranks({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.5}) == {"a": 2, "b": 2, "c": 2, "d": 4}


def test_a_paired_difference_by_hand() -> None:
    """Differences 1, 2 and 6: mean 3, variance 7, t(0.975, 2) = 4.302653."""
    mine = {0: 100.0, 10: 5.0, 11: 9.0, 12: 16.0}
    other = {10: 4.0, 11: 7.0, 12: 10.0, 13: -50.0}
    found = paired_difference(mine, other)
    assert found is not None
    assert found.values == (1.0, 2.0, 6.0)
    assert found.mean == pytest.approx(3)
    assert found.interval == pytest.approx(4.302653 * math.sqrt(7 / 3), rel=1e-6)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    one = paired_difference({3: 1.0}, {3: 0.5})
    assert one is not None
    assert (one.mean, one.interval) == (0.5, None)


@pytest.mark.parametrize(
    ("text", "seeds"), [("10-12", {10, 11, 12}), ("0,2,5-7", {0, 2, 5, 6, 7}), (" 3 ", {3}), ("4-4", {4})]
)
def test_seeds_are_read(text: str, seeds: set[int]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "5-2", "0-1000000000", "1,,2", "1" * 5000, "1.5", "²"])
def test_what_is_no_seeds(text: str) -> None:
    with pytest.raises(OcilError, match="--seeds"):
        read_seeds(text)


def test_a_range_that_is_the_wrong_way_round() -> None:
    with pytest.raises(OcilError, match="--seeds 0,5-2: write the lower seed first: 2-5"):
        read_seeds("0,5-2")


def test_seeds_are_written_as_ranges() -> None:
    assert seeds_text([19, 10, 11, 12, 3, 4, 13, 14, 15, 16, 17, 18]) == "3, 4, 10-19"
    assert seeds_text([]) == ""


# Entries


def store(root: Path, config: RunConfig, values: dict[int, float], **environment: Any) -> None:
    """Runs whose average accuracy is known exactly, by seed."""
    for seed, value in values.items():
        one = replace(config, seed=seed)
        rows = 1 if config.stream.boundary == "iid" else config.stream.tasks
        result = replace(made_up(one, **environment), matrix=[[value] * config.stream.tasks] * rows)
        RunFolder.of(root, one).save_result(result)


BIRDS, FISH = "/data/birds.npz", "/data/fish.npz"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, two sizes; AFS has other seeds than the rest in one place, and MIR lacks a dataset."""
    root = tmp_path_factory.mktemp("runs")
    for dataset, memory, plus in ((BIRDS, 100, 0.0), (BIRDS, 200, 0.1), (FISH, 100, 0.2)):
        store(root, resolve("er", dataset, memory=memory), {seed: 0.3 + plus + seed / 100 for seed in range(3)})
        afs = {seed: 0.4 + plus + seed * (0.012 if plus else 0.01) for seed in (1, 2, 3)}
        store(root, resolve("afs", dataset, memory=memory), afs)
        if dataset == BIRDS:
            store(root, resolve("mir", dataset, memory=memory), {7: 0.9, 8: 0.9})
    store(root, resolve("ncm", BIRDS), {0: 0.05, 1: 0.06})
    store(root, resolve("iid-offline", BIRDS), {0: 0.95})
    return root


@pytest.fixture(scope="module")
def found(root: Path) -> Entries:
    return entries(collect([root]).cells)


def test_rows_and_columns_of_any_results(found: Entries) -> None:
    assert [(column.dataset, column.memory) for column in found.columns] == [(BIRDS, 100), (BIRDS, 200), (FISH, 100)]
    columns = {entry.name: len(entry.cells) for entry in found.all}
    assert columns == {"afs": 3, "er": 3, "mir": 2, "ncm": 2, "iid-offline": 2}  # without a memory: in every size
    assert {entry.name for entry in found.all if entry.bound} == {"iid-offline"}  # NCM competes


def test_the_leader_the_missing_and_what_seeds_are_shared(found: Entries) -> None:
    standings = Standings(found)
    assert [column.dataset for column in standings.ranking.columns] == [BIRDS, BIRDS]  # 4 x 2 numbers, not 2 x 3
    ranks = {each.name: each.mean_rank for each in standings.ranking.standings}
    assert ranks == {"mir": 1, "afs": 2, "er": 3, "ncm": 4}
    against_afs = Standings(found, chosen="afs")
    small, large, fish = found.columns
    difference = against_afs.numbers["er"][small].difference
    assert difference is not None
    assert difference.values == pytest.approx((-0.1, -0.1))  # seeds 1 and 2
    assert difference.shown_interval is None  # of two seeds
    difference = against_afs.numbers["er"][large].difference
    assert difference is not None
    assert difference.values == pytest.approx((-0.102, -0.104))
    assert difference.interval == pytest.approx(12.7062 * 0.001, rel=1e-4)
    assert against_afs.numbers["mir"][small].difference is None  # seeds 7 and 8 are not among those of AFS
    assert against_afs.numbers["afs"][small].difference is None
    er = found.named("er")
    mean = against_afs.mean_difference(er)
    assert mean is not None
    assert mean.values == pytest.approx((-0.101, -0.102))  # per seed, over the two columns of the ranking
    assert standings.reference(fish) == found.named("afs")  # the best where the leader is missing
    text = markdown_table(side_by_side(against_afs))
    assert "(no shared seed)" in text
    assert "(-10.0 (-10.0 to -10.0))" in text
    assert "- mir, seeds 7, 8: birds, memory 100, 200" in text


def test_the_leader_is_measured_against_another_method(tmp_path: Path) -> None:
    """AFS leads, and its own variant is second: the lead that matters is that over ER."""
    for name, settings, value in (("afs", {}, 0.5), ("afs", {"alpha": "0.3"}, 0.49), ("er", {}, 0.4)):
        store(tmp_path, resolve(name, BIRDS, memory=100, settings=settings), {0: value, 1: value})
    standings = Standings(entries(collect([tmp_path]).cells))
    found = headline(standings)
    assert found is not None
    assert found.answers[1].words.startswith("Over er, the next method, on 2 shared seeds.")
    assert first_pair(standings) == ("afs", "er")
    variants = Standings(standings.entries.only(["afs", "afs alpha=0.3"]))
    assert variants.rival == standings.entries.named("afs alpha=0.3")  # else there is nothing to compare with


def test_the_leader_is_measured_against_a_method_that_shares_its_seeds(tmp_path: Path) -> None:
    """ER is next, but was run with other seeds. The lead that is known is that over MIR."""
    for name, value, seeds in (("afs", 0.5, (0, 1)), ("er", 0.4, (7, 8)), ("mir", 0.3, (1, 0))):
        store(tmp_path, resolve(name, BIRDS, memory=100), dict.fromkeys(seeds, value))
    standings = Standings(entries(collect([tmp_path]).cells))
    found = headline(standings)
    assert found is not None
    assert found.answers[1].short.startswith("20.0")
    assert found.answers[1].words.startswith("Over mir, the next method with the same seeds, on 2 shared seeds.")
    assert first_pair(standings) == ("afs", "mir")
    found = headline(Standings(standings.entries.only(["afs", "er"])))
    assert found is not None
    assert found.answers[1].words == "er is second, and the two share no seed."


def test_who_is_best_in_other_columns_adds_up(tmp_path: Path) -> None:
    methods = ["afs", "er", "mir", "gss", "scr", "aser"]
    for number, best in enumerate(["afs", "afs", *methods[1:]]):
        for name in methods:
            config = resolve(name, BIRDS, memory=100 + number, settings={"memory_batch": 5})
            store(tmp_path, config, dict.fromkeys(range(3), 0.6 if name == best else 0.5 - methods.index(name) / 100))
    found = headline(Standings(entries(collect([tmp_path]).cells)))
    assert found is not None
    said = dict(re.findall(r"([\w -]+?) in (\d+)(?=[,;.])", found.elsewhere.split("was run on 7 and is ")[1]))
    assert said.pop("best") == "2"
    assert said.pop(" others") == "1"
    assert (len(said), set(said.values())) == (4, {"1"})


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5.01e6, 19.8e6, "5.01 to 19.8 MB"),
        (9.8e5, 5.01e6, "980 kB to 5.01 MB"),
        (4, 700, "4 to 700 B"),
        (2e6, 2e6, "2 MB"),
    ],
)
def test_sizes_have_one_unit_where_they_can(low: float, high: float, text: str) -> None:
    assert sizes(low, high) == text


def test_what_shares_no_seed_is_said_once(found: Entries) -> None:
    birds, fish = methods_document(Standings(found, chosen="afs")).tables
    assert "shares no seed" in birds.note
    assert "no shared seed" not in markdown_table(birds)
    assert "shares no seed" not in fish.note


def test_tables_of_own_runs_have_nothing_of_a_paper(found: Entries) -> None:
    document = methods_document(Standings(found))
    for text in (markdown(document), latex(document), markdown_table(leads_table(Standings(found)))):
        assert "not measured" not in text.lower()
        assert "published" not in text
    check_latex(latex(document))
    birds, fish = document.tables
    assert birds.title == "birds"
    assert [column.title for column in birds.columns] == ["method", "memory 100", "memory 200"]
    assert [row.values[0].text for row in birds.rows] == ["iid-offline", "mir", "afs", "er", "ncm"]
    assert [row.values[0].text for row in fish.rows] == ["afs", "er"]
    best = [value.rank for value in birds.rows[1].values[1:]]
    assert best == [1, 1]
    lines = rows_of(csv(document.records))
    (line,) = (x for x in lines if (x["method"], x["dataset"], x["memory"]) == ("er", FISH, "100"))
    assert (line["mean"], line["against"], line["shared_seeds"]) == ("51.000", "afs", "2")
    assert float(line["difference"]) == pytest.approx(-10.3)


def test_a_number_over_fewer_seeds_says_so_in_every_format(tmp_path: Path) -> None:
    """The page alone noted it, then the files too but not ``ocil show``, and all say "unless noted otherwise"."""
    store(tmp_path, resolve("er", BIRDS, memory=100), {0: 0.5, 1: 0.6, 2: 0.7})
    store(tmp_path, resolve("afs", BIRDS, memory=100), {0: 0.5, 1: 0.6})
    for name in ("mir", "ncm", "gdumb", "scr", "agem"):  # with more than six methods, each has a row
        store(tmp_path, resolve(name, BIRDS, memory=None if name == "ncm" else 100), {0: 0.1, 1: 0.2, 2: 0.3})
    standings = Standings(entries(collect([tmp_path]).cells), chosen="er")
    document, (table,) = methods_document(standings), shown(standings)
    file = StringIO()
    Console(file=file, width=400).print(table.note, terminal(table))
    for text in (markdown(document), latex(document), markdown_table(table), file.getvalue().replace("│ ", "")):
        assert "3 seeds unless noted otherwise." in text
        (line,) = (line for line in text.splitlines() if re.match(r"(\| )?afs ", line))
        assert "(+0.0 (+0.0 to +0.0), 2 seeds)" in line.replace("$", "")
        (line,) = (line for line in text.splitlines() if re.match(r"(\| )?er ", line))
        assert "seeds" not in line


def test_means_over_other_seeds_than_their_difference_are_explained(tmp_path: Path) -> None:
    for name, values in (("er", {0: 0.5, 1: 0.6, 2: 0.1}), ("afs", {0: 0.5, 1: 0.6})):
        store(tmp_path, resolve(name, BIRDS, memory=100), values)
    standings = Standings(entries(collect([tmp_path]).cells), chosen="er")
    assert "Means are over 2 to 3 seeds, differences over those that both have." in standings_table(standings).note
    standings = Standings(entries(collect([tmp_path], {0, 1}).cells), chosen="er")
    assert "Means are over" not in standings_table(standings).note


def test_the_first_table_says_who_leads_by_how_much_and_at_what_cost(found: Entries) -> None:
    table = standings_table(Standings(found))
    assert [column.title for column in table.columns] == [
        *("method", "mean rank", "mean accuracy %", "against mir", "images / batch", "time / run")
    ]
    assert [row.values[0].text for row in table.rows] == ["mir", "afs", "er", "ncm"]
    assert [row.values[1].text for row in table.rows] == ["1", "2", "3", "4"]
    assert "birds, memory 100, 200" in table.note
    assert "1 column with fewer of them is left out" in table.note
    er = next(iter(found.named("er").cells.values()))
    assert images_per_batch(er) == 20  # ten of the stream, ten of the memory
    (lead,) = (row for row in leads_table(Standings(found)).rows if row.values[0].text.startswith("fish"))
    assert [value.text for value in lead.values[1:5]] == ["afs", "62.4 ± 3.0", "er", "10.3 (10.2 to 10.4)"]


def test_standings_as_numbers(found: Entries) -> None:
    lines = {row["method"]: row for row in rows_of(csv(standings_document(Standings(found, chosen="afs")).records))}
    er = lines["er"]
    assert (er["mean_rank"], er["columns"], er["against"], er["shared_seeds"]) == ("3", "2", "afs", "2")
    assert float(er["difference"]) == pytest.approx(-10.15)
    assert float(er["mean"]) == pytest.approx((31 + 41) / 2)
    assert lines["mir"]["difference"] == ""  # they share no seed


def test_bounds_are_no_methods_to_rank(tmp_path: Path) -> None:
    for name in ("fine-tune", "er", "iid-offline"):
        store(tmp_path, resolve(name, BIRDS, memory=0 if name != "er" else 100), {0: 0.5})
    note = standings_table(Standings(entries(collect([tmp_path]).cells))).note
    assert note == "No column has two methods other than the bounds (fine-tune, iid-offline), so there are no ranks."


def test_streams_are_columns_and_settings_are_rows(tmp_path: Path) -> None:
    for settings in ({}, {"boundary": "blurry"}, {"lr": 0.2}, {"evaluate_every": 5}):
        store(tmp_path, resolve("er", BIRDS, memory=100, settings=settings), {0: 0.5, 1: 0.5})
    found = entries(collect([tmp_path]).cells)
    assert [column.title for column in found.columns] == ["birds, memory 100", "birds, boundary=blurry, memory 100"]
    assert {entry.name: len(entry.cells) for entry in found.all} == {
        "er": 2,
        "er lr=0.2": 1,
    }  # evaluating changes nothing


def test_reviews_that_ocil_has_timed_make_no_rows(tmp_path: Path) -> None:
    """Without task ends ``review_every`` follows the length of the stream, which a report does not know of own data."""
    for boundary, settings in (("clear", {}), ("i-blurry", {}), ("none", {}), ("si-blurry", {"review_every": 3})):
        for name in ("er", "afs"):
            config = resolve(name, BIRDS, memory=100, train=400, settings={"boundary": boundary})
            store(tmp_path, config, {0: 0.5, 1: 0.5})
            if settings and name == "afs":
                given = {"boundary": boundary, **settings}
                store(tmp_path, resolve(name, BIRDS, memory=100, train=400, settings=given), {0: 0.6, 1: 0.6})
    rows = {entry.name: len(entry.cells) for entry in entries(collect([tmp_path]).cells).all}
    assert rows == {"er": 4, "afs": 3, "afs review_every=8": 1, "afs review_every=3": 1}  # where it was varied


def test_what_all_rows_share_is_said_once(tmp_path: Path) -> None:
    """No name of a row has it, so a table of another network looked like one of the usual network."""
    given = {"network": "resnet18", "memory_batch": 10, "tasks": 4}
    for name, lr in (("er", 0.1), ("afs", 0.1), ("afs", 0.2)):
        store(tmp_path, resolve(name, BIRDS, memory=100, settings=given | {"lr": lr}), {0: 0.5, 1: 0.5, 2: 0.6})
    fine_tuned = resolve("fine-tune", BIRDS, settings={"tasks": 4, "lr": 0.7})
    store(tmp_path, fine_tuned, {0: 0.5})  # a bound is not asked
    found = entries(collect([tmp_path]).cells)
    assert {entry.name for entry in found.all} == {"fine-tune", "er", "afs", "afs lr=0.2"}
    assert found.shared == found.only(["er"]).shared == "tasks=4 memory_batch=10 network=resnet18"
    text = " For all methods: tasks=4 memory_batch=10 network=resnet18."
    standings = Standings(found)
    assert text in side_by_side(standings).note
    assert text in markdown(methods_document(standings))
    store(tmp_path, resolve("er", FISH, memory=100, settings={"memory_batch": 9}), {0: 0.5})
    assert entries(collect([tmp_path]).cells).shared == ""


def test_a_fine_tuned_run_with_more_evaluations_is_a_reference(tmp_path: Path) -> None:
    """It learns the same, so intransigence needs no second run."""
    every = {"evaluate_every": 5}
    for name, settings, value in (("er", every, 0.5), ("fine-tune", every, 0.7), ("fine-tune", every | {"lr": 1}, 0.9)):
        store(tmp_path, resolve(name, BIRDS, settings=settings), {0: value})
    er = {cell.label: cell for cell in collect([tmp_path]).cells}["er"].summary.average_intransigence
    assert er is not None
    assert er.mean == pytest.approx(0.2)
    results = [run.result for cell in collect([tmp_path]).cells for run in cell.runs]
    found = {summary.config.label: summary for summary in ocil.summarise(results).summaries}
    assert found["er"].average_intransigence == er


def test_two_files_of_one_name_have_tables_of_their_own(tmp_path: Path) -> None:
    for folder, value in (("a", 0.2), ("b", 0.4)):
        config = replace(resolve("er", f"/{folder}/birds.npz", memory=100), fingerprint=folder)
        store(tmp_path, config, {0: value, 1: value})
    tables = methods_document(Standings(entries(collect([tmp_path]).cells))).tables
    assert [(table.title, len(table.columns)) for table in tables] == [("birds", 2), ("birds", 2)]


def test_a_run_of_python_and_one_of_a_command_are_in_one_column(tmp_path: Path) -> None:
    """``ocil.run`` once kept the path as it was given and no fingerprint; a command has both."""
    store(tmp_path, resolve("er", "birds.npz", memory=100), {0: 0.2}, images="abc")
    of_command = [replace(resolve(name, BIRDS, memory=100), fingerprint="abc") for name in ("er", "mir")]
    for config in of_command:
        store(tmp_path, config, {1: 0.4}, images="abc")
    found = entries(collect([tmp_path]).cells)
    assert [column.dataset for column in found.columns] == [BIRDS]
    assert {cell.name: len(cell.runs) for cell in collect([tmp_path]).cells} == {
        config.cell: runs for config, runs in zip(of_command, (2, 1), strict=True)
    }


def test_a_long_name_of_the_reference_stands_below_the_table(tmp_path: Path) -> None:
    for settings, value in (({}, 0.2), ({"lr": 0.2, "memory_batch": 5}, 0.4)):
        store(tmp_path, resolve("er", BIRDS, memory=100, settings=settings), {0: value, 1: value})
    table = standings_table(Standings(entries(collect([tmp_path]).cells)))
    assert "difference" in [column.title for column in table.columns]
    assert re.search(r"Differences are to er (lr=0\.2 memory_batch=5|memory_batch=5 lr=0\.2)\.$", table.note)


def test_one_method_is_named_with_or_without_its_settings(tmp_path: Path) -> None:
    for lr in (0.1, 0.2, 0.3):
        store(tmp_path, resolve("er", BIRDS, memory=100, settings={"lr": lr}), {0: 0.5})
        store(tmp_path, resolve("mir", BIRDS, memory=100, settings={"lr": lr + 1}), {0: 0.5})
    found = entries(collect([tmp_path]).cells)
    assert found.named("er").name == "er"  # 0.1 is its own
    assert found.named("er lr=0.2").name == "er lr=0.2"
    with pytest.raises(OcilError, match=r"'mir' is 3 rows: name one of 'mir lr=1\.1'"):
        found.named("mir")
    with pytest.raises(OcilError, match=r"no run of 'ar' is among the results\. Did you mean 'er'"):
        found.named("ar")


# The command


def test_show_compares_several_cells(root: Path, ocil_command: Call) -> None:
    said = ocil_command("show", root, "--against", "afs", "--methods", "er", "mir")
    assert said.code == 0, said.err
    assert "against afs" in said.out
    assert "iid-offline" not in said.out
    assert "-10.3" in said.out
    said = ocil_command("show", root, "--against", "afs", "--seeds", "1-2", "--markdown")
    assert said.code == 0, said.err
    (fish,) = (line for line in said.out.splitlines() if line.startswith("| fish"))
    assert "| **61.8 (61.2 to 62.4)** |" in fish
    assert "| <u>51.5 (51.0 to 52.0)</u> (-10.3 (-10.4 to -10.2)) |" in fish
    assert "half of the 95 % interval. Of two seeds the lowest and the highest value are shown instead." in said.out
    assert "mir" not in said.out  # it has no such seed
    content = json.loads(ocil_command("show", root, "--against", "afs", "--json").out)
    assert content["against"] == "afs"
    (er,) = (row for row in content["rows"] if row["name"] == "er")
    fish = er["numbers"][-1]
    assert (fish["dataset"], fish["memory"], fish["seeds"]) == (FISH, 100, [0, 1, 2])
    assert fish["difference"]["values"] == pytest.approx([-0.102, -0.104])
    (mir,) = (row for row in content["rows"] if row["name"] == "mir")
    assert [number["difference"] for number in mir["numbers"]] == [None, None]


def test_show_another_measure(root: Path, ocil_command: Call) -> None:
    content = json.loads(ocil_command("show", root, "--measure", "wall_seconds", "--json").out)
    assert content["measure"] == "wall_seconds"
    assert content["against"] == "ncm"  # seeds 0 and 1 take 10 and 11 seconds: less is better
    names = ("accuracy", "Forgetting", "wc-acc", "A_AUC", "time / run", "average-accuracy")
    assert [find_quantity(name).name for name in names] == [
        *("average_accuracy", "average_forgetting", "worst_case_accuracy", "area_under_accuracy", "wall_seconds"),
        "average_accuracy",
    ]
    assert "in tables/cells" in one_error(ocil_command("show", root, "--measure", "intransigence"))
    assert "is no measure" in one_error(ocil_command("show", root, "--measure", "beauty"))
    said = one_error(ocil_command("show", root, "--measure", "probe_accuracy"))
    assert "none of these runs has linear probe: it needs runs with the setting probe." in said
    assert "no run of 'nonesuch'" in one_error(ocil_command("show", root, "--against", "nonesuch"))
    assert "has one of these seeds" in one_error(ocil_command("show", root, "--seeds", "77"))
    assert "name a run" in one_error(ocil_command("show"))


def test_two_seeds_have_a_range_wherever_they_are_shown(tmp_path: Path, ocil_command: Call) -> None:
    """As ``ocil run`` prints them: their interval is 12.7 standard errors to each side."""
    er, afs = resolve("er", BIRDS, memory=100), resolve("afs", BIRDS, memory=100)
    store(tmp_path, er, {0: 0.41, 1: 0.43})
    store(tmp_path, afs, {0: 0.45, 1: 0.46})
    said = ocil_command("show", tmp_path / er.cell)
    assert "42.0 (41.0 to 43.0)" in said.out
    assert "±" not in said.out
    content = json.loads(ocil_command("show", tmp_path / er.cell, "--json").out)["average_accuracy"]
    assert content["interval"] == pytest.approx(12.7062 * 0.01, rel=1e-4)  # for programs
    out = tmp_path / "report"
    assert ocil_command("report", tmp_path, "--out", out).code == 0
    for file in out.rglob("*.md"):
        assert "42.0 ±" not in file.read_text(), file
    assert "42.0 (41.0 to 43.0)" in (out / "tables" / "methods.md").read_text()
    page = (out / "index.html").read_text()
    assert "±" not in page.replace("± half of the 95 %", "").partition("<script")[0]
    assert "3.5 (3.0 to 4.0) points" in page  # afs over er
    assert "Two seeds have no interval, so the order is not settled." in page
    assert "Of two seeds the lowest and the highest value are shown instead." in page


def test_the_defaults_for_vectors_are_no_settings_of_a_row(tmp_path: Path) -> None:
    """Beside images, whose network is another one by default."""
    draw = np.random.RandomState(0)
    x, y = draw.rand(120, 6).astype(np.float32), np.arange(120) % 4
    vectors = Dataset("topics", x[:80], y[:80], x[80:], y[80:], tuple("abcd"))
    small: dict[str, Any] = {"tasks": 2, "memory": 20, "memory_batch": 5}
    for data in (vectors, noise(120, 4)):
        ocil.run(ocil.resolve("er", data, settings=small), tmp_path, dataset=data)
    collection = collect([tmp_path])
    assert [entry.label for entry in entries(collection.cells).all] == ["er"]
    (cell,) = (cell for cell in collection.cells if "topics" in cell.config.dataset)
    assert cell.config.learner.network == "linear"
    assert "network" not in cell.command


def test_a_setting_that_means_nothing_to_vectors_makes_no_row_of_its_own(tmp_path: Path) -> None:
    """All images were learned at one width, and the network of vectors has none: one method is one row."""
    for name, memory in (("er", 100), ("afs", 100), ("fine-tune", None)):
        store(tmp_path, resolve(name, BIRDS, memory=memory, settings={"width": 2}), {0: 0.5})
        store(tmp_path, resolve(name, FISH, memory=memory, vectors=True), {0: 0.5}, inputs="vectors")
    found = entries(collect([tmp_path]).cells)
    assert {entry.name: len(entry.cells) for entry in found.all} == {"fine-tune": 2, "er": 2, "afs": 2}
    assert found.shared == "width=2"
    store(tmp_path, resolve("er", BIRDS, memory=100, settings={"width": 3}), {0: 0.5})
    names = {entry.name for entry in entries(collect([tmp_path]).cells).all}
    assert names == {"fine-tune", "er", "er width=2", "er width=3", "afs", "afs width=2"}


def test_a_former_plugin_file_is_named_in_its_own_row_alone(tmp_path: Path) -> None:
    now = resolve("er", "cifar100", settings={"lr": 0.05})
    for config in (now, replace(now, code="0123456789ab")):
        RunFolder.of(tmp_path, config).save_result(made_up(config, 0.5))
    found = entries(collect([tmp_path]).cells)
    assert sorted(entry.name for entry in found.all) == ["er", "er code=0123456789ab"]
    assert found.shared == "lr=0.05"


def test_lines_of_a_method_without_memory_say_which_column_they_are_for(tmp_path: Path) -> None:
    cells = [("er", 1000, 0.5), ("er", 5000, 0.7), ("fine-tune", None, 0.1)]
    for name, memory, level in cells:
        for seed in range(3):
            config = resolve(name, "cifar100", memory=memory, seed=seed)
            RunFolder.of(tmp_path, config).save_result(made_up(config, level))
    rows = rows_of(csv(methods_document(Standings(entries(collect([tmp_path]).cells), chosen="er")).records))
    lines = [row for row in rows if row["method"] == "fine-tune"]
    assert [(row["memory"], row["column_memory"]) for row in lines] == [("0", "1000"), ("0", "5000")]
    low, high = (float(row["difference"]) for row in lines)
    assert high < low < 0
    assert all(row["memory"] == row["column_memory"] for row in rows if row["method"] == "er")


def test_columns_without_the_chosen_reference_are_named(tmp_path: Path) -> None:
    """The row ``er`` is another one than ``er lr=0.05``, which was run on the other dataset."""
    cells = [("er", "cifar10", 0.1), ("afs", "cifar10", 0.1), ("er", "cifar100", 0.05), ("afs", "cifar100", 0.1)]
    for name, dataset, lr in cells:
        config = resolve(name, dataset, memory=1000, settings={"lr": lr})
        RunFolder.of(tmp_path, config).save_result(made_up(config, 0.5))
    found = entries(collect([tmp_path]).cells)
    said = "er was not run on CIFAR-100, memory 1000: no differences there."
    standings = Standings(found, chosen="er")
    assert said in methods_document(standings).caption
    assert said in standings_table(standings).note
    other = Standings(found, chosen="er lr=0.05")
    assert "er lr=0.05 was not run on CIFAR-10, memory 1000: no differences there." in methods_document(other).caption
    assert "no differences there" not in standings_table(other).note  # the ranks are over the other column
    assert "not run on" not in methods_document(Standings(found, chosen="afs")).caption


def test_a_caption_is_silent_on_differences_where_there_are_none(tmp_path: Path) -> None:
    config = resolve("er", "cifar100", memory=1000)
    RunFolder.of(tmp_path, config).save_result(made_up(config, 0.5))
    assert "Differences" not in methods_document(Standings(entries(collect([tmp_path]).cells))).caption
    other = resolve("afs", "cifar100", memory=1000)
    RunFolder.of(tmp_path, other).save_result(made_up(other, 0.6))
    caption = methods_document(Standings(entries(collect([tmp_path]).cells))).caption
    assert "Differences are to afs, over the seeds that both have" in caption
