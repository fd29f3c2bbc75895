"""Exceptions whose message is for the user: a mistake in what was given, and work that cannot go on."""


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected, what was found, and what to do.

    The command line prints the message as one line and exits with 2.  Any other exception
    but `WorkStopped` is a failure of ours: it exits with 1 and asks for a report.
    """


class WorkStopped(RuntimeError):
    """What was given can be used, but the work cannot go on; the message says why and what can be done.

    Training that diverged, for example.  The command line prints the message as one line and exits with 1.
    """
