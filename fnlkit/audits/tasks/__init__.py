"""Audits of labels other than classes: several labels per sample, numbers, and tags of tokens."""
