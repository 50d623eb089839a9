"""How a person is asked at a terminal."""
