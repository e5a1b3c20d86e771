"""`python -m services.cli` is the `halogen` command."""

from services.cli.main import run

run()
