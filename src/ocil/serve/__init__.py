"""The learner behind HTTP: ``ocil serve``.

``log``       what was acknowledged, on disk before it is
``counts``    how good the predictions were that were made before learning
``snapshot``  copies of the learner that predictions read while it learns
``predictor`` the thread that reads them
``service``   the threads that write the log and learn
``limits``    what a client may ask for
``pictures``  images from strangers
``metrics``   numbers in the format of Prometheus
``app``       requests and answers; needs the extra ``serve``, as does ``run``
``run``       a socket, a server, a clean stop
"""
