"""Runs in object stores: sent, brought back, checked, and shipped while they go on.

`transfer` moves whole runs, `shipping` follows one that is being written, `mirror` keeps what
commands read. All of them speak to a store through `bucket`, the only module that knows obstore.
"""

REMEMBERED = ".remote"
"""The file in a run folder that says where the run is shipped to."""
