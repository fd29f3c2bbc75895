"""Errors with which a site refuses a request.  The server receives only the code."""

from fnlkit.core.errors import InputError


class Withheld(InputError):
    """Error: a site refuses a request."""

    code = "setup"


class NotAgreed(Withheld):
    """Error: the settings of a run differ from the settings that the site agreed to.

    Attributes
    ----------
    setting : str
        Name of the first setting that differs, which is sent to the server without the values.
    """

    code = "terms"

    def __init__(self, message, setting):
        super().__init__(message)
        self.setting = setting


class NotInTable(Withheld):
    """Error: a request is not in the site's table."""

    code = "request"


class Released(Withheld):
    """Error: a release would exceed a budget, or add up with an earlier one."""

    code = "release"


class TooLong(Withheld):
    """Error: a request needs more CPU time than the site permits."""

    code = "request"


class Undeclared(Exception):
    """Error: a reply contains undeclared data. The reason contains no values."""

    code = "undeclared"
