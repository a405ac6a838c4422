"""A learner for your own stream: any labels, any images, no announced tasks, a process that may be killed.

``model``        a learner with its labels and format of inputs, in one file on disk; needs no extra
``recipe``       what a new model is made of
``folder``       opens the model of a folder, or makes a new one
``header``       the header of a model file, checked
``formats``      the format of a model's inputs, ``images`` or ``vectors``; ``inputs``: what these share
``labels``       class labels
``sources``      labelled samples on disk; ``arrays``, ``parquet``: rows of numbers
``feed``         learns them in order: ``ocil learn``
``predictions``  classes of images and vectors on disk: ``ocil predict``
``classifier``   a model as a scikit-learn estimator: ``ocil.OnlineClassifier``
``export``       a model as ONNX or as a ``torch.export`` program
"""
