"""What a user can mend, as opposed to a bug."""


class InputError(Exception):
    """A mistake in what was given: one sentence that says what, what is allowed and what to do. Shown without a traceback, exit code 2."""

    def __init__(self, sentence: str) -> None:
        # What was given may hold line breaks or escape sequences; the sentence stays one line and harmless on a terminal.
        super().__init__("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in sentence))
