"""The version of this project. It stands in pyproject.toml alone; pip keeps it when it installs the project."""

from importlib.metadata import PackageNotFoundError, version

NAME = "transformer-pl"


def project_version() -> str:
    """Such as `0.1.0`; `not installed` where the project runs from its folder and pip has not installed it."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "not installed"
