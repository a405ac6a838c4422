"""One run: its configuration, its loop, its checkpoint, its folder and its result.

``protocol``     what an engine needs to know about a run of any kind
``stream_run``   the class-incremental run and its loop
``config``       all settings of such a run, from words, files and ``defaults``; ``settings``: text read as values
``build``        a learner from a configuration, and the check that one can be built
``features``     vectors of a dataset's images, computed once and kept on disk
``stepper``      the learner's steps as they are written; ``captured``: as CUDA graphs
``batch_stepper``  both, for batches that come from outside
``folder``       lock, checkpoint and place of a run; ``naming``: what its folder is called
``trained``      the learner that a run has trained
``results``      what a finished run leaves, and means over seeds; ``result_checks``: of files from anywhere
``environment``  device, versions, digests; ``program_code``: of what scripts and packages register
``schedule``     how often a run learns from its stream and its memory
``fit``          how much GPU memory a run takes; ``cost``: what it has computed and kept
``trackers``     curves for TensorBoard, Weights & Biases, MLflow and Trackio
"""
