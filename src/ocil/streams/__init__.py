"""The order in which samples arrive.

``stream``    a dataset in its order, batch by batch
``config``    the settings of a stream; ``choices``: those that are one of a few words
``order``     which samples come in which batch; ``order_file``: the file of it
``kinds``     the kinds of streams by name
``material``  what they are made from: the samples that take part, and in which order their classes come
``tasks``, ``blurry``, ``fading``, ``i_blurry``, ``si_blurry``, ``repeated``, ``mixed``  one kind each
``long_tail``, ``label_noise``  what every kind can have: classes of fewer samples, wrong labels
``record``    streams of recorded batches; ``indices``: of samples chosen by their numbers
``device``    where a dataset lies meanwhile: on the device, or on the host
``prefetch``  batches that are read ahead
``timeline``  what arrives when, counted
"""

from ocil.streams.config import StreamConfig, usual_tasks
from ocil.streams.device import DeviceData
from ocil.streams.kinds import KINDS, StreamKind
from ocil.streams.order import Order
from ocil.streams.stream import Batch, Stream

__all__ = ["KINDS", "Batch", "DeviceData", "Order", "Stream", "StreamConfig", "StreamKind", "usual_tasks"]
