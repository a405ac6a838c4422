"""Open long-tailed recognition: OLTR with cross-entropy, focal, revised focal and dynamic revised focal loss.

The last table of the AFS paper, beside the online part: few images of most classes, all at hand, many epochs, and test
images of classes that were never shown.
"""
