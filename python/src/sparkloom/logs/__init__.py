"""What a rank's log tells: phases, KV figures, transport, and where logs of past generations are kept."""

from sparkloom.logs.keep import Shelf
from sparkloom.logs.phases import RankLog, Transport
from sparkloom.logs.tail import Tail, last_lines

__all__ = ["RankLog", "Shelf", "Tail", "Transport", "last_lines"]
