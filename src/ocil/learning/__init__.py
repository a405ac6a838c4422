"""What methods are made of.

``memory``       the samples that are kept for replay
``losses``       as pure functions
``views``        random views of images; ``randaugment``: those of RandAugment
``optimizers``   any optimiser by name; ``sgd``: our own
``average``      a moving average of the weights
"""
