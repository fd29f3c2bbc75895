"""Run commands as on a system without fork, POSIX modules and calls, faiss, torchvision and the compiler of torch:
python -m tests.without_posix COMMAND ...

As on Windows, open files cannot be renamed or removed, and processes start with `spawn`.
"""

import builtins
import multiprocessing
import os
import select
import signal
import sys
import warnings

MODULES = {"fcntl", "resource", "ctypes", "pwd", "grp", "termios", "tty", "pty", "syslog"}
# Libraries can use ctypes; these packages have to do without all modules above.
_PACKAGES = {"fnlkit", "filelock"}
_CALLS = {
    os: ("fork", "forkpty", "sched_getaffinity", "memfd_create", "fchmod", "pread", "pwrite", "getuid",
         "geteuid", "getloadavg", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"),
    signal: ("SIGPIPE", "SIGKILL", "SIGCHLD", "SIGHUP", "SIGALRM"),
    select: ("poll", "epoll"),
}  # fmt: skip


def _without_modules(name, globals=None, locals=None, fromlist=(), level=0, imported=builtins.__import__):
    package = ((globals or {}).get("__name__") or "").partition(".")[0]
    if not level and package in _PACKAGES and name.partition(".")[0] in MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return imported(name, globals, locals, fromlist, level)


def _of_closed_files(call):
    def checked(path, *rest, **options):
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                held = os.path.samefile(f"/proc/self/fd/{descriptor}", path)
            except OSError:
                continue
            if held:
                raise PermissionError(13, "The process cannot access the file because it is open", path)
        return call(path, *rest, **options)

    return checked


def restrict():
    """Remove what Windows lacks, two libraries and the compiler of torch from this process."""
    sys.modules.update(dict.fromkeys(("faiss", "torchvision", "torch._dynamo")))
    builtins.__import__ = _without_modules
    for module, names in _CALLS.items():
        for name in names:
            vars(module).pop(name, None)
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, _of_closed_files(getattr(os, name)))
    # Windows has another lock, which Linux lacks: filelock falls back to the existence of the file, and warns.
    warnings.filterwarnings("ignore", "only soft file lock")
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    multiprocessing.set_start_method("spawn", force=True)


# Also in processes that `spawn` starts: they import this module under another name.
restrict()
if __name__ == "__main__":
    from fnlkit.cli import main

    for line in sys.argv[1:]:
        try:
            main(line.split())
        except SystemExit as end:
            if end.code:
                raise
