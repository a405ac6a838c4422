"""Open long-tailed recognition: OLTR with cross-entropy, focal, revised focal and dynamic revised focal loss.

This is the last table of the AFS paper, a study of its own that has nothing to do with streams: most classes have few
images, all of them are available for many epochs, and some test images are of classes that training never showed.

``config``      the settings of a run
``data``        long-tailed datasets; ``sampler``: the order of their images
``network``     the networks of the two stages; ``attention``, ``embedding``: parts of the second
``training``    the two stages; ``centroids``, ``dynamic``: what their losses need
``runs``        its kinds of run
``metrics``     measures of a test
``results``     what a finished run leaves
"""
