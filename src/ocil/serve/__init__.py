"""The learner behind HTTP: ``ocil serve``. It needs the extra ``serve``.

Learning and predicting:

``service``      connects all parts
``writer``       the thread that puts requests into the log and acknowledges them
``trainer``      the thread that learns what is in the log
``predictor``    the thread that predicts, by the newest snapshot
``snapshot``     copies of the learner that predictions read while it learns
``corrections``  what corrections, removals and reviews do to the model
``version_changes``  what changes about versions do
``checkpoints``  saves the model with its place in the log
``idempotency``  keys of requests that may come again
``statistics``   what others see of the model
``metrics``      numbers for Prometheus
``futures``      what the threads have in common

On the disk:

``log``       the samples and changes that were acknowledged
``recovery``  reads the log at the start
``newest``    what the log must hold: its newest file, up to the last acknowledged request
``segment``   the format of a log's files
``records``   the records in these files
``catalogue``  the list of all samples
``databases``  opens files of SQLite
``versions``  named snapshots of the model
``held_out``  a labelled set to compare them on
``backup``    a copy of all files while learning goes on

Labelling, at ``/label``:

``labelling``         the queue of images, its order, and what a person does with them
``labelling_store``   the database that keeps them
``labelling_images``  how an image is kept
``labelling_routes``  the paths of the page
``label_studio``         learns from the annotations of Label Studio and predicts its tasks
``label_studio_images``  reads the images of tasks from allowed hosts
``label_studio_routes``  the paths of its machine learning backend

What clients see:

``client``   the requests as methods, for programs in Python
``run``      socket, server and clean stop
``deadlines``  how long a client may take to ask and to read
``app``      the HTTP application
``models``   several models in one process
``guard``    which requests are let through
``tokens``   who may ask for what, and how often
``audit``    a line per change
``health``   answers to probes
``log_lines``  what is logged on standard error: text or JSON lines
``routes``   what each path does
``sample_routes``, ``version_routes``  what the paths about samples and versions do
``answers``  models of requests and answers
``openapi``  the description of all requests
``bodies``   reads the bodies of requests
``pages``    the pages, with that description as one of them
``limits``   what a client may ask for
``labels``, ``pictures``, ``vectors``  labels, images and vectors from clients
"""

from ocil.serve.client import Client, ServiceError

__all__ = ["Client", "ServiceError"]
