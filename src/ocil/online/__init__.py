"""A learner for people with a real stream: any labels, any images, no announced tasks, a process that may be killed.

``model``       a learner with its labels and image format, in one file on disk; needs no extra
``classifier``  the same as a scikit-learn estimator: ``ocil.OnlineClassifier``
``feed``        labelled images on disk, learned in order: ``ocil learn``
``export``      a model as ONNX or as a ``torch.export`` program
"""
