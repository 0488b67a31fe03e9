from pathlib import Path

import pytest

from tests.remote.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The scripts in a folder with spaces in its name, on a PATH without any Python."""
    return Checkout.make(tmp_path)
