"""Open long-tailed recognition: OLTR with cross-entropy, focal, revised focal and dynamic revised focal loss.

This is the last table of the AFS paper, a study of its own that has nothing to do with streams: most classes have few
images, all of them are available for many epochs, and some test images are of classes that training never showed.
"""
