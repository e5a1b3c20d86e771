"""``python -m services.loader``."""

from services.common.importing import importing

with importing():
    from services.common.process import launch
    from services.loader.config import LoaderConfig
    from services.loader.serve import serve

if __name__ == "__main__":
    launch(LoaderConfig, serve)
