"""Artefacts: what commands exchange through files and pipes; npz, pt and zip readers, the federation, the run."""
