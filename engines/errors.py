"""What the engine pipeline raises: every message names the field and the remedy. Called by all of `engines`."""


class EngineError(Exception):
    """The pipeline cannot go on; the message says what to do."""


class EngineInputError(EngineError):
    """Something that was given cannot be used."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}.")
        self.field, self.problem, self.remedy = field, problem, remedy


class MissingPackageError(EngineError):
    """An optional package is needed for this and not installed."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(f"{package} is not installed and {purpose} needs it; {extra}.")
        self.package = package
