"""What every test finds: a generator that does not depend on the tests before it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Networks that a test makes have the same first weights however the tests are shared out and ordered."""
    torch.manual_seed(0)
