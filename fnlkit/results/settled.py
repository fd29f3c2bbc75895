"""Which runs of a folder are whole and of these very commands, so that continuing need not open each of them again.

Without it a second call on 1,500 finished runs starts 1,500 processes that find nothing to do.
"""

import hashlib
import json
import os
from pathlib import Path

NAME = "settled.jsonl"


class Settled:
    """What is known of the runs in a folder, a line each in `settled.jsonl`; whatever is not known is looked at again.

    A line holds for as long as commands, federation, run and a data set in one file are as they were (size and time).

    Parameters
    ----------
    folder : str or Path
    """

    def __init__(self, folder):
        self.folder, self.known = Path(folder), {}
        try:
            lines = (self.folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                name, key = json.loads(line)
                self.known[name] = key
            except (ValueError, TypeError):
                continue  # torn: its writer was killed

    def has(self, job, commands):
        """Return whether a job was finished by these commands, and nothing has changed since."""
        key = self._key(job, commands)
        return key is not None and self.known.get(job.name) == key

    def add(self, job, commands):
        """Write down that a job is finished."""
        key = self._key(job, commands)
        if key is not None and self.known.get(job.name) != key:
            self.known[job.name] = key
            with open(self.folder / NAME, "a", encoding="utf-8") as file:
                file.write(json.dumps([job.name, key]) + "\n")

    def _key(self, job, commands):
        from importlib.metadata import version

        data = next((word.partition("=")[2] for word in job.prepare[0][0] if word.startswith("--dataset=")), "")
        if not os.path.isfile(data) and any(sign in data for sign in "/\\(."):
            return None  # a folder, or files that a spec names: whether they changed is not seen from here
        files = [data] if os.path.isfile(data) else []
        try:
            found = [os.stat(self.folder / name) for name in (*files, *(t for _, t in job.prepare), f"{job.name}.pt")]
        except OSError:
            return None
        what = [version("fnlkit"), commands, [(one.st_size, one.st_mtime_ns) for one in found]]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()
