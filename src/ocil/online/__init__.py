"""A learner for your own stream: any labels, any images, no announced tasks, a process that may be killed.

``model``        a learner with its labels and image format, in one file on disk; needs no extra
``folder``       opens the model of a folder, or makes a new one
``header``       the header of a model file, checked
``images``       arrays, files and Pillow images as learners take them
``labels``       class labels
``feed``         labelled images on disk, learned in order: ``ocil learn``
``predictions``  classes of images on disk: ``ocil predict``
``classifier``   a model as a scikit-learn estimator: ``ocil.OnlineClassifier``
``export``       a model as ONNX or as a ``torch.export`` program
"""
