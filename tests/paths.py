"""Where things lie, for tests in any folder."""

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MODELS = TESTS / "models"
GOLDEN = TESTS / "golden"
TEMPLATES = ROOT / "templates"
