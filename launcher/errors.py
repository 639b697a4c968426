"""A user's mistake on the command line or in a config."""

from remask.data_prep.errors import InputError


class UserError(InputError):
    """One sentence that says what was given, what is allowed and what to do."""


def wrong_option(verb: str, error: ValueError) -> UserError:
    """What a dataclass of options says of its field, as the command line calls it."""
    field, colon, told = str(error).partition(":")
    return UserError(f"remask {verb}: --{field.replace('_', '-')}{colon}{told}")
