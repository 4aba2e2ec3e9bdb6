"""Failures of PyTorch, Lightning and what runs them, by area. Imports no torch.

The wordings are those of torch 1.4 to 2.14 and lightning 1.5 to 2.6, from their sources and from public reports. Where
several faults start with the same words, the more specific one stands first.
"""

from __future__ import annotations

from .communication import COMMUNICATION
from .fault import Fault
from .files import DATA, FILES
from .launching import LAUNCH
from .training import DEVICES, TRAINING

#: Heading -> faults.
AREAS: dict[str, tuple[Fault, ...]] = {
    "Gradients and normalisation": TRAINING,
    "Devices and memory": DEVICES,
    "Communication between processes": COMMUNICATION,
    "Launching": LAUNCH,
    "Data": DATA,
    "Checkpoints, logs, configuration": FILES,
}
