"""Weights as a verified artefact: pinned, fetched by range, hashed once, checked before they are loaded.

`targets` says what a cluster file pins, `obtain` fetches it, `verify` and `report` compare, `checkpoint`
reads headers, `share` and `bundle` bring it to the other node or to a site without internet.
"""
