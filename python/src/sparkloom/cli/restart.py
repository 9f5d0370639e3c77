"""`sparkloom restart`: see `sparkloom.cli.orders`."""

from sparkloom.cli.orders import app_for

app = app_for("restart")
