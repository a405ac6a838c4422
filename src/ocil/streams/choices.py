"""The settings of a stream that are one of a few words. ``StreamConfig`` explains them."""

from typing import Literal

Boundary = Literal["clear", "blurry", "none", "iid", "i-blurry", "si-blurry", "repeated"]
ClassOrder = Literal["fixed", "seeded"]
Scenario = Literal["class", "domain"]
TaskEnds = Literal["usual", "announced", "hidden"]
NoiseAmong = Literal["all", "task"]
ImbalanceOrder = Literal["arrival", "seeded"]
