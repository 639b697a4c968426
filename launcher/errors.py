"""A user's mistake on the command line or in a config."""

from remask.data_prep.errors import InputError


class UserError(InputError):
    """One sentence that says what was given, what is allowed and what to do."""
