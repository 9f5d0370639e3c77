"""What a rank's log tells: phases, KV figures, transport, and where logs of past generations are kept."""

from sparkloom.logs.keep import Shelf
from sparkloom.logs.phases import RankLog, Transport

__all__ = ["RankLog", "Shelf", "Transport"]
