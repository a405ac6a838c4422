"""What a learner knows: evaluators that record it, and measures as pure functions of what they recorded.

``evaluator``     accuracy per group of classes after each task
``anytime``       correct test images between task ends; ``subset``: of a part of them
``prequential``   stream batches that are classified before they are learned
``calibration``   confusion of classes, and how far confidence can be trusted
``probe``         a linear probe of the final features
``record_types``  the records, as a result holds them
``measures``      all measures by name; ``matrices``: of the accuracy matrix, ``over_time``: between task ends
``estimates``     means over seeds with their intervals
"""
