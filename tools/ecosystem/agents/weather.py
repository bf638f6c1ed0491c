"""The tool that every agent of this folder has."""


def get_weather(city: str) -> str:
    """Return the weather in a city.

    Args:
        city: Name of the city.
    """
    return f"18 degrees in {city}"
