"""Readers of untrusted npz, npy and .pt files.

Sizes, names and counts are checked before memory is allocated or a member is read, no byte is executed, and torch is not
needed.  `fnlkit.artifacts.files` calls these modules; docs/files.md lists the refused files.
"""
