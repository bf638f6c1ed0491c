"""Upload, download and verify runs in object stores.

`transfer` moves whole runs, `upload` follows one that is being written, `mirror` caches what
commands read. All of them access a store through `object_store`, the only module that imports
obstore.
"""

REMEMBERED = ".remote"
"""The file in a run folder with the address the run is uploaded to."""
