"""Property tests here judge results, not times: how long an example takes depends on what else runs."""

from hypothesis import HealthCheck, settings

from tests.receipt import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
