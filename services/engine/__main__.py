"""``python -m services.engine``: one engine process."""

from services.common.importing import importing

with importing():
    from services.common.process import launch
    from services.engine.config import EngineConfig
    from services.engine.serve import serve

if __name__ == "__main__":
    launch(EngineConfig, serve)
