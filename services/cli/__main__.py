"""`python -m services.cli` is the `halogen` command."""

from services.common.importing import importing

with importing():
    from services.cli.main import run

run()
