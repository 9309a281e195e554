"""`python -m octavo.cli`: the command `octavo`, where scripts are not installed."""

import sys

from octavo.cli import main

sys.exit(main())
