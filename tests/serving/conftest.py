"""Pictures and definitions of the preprocessing tests, which the tests of the stock form use as well."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "preprocess"))
