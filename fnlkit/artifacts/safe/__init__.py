"""Readers of untrusted npz, npy and .pt files, and writers of their fixed layout.

Threat: files come from other sites, downloads and pipes, and every byte can be damaged or chosen by an attacker.
The usual loaders are not sufficient:

- `pickle`, and `numpy.load` or `torch.load` that allow it, execute code of the file.
- `numpy.load` allocates the size that a header declares and unpacks compressed members without a limit: a file of some
  kilobytes can declare terabytes.  It accepts two members of one name, and bytes outside of all members, so that two
  programs can read different content from one file.
- `torch.load` with ``weights_only=True`` accepts tensors that expand one number to any shape, tensors that share memory,
  sparse tensors with indices out of range, and deeply nested values.

Here each byte is checked before it is used: `intake` bounds the bytes that are read, `zip` checks the directory and the
checksum of each member, `npz` parses headers without evaluating them, and `pt` interprets pickle instructions symbolically.
Sizes are compared with the bytes that exist before memory is allocated.  `fnlkit.artifacts.files` calls these modules;
docs/files.md lists the refused files.
"""
