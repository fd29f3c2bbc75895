"""Encoders: images, texts and sounds become vectors by a frozen network or a projection; no labels are read."""
