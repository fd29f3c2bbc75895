"""The one exception for mistakes of the caller."""


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected, what was found, and what to do.

    The command line prints the message as one line and exits with 2.  Any other exception is a failure of ours: it exits
    with 1.
    """
