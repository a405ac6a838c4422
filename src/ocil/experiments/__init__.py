"""Many runs at once: tables as TOML files, plans of runs, estimates of their time, and the search for settings.

    from pathlib import Path

    from ocil.engines import execute
    from ocil.engines.job import Job
    from ocil.experiments import Datasets, Plan, read

    datasets = Datasets()
    experiment = read(Path("experiments/table2.toml"), seeds=3, only="method=er", source=datasets.source)
    plan = Plan(experiment.cells, Path("runs"))
    plan.check(datasets)
    outcomes = execute(plan.runs, Job(Path("runs"), "cpu"))
    for cell in plan.cells:
        if found := plan.summary(cell, outcomes):
            print(cell.label, found.summary.average_accuracy)

``files``      experiments as TOML files; ``named``: those that come with ocil
``configure``  the cell of one method, without a file; ``longtail``: long-tailed runs
``plan``       the runs of some cells; ``part``: of one machine among several
``datasets``   the datasets of runs
``estimate``   how long runs will take
``search``     chooses settings on the first tasks; ``search_space``: what is tried; ``search_split``: their data;
``search_record``  writes down what came out
``streams``    the stream of settings without a method
"""

from ocil.experiments.configure import configure as configure
from ocil.experiments.datasets import Datasets as Datasets
from ocil.experiments.files import Cell as Cell
from ocil.experiments.files import Experiment as Experiment
from ocil.experiments.files import read as read
from ocil.experiments.plan import Plan as Plan
from ocil.experiments.search import Search as Search
