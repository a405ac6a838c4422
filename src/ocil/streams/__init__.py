"""The order in which images arrive."""

from ocil.streams.stream import Batch, DeviceData, Stream, StreamConfig, usual_tasks

__all__ = ["Batch", "DeviceData", "Stream", "StreamConfig", "usual_tasks"]
