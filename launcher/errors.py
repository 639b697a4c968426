"""What a user can mend, as opposed to a bug."""


class UserError(Exception):
    """A mistake in what was given: one sentence that says what, what is allowed and what to do. Shown without a traceback, exit code 2."""
