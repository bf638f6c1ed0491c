"""A test that has nothing to do with suites."""


def test_arithmetic() -> None:
    assert 1 + 1 == 2
