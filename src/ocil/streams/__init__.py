"""The order in which samples arrive."""

from ocil.streams.config import StreamConfig, usual_tasks
from ocil.streams.device import DeviceData
from ocil.streams.kinds import KINDS, StreamKind
from ocil.streams.order import Order
from ocil.streams.stream import Batch, Stream

__all__ = ["KINDS", "Batch", "DeviceData", "Order", "Stream", "StreamConfig", "StreamKind", "usual_tasks"]
